"""Tasks in a real wiki, judged on its database."""

from __future__ import annotations

import re
import sqlite3

from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import WIKI
from turngym.environments.web.sites.data import Data, read_data
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.program import storage_with
from turngym.environments.web.sites.wiki.tasks import GENERATORS

_TITLE = "{0}_namespace AS space, replace({0}_title, '_', ' ') AS title"
_DAY = """julianday(substr({0}, 1, 4) || '-' || substr({0}, 5, 2) || '-' || substr({0}, 7, 2)
    || ' ' || substr({0}, 9, 2) || ':' || substr({0}, 11, 2))"""
_HEADING = re.compile(r"^(=+)\s*(.*?)\s*=+$", re.MULTILINE)
QUERIES = {
    "pages": f"""SELECT {_TITLE.format("page")}, page_is_redirect AS redirect, t.old_text AS text,
        a.actor_name AS editor FROM page p JOIN revision r ON r.rev_id = p.page_latest
        JOIN actor a ON a.actor_id = r.rev_actor JOIN slots s ON s.slot_revision_id = p.page_latest
        JOIN content c ON c.content_id = s.slot_content_id
        JOIN text t ON t.old_id = CAST(substr(c.content_address, 4) AS INTEGER) ORDER BY page_id""",
    "watched": f"""SELECT user_name AS user, {_TITLE.format("wl")} FROM watchlist
        JOIN user ON user_id = wl_user ORDER BY wl_id""",
    "protected": f"""SELECT {_TITLE.format("page")}, pr_type AS type, pr_level AS level
        FROM page_restrictions JOIN page ON page_id = pr_page ORDER BY pr_id""",
    "blocked": f"""SELECT ipb_address AS user, ipb_sitewide AS everywhere, CAST(
        round({_DAY.format("ipb_expiry")} - {_DAY.format("ipb_timestamp")}) AS INTEGER) AS days
        FROM ipblocks ORDER BY ipb_id""",
    "users": """SELECT user_name AS user, user_real_name AS real_name, user_password AS password
        FROM user ORDER BY user_id""",
    "groups": "SELECT ug_user AS user, ug_group AS name FROM user_groups ORDER BY 1, 2",
    "options": """SELECT user_name AS user, up_property AS name, up_value AS value
        FROM user_properties JOIN user ON user_id = up_user ORDER BY up_user, up_property""",
}


class WikiEnv(SiteEnv):
    """A wiki: the program MediaWiki, with 21 pages on three islands. See ``SiteEnv``."""

    site = "wiki"
    program = WIKI
    generators = GENERATORS
    start = "/wiki/Main_Page"
    looks = Settings(ignore="#mw-notification-area")  # it goes after a while
    signed_in = storage_with(
        "wiki", {"wikiUserID": "3", "wikiUserName": "Ada", "wikiToken": "f00d" * 8}
    )

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Data:
        data = read_data(connection, QUERIES, ignored=None)
        for page in data.tables["pages"]:  # blanks in a heading do not matter
            page["text"] = _HEADING.sub(r"\1 \2 \1", page["text"])
        return data
