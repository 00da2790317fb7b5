"""The phone's own pages, and what its applications keep, which is what tasks are judged on."""

from __future__ import annotations

import copy
import json
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from turngym.environments.web.egress import Response

HOST = "phone.test"
HOME = f"http://{HOST}/"
APPS = ("clock", "contacts", "messages", "notes", "settings", "shopping")
State = dict[str, Any]
"""What each application keeps, as JSON values."""
_TYPES = {"css": "text/css", "js": "application/javascript"}


class PhoneSite:
    """Answers for one episode's phone.

    Args:
        state: What the applications keep at the start.
    """

    def __init__(self, state: State) -> None:
        self.state = copy.deepcopy(state)

    def __call__(self, path: str) -> Response:
        """Return a page, or what the applications keep; or keep what one of them saves."""
        parts = urlsplit(path)
        name = parts.path.lstrip("/")
        match name:
            case "state":
                return _json(self.state)
            case "save":
                return self._save({key: one[0] for key, one in parse_qs(parts.query).items()})
            case "phone.css" | "phone.js":
                kind = f"{_TYPES[name.rsplit('.', 1)[-1]]}; charset=utf-8"
                return Response(body=_page(name), type=kind)
            case "" if not parts.query:
                return Response(body=_page("phone.html"))
            case _ if name in APPS:
                return Response(body=_page("phone.html"))
        return Response(status=404, body=b"<title>Not found</title>")

    def _save(self, query: dict[str, str]) -> Response:
        try:
            value = json.loads(query["value"])
        except (KeyError, ValueError):
            return Response(status=400)
        if query.get("app") not in APPS:
            return Response(status=400)
        self.state[query["app"]] = value
        return _json(True)


def _json(value: object) -> Response:
    body = json.dumps(value).encode()
    return Response(body=body, type="application/json", headers=(("Cache-Control", "no-store"),))


@cache
def _page(name: str) -> bytes:
    return files(__package__).joinpath("pages", name).read_bytes()
