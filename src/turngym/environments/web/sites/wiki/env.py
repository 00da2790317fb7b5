"""Tasks in a real wiki, judged on its database."""

from __future__ import annotations

import re
import sqlite3

from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import WIKI
from turngym.environments.web.sites.data import Data, read_queries
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.program import storage_with
from turngym.environments.web.sites.wiki.tasks import GENERATORS

_HEADING = re.compile(r"^(=+)\s*(.*?)\s*=+$", re.MULTILINE)


class WikiEnv(SiteEnv):
    """A wiki: the program MediaWiki, with 21 pages on three islands. See ``SiteEnv``."""

    site = "wiki"
    program = WIKI
    generators = GENERATORS
    queries = read_queries("wiki")
    start = "/wiki/Main_Page"
    looks = Settings(ignore="#mw-notification-area")  # it goes after a while
    signed_in = storage_with(
        "wiki", {"wikiUserID": "3", "wikiUserName": "Ada", "wikiToken": "f00d" * 8}
    )

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Data:
        data: Data = super().read(connection)
        for page in data.tables["pages"]:  # blanks in a heading do not matter
            page["text"] = _HEADING.sub(r"\1 \2 \1", page["text"])
        return data
