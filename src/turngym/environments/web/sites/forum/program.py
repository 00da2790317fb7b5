"""django-machina, as a program to install and start."""

from __future__ import annotations

from pathlib import Path

from turngym.environments.web.sites.program import Program

FORUM = Program(
    name="forum",
    title="the forum (django-machina)",
    requirements=(
        "django-machina==1.3.1", "Django==5.2.19", "asgiref==3.13.0", "django-haystack==3.4.0",
        "django-js-asset==5.0.0", "django-mptt==0.20.0", "django-widget-tweaks==1.5.1",
        "markdown2==2.5.5", "packaging==26.3", "pillow==13.0.0", "sqlparse==0.6.1",
    ),
    folder=Path(__file__).parent,
    database="site.db",
)  # fmt: skip
