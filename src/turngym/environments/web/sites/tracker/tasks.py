"""What is asked of an agent in the tracker, what must come of it, and how an expert does it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from turngym.environments.web.sites.tracker.state import State
TEMPLATES: dict[str, Any] = {}
Job = Any
