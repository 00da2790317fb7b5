"""Tasks in a real forum, judged on its database."""

from __future__ import annotations

from turngym.environments.web.sites.catalogue import FORUM
from turngym.environments.web.sites.data import read_queries
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.forum.tasks import GENERATORS
from turngym.environments.web.sites.program import django_session

IGNORED = (
    "auth_user", "django_session", "forum_conversation_post", "forum_conversation_topic",
    "forum_conversation_topic_subscribers", "forum_member_forumprofile", "forum_polls_topicpoll",
    "forum_polls_topicpolloption", "forum_polls_topicpollvote",
    "forum_forum",  # counts of what is in it; no page changes the rest
    "forum_tracking_forumreadtrack", "forum_tracking_topicreadtrack",
)  # fmt: skip


class ForumEnv(SiteEnv):
    """A forum: the program django-machina, with 24 topics in five forums. See ``SiteEnv``."""

    site = "forum"
    program = FORUM
    generators = GENERATORS
    signed_in = django_session("forum")
    queries = read_queries("forum")
    ignored = IGNORED
