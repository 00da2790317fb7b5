"""Installs the web applications: ``python -m turngym.environments.web.sites.install NAME...``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from turngym.environments.web.sites.catalogue import PROGRAMS
from turngym.errors import ConfigError, require_known


def main(names: list[str]) -> int:
    """Install the programs called ``names``; all of them without names.

    Raises:
        ConfigError: There is no such program.
    """
    for name in names or list(PROGRAMS):
        require_known("web application", name, PROGRAMS)
    with ThreadPoolExecutor(2) as pool:  # they wait for downloads most of the time
        list(pool.map(lambda name: PROGRAMS[name].install(), names or PROGRAMS))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Install web applications.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="all by default")
    try:
        sys.exit(main(parser.parse_args().programs))
    except ConfigError as problem:
        sys.exit(f"error: {problem}")
    except subprocess.CalledProcessError as failure:
        command = " ".join(failure.cmd)[:200]
        sys.exit(f"error: exit status {failure.returncode} of: {command} (its message is above)")
