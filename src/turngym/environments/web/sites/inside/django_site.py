"""What the sites made with Django share. Runs in a program's own Python.

The clock stands one minute after the newest change in the database, so that what pages show is a
function of what was done and not of when.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.utils import timezone

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
SESSION = "workshop" * 4
"""Session of the user who is signed in when an episode begins."""
FORM = """{% extends base %}{% block content %}<h2>Sign in</h2><form method="post">{% csrf_token %}
{{ form.as_p }}<button type="submit">Sign in</button></form>{% endblock %}"""


class Clock:
    """The time of a site.

    Args:
        database: Its SQLite file.
        newest: Query for the newest moment in it; until there is one the clock stands still.
    """

    def __init__(self, database: Path, newest: str) -> None:
        self._database = f"{database.absolute().as_uri()}?mode=ro"
        self._newest = newest
        self.fixed: datetime | None = None
        """While data is made: the time that it is."""

    def __call__(self) -> datetime:
        if self.fixed is not None:
            return self.fixed
        connection = sqlite3.connect(self._database, uri=True)
        try:
            (newest,) = connection.execute(self._newest).fetchone()
        finally:
            connection.close()
        moment = START if newest is None else datetime.fromisoformat(newest)
        return moment.replace(tzinfo=UTC) + timedelta(minutes=1)


def configure(data: Path, *, newest: str, **more: Any) -> Clock:
    """Set Django up for the data in a folder; must come before all that imports applications.

    Args:
        data: Holds ``site.db``.
        newest: As ``Clock``.
        more: Further settings.
    """
    clock = Clock(data / "site.db", newest)
    timezone.now = clock
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(data / "site.db"),
                "OPTIONS": {"timeout": 20},
            }
        },
        CACHES={
            name: {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}
            for name in ("default", "machina_attachments")
        },
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        EMAIL_BACKEND="django.core.mail.backends.dummy.EmailBackend",
        HAYSTACK_CONNECTIONS={"default": {"ENGINE": "plain_search.Engine"}},
        LANGUAGE_CODE="en-us",
        LOGGING_CONFIG=None,
        MEDIA_ROOT=str(data / "media"),
        MEDIA_URL="/media/",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        SECRET_KEY="the data of this site is made up",
        SITE_ID=1,
        STATIC_URL="/static/",
        TIME_ZONE="UTC",
        USE_TZ=True,
        **more,
    )
    django.setup()
    return clock


def templates(*folders: str, context: tuple[str, ...] = (), **texts: str) -> list[dict[str, Any]]:
    """Return the setting ``TEMPLATES``.

    Args:
        folders: Where to look for templates besides the applications' own.
        context: More context processors.
        texts: Name of a template, ``__`` for ``/`` and without ``.html``, to its text.
    """
    own = {f"{name.replace('__', '/')}.html": text for name, text in texts.items()}
    common = ["django.template.context_processors.request"]
    common += ["django.contrib.auth.context_processors.auth"]
    common += ["django.contrib.messages.context_processors.messages"]
    loaders: list[Any] = [("django.template.loaders.locmem.Loader", own)]
    loaders += ["django.template.loaders.filesystem.Loader"]
    loaders += ["django.template.loaders.app_directories.Loader"]
    return [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": list(folders),
            "OPTIONS": {
                "context_processors": [*common, *context],
                "loaders": [("django.template.loaders.cached.Loader", loaders)],
            },
        }
    ]


MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]


def make_tables(data: Path) -> None:
    """Make the database with all its tables, and nothing in them."""
    from django.core.management import call_command

    data.mkdir(parents=True, exist_ok=True)
    call_command("migrate", verbosity=0, interactive=False)


def sign_in(user: Any) -> None:
    """Make the session of ``SESSION`` one of ``user``."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session

    content = {
        SESSION_KEY: str(user.pk),
        BACKEND_SESSION_KEY: settings.AUTHENTICATION_BACKENDS[-1],
        HASH_SESSION_KEY: user.get_session_auth_hash(),
    }
    Session.objects.create(
        session_key=SESSION,
        session_data=SessionStore().encode(content),
        expire_date=START + timedelta(days=3650),
    )


def application() -> Callable[..., Any]:
    """Return the site with its static files."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    site: Callable[..., Any] = StaticFilesHandler(get_wsgi_application())
    return site
