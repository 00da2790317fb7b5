"""Tasks in a real forum, done by an expert and judged on its database."""

from __future__ import annotations

from random import Random

from turngym.environments.web.expert_view import Stage, choose, enter, press, press_above
from turngym.environments.web.sites.catalogue import FORUM
from turngym.environments.web.sites.data import Data, Row
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import Made, question
from turngym.environments.web.sites.program import DJANGO_SESSION

ME = "ada"
_USERS = ("ada", "ben", "cleo", "dan", "eva")
_FORUMS = ("Vegetables", "Fruit trees", "Flowers", "Tools", "Swap corner")
_TEXTS = (
    "Thank you, that helped.", "I will try it this weekend.", "Please send a picture.",
    "That did not work for me.", "Which variety do you grow?", "See you at the market.",
    "I have some left to give away.", "Try it in the shade.",
)  # fmt: skip
_SUBJECTS = (
    "Moles again", "Frost in May", "A pond for birds", "Hedge or fence", "Ants in the patio",
    "Wild garlic", "Rhubarb too early", "A bench for two",
)  # fmt: skip
_QUESTIONS = {
    "Which day suits you?": ("Friday", "Saturday"),
    "Do you water at night?": ("Always", "Never"),
    "What comes first?": ("Seeds", "Soil"),
}
_REASONS = ("typo", "more details", "on request")
_OPEN, _LOCKED, _MOVED = 0, 1, 2
_NORMAL, _STICKY, _ANNOUNCE = 0, 1, 2
_SUBMIT, _SURE = press("Submit", "button"), press("Yes, I'm sure", "submit")


def _to(topic: Row) -> list[Stage]:
    return [press(topic["forum"], "link"), press(topic["subject"], "link")]


def _menu(entry: str) -> list[Stage]:
    """Choose from the menu of moderators, and confirm."""
    return [press("#id_dropdown_moderation_menu_button"), press(entry, "link"), _SURE]


def _add_post(data: Data, topic: str, subject: str, text: str, poster: str = ME) -> None:
    data.add("posts", topic=topic, subject=subject, poster=poster, content=text, signed=1,
             reason="")  # fmt: skip


def _reply_to(data: Data, topic: Row, text: str, poster: str = ME) -> list[Stage]:
    """Add a reply to what is wanted; return how an expert writes it."""
    _add_post(data, topic["subject"], f"Re: {topic['subject']}", text, poster)
    return [press("Post reply", "link"), enter("Message", text), _SUBMIT]


def _reply(data: Data, rng: Random) -> Made:
    topic, text = rng.choice(data.all("topics", status=_OPEN)), rng.choice(_TEXTS)
    goal = f'Reply to the topic "{topic["subject"]}" with the message "{text}".'
    return goal, [*_to(topic), *_reply_to(data, topic, text)]


def _search(data: Data, rng: Random) -> Made:
    """Reply to a topic that only a search finds quickly."""
    post = rng.choice(data.all("posts"))
    thing = post["content"].split("Have you tried ")[1].split("?")[0]
    asked = [one for one in data.all("posts", poster=post["poster"]) if thing in one["content"]]
    topic = data.one("topics", subject=post["topic"])
    if len(asked) > 1 or topic["status"] != _OPEN:
        return _search(data, rng)
    text = rng.choice(_TEXTS)
    goal = f'Reply with "{text}" to the topic in which {post["poster"]} asks about {thing}.'
    found = [enter("Search", thing), press("Search", "button"), press(topic["subject"], "link")]
    return goal, [*found, *_reply_to(data, topic, text)]


def _as_other(data: Data, rng: Random) -> Made:
    topic, text = rng.choice(data.all("topics", status=_OPEN)), rng.choice(_TEXTS)
    user = rng.choice(_USERS[1:])
    goal = (
        f'Sign in as {user} with the password "{user}-secret" and reply to the topic '
        f'"{topic["subject"]}" with the message "{text}".'
    )
    sign_in = [
        press("Sign in", "link"), enter("Username:", user), enter("Password:", f"{user}-secret"),
        press("Sign in", "button"),
    ]  # fmt: skip
    return goal, [*sign_in, *_to(topic), *_reply_to(data, topic, text, user)]


def _begin(data: Data, rng: Random) -> tuple[Row, str, list[Stage]]:
    """Add a topic to what is wanted; return it, its text and how an expert begins it."""
    forum, subject, text = rng.choice(_FORUMS), rng.choice(_SUBJECTS), rng.choice(_TEXTS)
    topic = data.add(
        "topics", forum=forum, subject=subject, poster=ME, type=_NORMAL, status=_OPEN, approved=1
    )
    _add_post(data, subject, subject, text)
    begin = [press(forum, "link"), press("New topic", "link"), enter("Subject", subject)]
    return topic, text, [*begin, enter("Message", text)]


