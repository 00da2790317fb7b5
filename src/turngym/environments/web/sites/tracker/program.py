"""Trac, as a program to install and start."""

from __future__ import annotations

from pathlib import Path

from turngym.environments.web.sites.program import Program

_HERE = Path(__file__).parent

TRACKER = Program(
    name="tracker",
    title="the issue tracker (Trac)",
    requirements=("Trac==1.6", "setuptools<81"),
    seed_script=_HERE / "seed.py",
    server_script=_HERE / "server.py",
    database="db/trac.db",
)
