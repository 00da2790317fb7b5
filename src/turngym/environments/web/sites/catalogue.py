"""The web applications that there are: what registering, installing and making them needs."""

from __future__ import annotations

from importlib import import_module

from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.forum.program import FORUM
from turngym.environments.web.sites.program import Program
from turngym.environments.web.sites.shop.program import SHOP
from turngym.environments.web.sites.tracker.program import TRACKER
from turngym.environments.web.sites.wiki.program import WIKI

PROGRAMS: dict[str, Program] = {one.name: one for one in (TRACKER, FORUM, SHOP, WIKI)}


def env_class(site: str) -> type[SiteEnv]:
    """Return the environment of the application called ``site``."""
    module = import_module(f"turngym.environments.web.sites.{site}.env")
    found: type[SiteEnv] = getattr(module, f"{site.capitalize()}Env")
    return found
