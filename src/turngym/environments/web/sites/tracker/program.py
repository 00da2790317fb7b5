"""Trac, as a program to install and start."""

from __future__ import annotations

from pathlib import Path

from turngym.environments.web.sites.program import Program

TRACKER = Program(
    name="tracker",
    title="the issue tracker (Trac)",
    requirements=("Trac==1.6", "setuptools<81"),
    folder=Path(__file__).parent,
    database="db/trac.db",
    # What the server remembers of earlier episodes must not look up to date.
    after_reset="UPDATE cache SET generation = 1000000 + 1000 * :reset",
)
