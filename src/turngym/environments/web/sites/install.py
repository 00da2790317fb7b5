"""Installs the web applications: ``python -m turngym.environments.web.sites.install NAME...``."""

from __future__ import annotations

import sys

from turngym.environments.web.sites.catalogue import PROGRAMS
from turngym.errors import ConfigError, unknown_name


def main(names: list[str]) -> int:
    """Install the programs called ``names``; all of them without names."""
    for name in names or list(PROGRAMS):
        if name not in PROGRAMS:
            raise unknown_name("web application", name, PROGRAMS)
    for name in names or list(PROGRAMS):
        PROGRAMS[name].install()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ConfigError as problem:
        sys.exit(str(problem))