def _start(data: Data, rng: Random) -> Made:
    topic, text, do = _begin(data, rng)
    goal = 'Start a topic "{subject}" in the forum {forum} with the message "{text}".'
    return goal.format(**topic, text=text), [*do, _SUBMIT]


def _announce(data: Data, rng: Random) -> Made:
    topic, text, do = _begin(data, rng)
    topic["type"], name = rng.choice(((_STICKY, "Sticky"), (_ANNOUNCE, "Announce")))
    goal = (
        f'Start a topic of type "{name}" in the forum {topic["forum"]}: subject '
        f'"{topic["subject"]}", message "{text}".'
    )
    return goal, [*do, choose("Post topic as (optional)", name), _SUBMIT]


def _poll(data: Data, rng: Random) -> Made:
    topic, text, do = _begin(data, rng)
    subject, (question, options) = topic["subject"], rng.choice(list(_QUESTIONS.items()))
    goal = (
        f'Start a topic "{subject}" in the forum {topic["forum"]} with the message "{text}" and a '
        f'poll "{question}" with the options "{options[0]}" and "{options[1]}".'
    )
    data.add("polls", topic=subject, question=question, max_options=1, duration=0, user_changes=0,
             hide_results=0)  # fmt: skip
    for option in options:
        data.add("options", topic=subject, text=option)
    return goal, [
        *do, press("Poll", "link"), enter("Poll question (optional)", question),
        enter("Enter a poll option", options[0]),
        enter("Enter a poll option", options[1], after="Delete"), _SUBMIT,
    ]  # fmt: skip


def _vote(data: Data, rng: Random) -> Made:
    poll = rng.choice(data.all("polls"))
    option = rng.choice(data.all("options", topic=poll["topic"]))["text"]
    topic = data.one("topics", subject=poll["topic"])
    goal = f'Vote for "{option}" in the poll "{poll["question"]}" of the forum {topic["forum"]}.'
    data.add("votes", topic=poll["topic"], text=option, voter=ME)
    return goal, [*_to(topic), press(option, "radio"), _SUBMIT]


def _edit(data: Data, rng: Random) -> Made:
    """Change a reply of the agent's own."""
    mine = [one for one in data.all("posts", poster=ME) if one["subject"].startswith("Re: ")]
    alone = [one for one in mine if [other["topic"] for other in mine].count(one["topic"]) == 1]
    open_ = {topic["subject"]: topic for topic in data.all("topics", status=_OPEN)}
    post = rng.choice([one for one in alone if one["topic"] in open_])
    text, reason = rng.choice(_TEXTS), rng.choice(_REASONS)
    goal = (
        f'Change the message of your reply in the topic "{post["topic"]}" to "{text}", and give '
        f'"{reason}" as the reason.'
    )
    do = [press_above("Edit", post["content"]), enter("Message", text)]
    do += [enter("Update reason (optional)", reason), _SUBMIT]
    post.update(content=text, reason=reason)
    return goal, [*_to(open_[post["topic"]]), *do]


def _delete(data: Data, rng: Random) -> Made:
    """Delete one post of a topic, as a moderator may."""
    topic = rng.choice(data.all("topics"))
    replies = data.all("posts", topic=topic["subject"])[1:]
    post = rng.choice(replies) if replies else None
    if post is None or [one["poster"] for one in replies].count(post["poster"]) > 1:
        return _delete(data, rng)
    goal = f'Delete the reply of {post["poster"]} in the topic "{topic["subject"]}".'
    data.drop("posts", topic=topic["subject"], content=post["content"], poster=post["poster"])
    return goal, [*_to(topic), press_above("Delete", post["content"]), _SURE]


def _lock(data: Data, rng: Random) -> Made:
    topic = rng.choice(data.all("topics", status=_OPEN))
    topic["status"] = _LOCKED
    return f'Lock the topic "{topic["subject"]}".', [*_to(topic), *_menu("Lock topic")]


def _unlock(data: Data, rng: Random) -> Made:
    topic, text = rng.choice(data.all("topics", status=_LOCKED)), rng.choice(_TEXTS)
    topic["status"] = _OPEN
    goal = f'Unlock the topic "{topic["subject"]}" and reply to it with the message "{text}".'
    return goal, [*_to(topic), *_menu("Unlock topic"), *_reply_to(data, topic, text)]


def _pin(data: Data, rng: Random) -> Made:
    topic = rng.choice(data.all("topics", type=_NORMAL))
    topic["type"] = _STICKY
    goal = f'Make "{topic["subject"]}" a sticky topic.'
    return goal, [*_to(topic), *_menu("Change to sticky topic")]


def _move(data: Data, rng: Random) -> Made:
    topic = rng.choice(data.all("topics", status=_OPEN))
    forum = rng.choice([one for one in _FORUMS if one != topic["forum"]])
    *menu, confirm = _menu("Move topic")
    do = [*_to(topic), *menu, choose("Select a destination forum", f"-- {forum}"), confirm]
    topic.update(forum=forum, status=_MOVED)
    return f'Move the topic "{topic["subject"]}" to the forum {forum}.', do


