"""Serves a site made with Django. Runs in its own Python, which knows nothing of turngym.

Usage: python django_server.py DATA SOCKET     (says when it listens, then serves until killed)
"""

from __future__ import annotations

import sys
from pathlib import Path

from django_site import application
from project import set_up
from unix_server import serve

if __name__ == "__main__":
    set_up(Path(sys.argv[1]).resolve())
    serve(application(), sys.argv[2])
