"""Tasks in a real issue tracker, judged on its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import ClassVar

from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import TRACKER
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import ProblemGenerator
from turngym.environments.web.sites.program import Program
from turngym.environments.web.sites.tracker.state import State, read_state
from turngym.environments.web.sites.tracker.tasks import GENERATORS

_WITHOUT_EXPANDER = """new MutationObserver(() => {
  const button = document.getElementById("trac-wiki-expander");
  if (button) button.remove();
}).observe(document, { childList: true, subtree: true });"""
"""Removes a button for wide pages that is there sooner or later, as the layout falls."""


class TrackerEnv(SiteEnv):
    """An issue tracker with a wiki: the program Trac, with 40 tickets. See ``SiteEnv``."""

    site: ClassVar[str] = "tracker"
    program: ClassVar[Program] = TRACKER
    generators: ClassVar[Mapping[str, ProblemGenerator]] = GENERATORS
    start: ClassVar[str] = "/wiki"
    looks: ClassVar[Settings] = Settings(init_script=_WITHOUT_EXPANDER)

    def read(self, connection: sqlite3.Connection) -> State:
        """Return the tickets, comments, wiki pages and settings."""
        return read_state(connection)
