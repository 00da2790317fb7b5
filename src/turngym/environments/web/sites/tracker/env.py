"""Tasks in a real issue tracker, judged on its database."""

from __future__ import annotations

import sqlite3

from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import TRACKER
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.tracker.state import State, read_state
from turngym.environments.web.sites.tracker.tasks import GENERATORS

_WITHOUT_EXPANDER = """new MutationObserver(() => {
  const button = document.getElementById("trac-wiki-expander");
  if (button) button.remove();
}).observe(document, { childList: true, subtree: true });"""
"""Removes a button for wide pages that is there sooner or later, as the layout falls."""


class TrackerEnv(SiteEnv):
    """An issue tracker with a wiki: the program Trac, with 40 tickets. See ``SiteEnv``."""

    site = "tracker"
    program = TRACKER
    generators = GENERATORS
    start = "/wiki"
    looks = Settings(init_script=_WITHOUT_EXPANDER)

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> State:
        return read_state(connection)