def _remove(data: Data, rng: Random) -> Made:
    topics, do = rng.sample(data.all("topics"), 2), list[Stage]()
    for one in topics:
        data.drop("topics", subject=one["subject"])
        for table in ("posts", "subscribers", "polls", "options"):
            data.drop(table, topic=one["subject"])
        do += [press("Forum index", "link"), *_to(one), *_menu("Delete topic")]
    topic, other = (one["subject"] for one in topics)
    return f'Delete the whole topics "{topic}" and "{other}".', do


def _lock_all(data: Data, rng: Random) -> Made:
    """Lock two or three topics, each on a page of its own."""
    forum, user = rng.choice(_FORUMS), rng.choice(_USERS)
    topics = data.all("topics", forum=forum, poster=user, status=_OPEN)
    if not 2 <= len(topics) <= 3:
        return _lock_all(data, rng)
    followed, do = _subscribe(data, rng)
    goal = (
        f'Subscribe to the topic "{followed}", and lock every topic that {user} started in the '
        f"forum {forum} and that is not locked yet."
    )
    for topic in topics:
        topic["status"] = _LOCKED
        do += [press("Forum index", "link"), *_to(topic), *_menu("Lock topic")]
    return goal, do


def _subscribe(data: Data, rng: Random) -> tuple[str, list[Stage]]:
    """Add a subscription to what is wanted; return its topic and how an expert gets it."""
    followed = {row["topic"] for row in data.all("subscribers", user=ME)}
    topic = rng.choice([row for row in data.all("topics") if row["subject"] not in followed])
    data.add("subscribers", topic=topic["subject"], user=ME)
    return topic["subject"], [*_to(topic), press("Subscribe", "link"), _SURE]


def _follow(data: Data, rng: Random) -> Made:
    topic, do = _subscribe(data, rng)
    return f'Subscribe to the topic "{topic}".', do


def _unfollow(data: Data, rng: Random) -> Made:
    old = rng.choice(data.all("subscribers", user=ME))["topic"]
    followed, do = _subscribe(data, rng)
    data.drop("subscribers", topic=old, user=ME)
    goal = f'Subscribe to the topic "{followed}", and unsubscribe from "{old}".'
    links = [press(name, "link") for name in ("Subscriptions", old, "Unsubscribe")]
    return goal, [*do, *links, _SURE]


def _signature(data: Data, rng: Random) -> Made:
    text = f"{rng.choice(_SUBJECTS)}? {rng.choice(_TEXTS)}"
    data.one("profiles", user=ME)["signature"] = text
    return f'Set the signature in your profile to "{text}".', [
        press("Your profile", "link"), press("Edit profile", "link"),
        enter("Signature (optional)", text), _SUBMIT,
    ]  # fmt: skip


def _last(data: Data, rng: Random) -> Made:
    topic = rng.choice(data.all("topics"))
    posts = data.all("posts", topic=topic["subject"])
    goal = f'Who wrote the last post in the topic "{topic["subject"]}"? Answer with the name.'
    return question(goal, posts[-1]["poster"], _to(topic))


def _count(data: Data, rng: Random) -> Made:
    forum, user = rng.choice(_FORUMS), rng.choice(_USERS)
    number = len(data.all("topics", forum=forum, poster=user))
    goal = f"How many topics of the forum {forum} were started by {user}? Answer with the number."
    return question(goal, str(number), [press(forum, "link")])


def _compare(data: Data, rng: Random) -> Made:
    """Read the number of replies on three pages."""
    topics = rng.sample(data.all("topics"), 3)
    sizes = [len(data.all("posts", topic=topic["subject"])) for topic in topics]
    if len({topic["forum"] for topic in topics}) < 3 or sizes.count(max(sizes)) > 1:
        return _compare(data, rng)
    best = topics[sizes.index(max(sizes))]["subject"]
    names = ", ".join(f'"{topic["subject"]}"' for topic in topics)
    goal = f"Which of the topics {names} has the most replies? Answer with its subject."
    look = [stage for one in topics for stage in (press("Forum index"), press(one["forum"]))]
    return question(goal, best, look)


class ForumEnv(SiteEnv):
    """A forum: the program django-machina, with 24 topics in five forums. See ``SiteEnv``."""

    site = "forum"
    program = FORUM
    signed_in = DJANGO_SESSION
    ignored = (
        "auth_user", "django_session", "forum_conversation_post", "forum_conversation_topic",
        "forum_conversation_topic_subscribers", "forum_member_forumprofile",
        "forum_polls_topicpoll", "forum_polls_topicpolloption", "forum_polls_topicpollvote",
        "forum_forum",  # counts of what is in it; no page changes the rest
        "forum_tracking_forumreadtrack", "forum_tracking_topicreadtrack",
    )  # fmt: skip
