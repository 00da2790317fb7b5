"""A live engine from a table of settings, as one line of a config gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from turngym.environments.search.backends.cassette import Cassette
from turngym.environments.search.backends.http import SEARXNG, Api, HttpBackend
from turngym.errors import ConfigError, unknown_name

KINDS: Mapping[str, Api] = {"searxng": SEARXNG, "rest": Api()}
"""Kind of engine to how it is asked unless the settings say otherwise."""

_OPTIONS = ("timeout_s", "retries", "key_variable")
_API_FIELDS = tuple(field.name for field in fields(Api))


def live_backend(settings: Mapping[str, Any]) -> HttpBackend:
    """Return the engine that ``settings`` describe.

    Args:
        settings: ``url``; ``type`` (``"searxng"`` or ``"rest"``); ``timeout_s``, ``retries``,
            ``key_variable``; ``cassette`` (a file) and ``cassette_mode``; any field of ``Api``.

    Raises:
        ConfigError: A setting is unknown or wrong.
    """
    left = dict(settings)
    kind, url = left.pop("type", "searxng"), left.pop("url", None)
    if kind not in KINDS:
        raise unknown_name("type of search engine", str(kind), KINDS)
    if not isinstance(url, str):
        raise ConfigError(f"search engine: 'url' must be a text, found {url!r}")
    recordings, mode = left.pop("cassette", None), left.pop("cassette_mode", "record")
    options = {name: left.pop(name) for name in _OPTIONS if name in left}
    for name in left:
        if name not in _API_FIELDS:
            known = ("url", "type", "cassette", "cassette_mode", *_OPTIONS, *_API_FIELDS)
            raise unknown_name("setting of a search engine", name, known)
    cassette = None if recordings is None else Cassette(Path(recordings).expanduser(), mode)
    return HttpBackend(url, replace(KINDS[kind], **left), cassette=cassette, **options)
