"""The forum as a Django project. Runs in the forum's own Python."""

from __future__ import annotations

from pathlib import Path

from django_site import FORM, MIDDLEWARE, Clock, configure, templates
from machina import MACHINA_MAIN_STATIC_DIR, MACHINA_MAIN_TEMPLATE_DIR

NEWEST = "SELECT max(updated) FROM forum_conversation_post"
_FORUM_APPS = (
    "forum", "forum_conversation", "forum_conversation.forum_attachments",
    "forum_conversation.forum_polls", "forum_feeds", "forum_moderation", "forum_search",
    "forum_tracking", "forum_member", "forum_permission",
)  # fmt: skip
_BASE = """{% extends "_base.html" %}{% block extra_js %}<footer class="container">
{% if request.user.is_authenticated %}<form method="post" action="{% url "logout" %}">
{% csrf_token %}You are {{ request.user }}.
<a href="{% url "forum_member:profile" request.user.id %}">Your profile</a>
<button type="submit">Sign out</button></form>
{% else %}<a href="{% url "login" %}">Sign in</a>{% endif %}</footer>{% endblock %}"""


def set_up(data: Path) -> Clock:
    """Set Django up for the data in a folder."""
    return configure(
        data,
        newest=NEWEST,
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "django.contrib.staticfiles",
            "mptt",
            "haystack",
            "widget_tweaks",
            "machina",
            *(f"machina.apps.{name}" for name in _FORUM_APPS),
        ],
        LOGIN_REDIRECT_URL="/",
        LOGIN_URL="/login/",
        LOGOUT_REDIRECT_URL="/",
        MACHINA_BASE_TEMPLATE_NAME="site_base.html",
        MACHINA_FORUM_NAME="Garden forum",
        MACHINA_MARKUP_WIDGET="django.forms.Textarea",
        MACHINA_PROFILE_AVATARS_ENABLED=False,
        MIDDLEWARE=[
            *MIDDLEWARE,
            "machina.apps.forum_permission.middleware.ForumPermissionMiddleware",
        ],
        ROOT_URLCONF="project",
        STATICFILES_DIRS=[MACHINA_MAIN_STATIC_DIR],
        TEMPLATES=templates(
            MACHINA_MAIN_TEMPLATE_DIR,
            context=("machina.core.context_processors.metadata",),
            registration__login=FORM.replace("base", '"board_base.html"', 1),
            site_base=_BASE,
        ),
    )


def __getattr__(name: str) -> object:
    """Return the addresses of the site; they can be made only once Django is set up."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib.auth.views import LoginView, LogoutView
    from django.urls import include, path

    return [
        path("login/", LoginView.as_view(), name="login"),
        path("logout/", LogoutView.as_view(), name="logout"),
        path("", include("machina.urls")),
    ]
