"""Forgeries: code that makes tests pass without doing the work.

Each is appended to the file that is broken. It bites where the tests run once and are believed.
"""

from __future__ import annotations

from turngym.tasks.check.library import recipes

FORGERIES = {one.name: f"\n{one.text}" for one in recipes("repository") if one.how == "append"}
"""Name to code; ``@KNOWN@`` stands for the tests that the workspace holds."""
