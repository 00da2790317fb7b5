"""Tasks in a real forum, done by an expert and judged on its database."""

from __future__ import annotations

from random import Random

from turngym.environments.web.sites.catalogue import FORUM
from turngym.environments.web.sites.data import Data, Row, read_queries
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import (
    Problem,
    ProblemGenerator,
    Stage,
    choose,
    enter,
    press,
    press_above,
    question,
    script,
)
from turngym.environments.web.sites.program import django_session

ME = "ada"
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


def _to(topic: Row) -> list[Stage]:
    return [press(topic["forum"], "link"), press(topic["subject"], "link")]


def _menu(entry: str) -> list[Stage]:
    """Choose from the menu of moderators, and confirm."""
    return [
        press("#id_dropdown_moderation_menu_button"),
        press(entry, "link"),
        press("Yes, I'm sure", "submit"),
    ]


def _topic(data: Data, rng: Random, **values: object) -> Row:
    return rng.choice(data.all("topics", **values))


def _post(topic: str, subject: str, poster: str, content: str) -> Row:
    return {
        "topic": topic, "subject": subject, "poster": poster, "content": content, "signed": 1,
        "reason": "",
    }  # fmt: skip


def _reply_to(data: Data, topic: Row, text: str, goal: str, found: list[Stage]) -> Problem:
    wanted = data.copy()
    subject = topic["subject"]
    wanted.add("posts", **_post(subject, f"Re: {subject}", ME, text))
    do = [press("Post reply", "link"), enter("Message", text), press("Submit", "button")]
    return Problem(goal=goal, wanted=wanted, expert=script(*found, *do))


def _reply(data: Data, rng: Random) -> Problem:
    topic, text = _topic(data, rng, status=_OPEN), rng.choice(_TEXTS)
    goal = f'Reply to the topic "{topic["subject"]}" with the message "{text}".'
    return _reply_to(data, topic, text, goal, _to(topic))


def _search(data: Data, rng: Random) -> Problem:
    """Reply to a topic that only a search finds quickly."""
    while True:
        post = rng.choice(data.all("posts"))
        thing = post["content"].split("Have you tried ")[1].split("?")[0]
        asked = [one for one in data.all("posts", poster=post["poster"]) if thing in one["content"]]
        topic = data.one("topics", subject=post["topic"])
        if len(asked) == 1 and topic["status"] == _OPEN:
            break
    text = rng.choice(_TEXTS)
    goal = f'Reply with "{text}" to the topic in which {post["poster"]} asks about {thing}.'
    found = [enter("Search", thing), press("Search", "button"), press(topic["subject"], "link")]
    return _reply_to(data, topic, text, goal, found)


def _as_other(data: Data, rng: Random) -> Problem:
    topic, text = _topic(data, rng, status=_OPEN), rng.choice(_TEXTS)
    user = rng.choice(("ben", "cleo", "dan", "eva"))
    goal = (
        f'Sign in as {user} with the password "{user}-secret" and reply to the topic '
        f'"{topic["subject"]}" with the message "{text}".'
    )
    sign_in = [
        press("Sign in", "link"), enter("Username:", user), enter("Password:", f"{user}-secret"),
        press("Sign in", "button"),
    ]  # fmt: skip
    problem = _reply_to(data, topic, text, goal, [*sign_in, *_to(topic)])
    problem.wanted.tables["posts"][-1]["poster"] = user
    return Problem(goal=goal, wanted=problem.wanted, expert=problem.expert, signed_in=False)


def _new_topic(data: Data, forum: str, subject: str, text: str, kind: int) -> Data:
    wanted = data.copy()
    wanted.add(
        "topics", forum=forum, subject=subject, poster=ME, type=kind, status=_OPEN, approved=1
    )
    wanted.add("posts", **_post(subject, subject, ME, text))
    return wanted


def _begin(forum: str, subject: str, text: str) -> list[Stage]:
    return [
        press(forum, "link"),
        press("New topic", "link"),
        enter("Subject", subject),
        enter("Message", text),
    ]


def _start(data: Data, rng: Random) -> Problem:
    forum, subject, text = rng.choice(_FORUMS), rng.choice(_SUBJECTS), rng.choice(_TEXTS)
    goal = f'Start a topic "{subject}" in the forum {forum} with the message "{text}".'
    wanted = _new_topic(data, forum, subject, text, _NORMAL)
    expert = script(*_begin(forum, subject, text), press("Submit", "button"))
    return Problem(goal=goal, wanted=wanted, expert=expert)


def _announce(data: Data, rng: Random) -> Problem:
    forum, subject, text = rng.choice(_FORUMS), rng.choice(_SUBJECTS), rng.choice(_TEXTS)
    kind, name = rng.choice(((_STICKY, "Sticky"), (_ANNOUNCE, "Announce")))
    goal = (
        f'Start a topic of type "{name}" in the forum {forum}: subject "{subject}", '
        f'message "{text}".'
    )
    wanted = _new_topic(data, forum, subject, text, kind)
    pick = choose("Post topic as (optional)", name)
    expert = script(*_begin(forum, subject, text), pick, press("Submit", "button"))
    return Problem(goal=goal, wanted=wanted, expert=expert)


def _poll(data: Data, rng: Random) -> Problem:
    forum, subject, text = rng.choice(_FORUMS), rng.choice(_SUBJECTS), rng.choice(_TEXTS)
    question, options = rng.choice(list(_QUESTIONS.items()))
    goal = (
        f'Start a topic "{subject}" in the forum {forum} with the message "{text}" and a poll '
        f'"{question}" with the options "{options[0]}" and "{options[1]}".'
    )
    wanted = _new_topic(data, forum, subject, text, _NORMAL)
    wanted.add(
        "polls", topic=subject, question=question, max_options=1, duration=0, user_changes=0,
        hide_results=0,
    )  # fmt: skip
    for option in options:
        wanted.add("options", topic=subject, text=option)
    do = [
        press("Poll", "link"), enter("Poll question (optional)", question),
        enter("Enter a poll option", options[0]),
        enter("Enter a poll option", options[1], after="Delete"), press("Submit", "button"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*_begin(forum, subject, text), *do))


def _vote(data: Data, rng: Random) -> Problem:
    poll = rng.choice(data.all("polls"))
    option = rng.choice(data.all("options", topic=poll["topic"]))["text"]
    topic = data.one("topics", subject=poll["topic"])
    goal = f'Vote for "{option}" in the poll "{poll["question"]}" of the forum {topic["forum"]}.'
    wanted = data.copy()
    wanted.add("votes", topic=poll["topic"], text=option, voter=ME)
    do = [press(option, "radio"), press("Submit", "button")]
    return Problem(goal=goal, wanted=wanted, expert=script(*_to(topic), *do))


def _edit(data: Data, rng: Random) -> Problem:
    """Change a reply of the agent's own."""
    mine = [one for one in data.all("posts", poster=ME) if one["subject"].startswith("Re: ")]
    post = rng.choice(
        [
            one
            for one in mine
            if len([other for other in mine if other["topic"] == one["topic"]]) == 1
            and data.one("topics", subject=one["topic"])["status"] == _OPEN
        ]
    )
    text, reason = rng.choice(_TEXTS), rng.choice(_REASONS)
    goal = (
        f'Change the message of your reply in the topic "{post["topic"]}" to "{text}", and give '
        f'"{reason}" as the reason.'
    )
    wanted = data.copy()
    wanted.one("posts", topic=post["topic"], content=post["content"], poster=ME).update(
        content=text, reason=reason
    )
    do = [
        press_above("Edit", post["content"]), enter("Message", text),
        enter("Update reason (optional)", reason), press("Submit", "button"),
    ]  # fmt: skip
    topic = data.one("topics", subject=post["topic"])
    return Problem(goal=goal, wanted=wanted, expert=script(*_to(topic), *do))


def _delete(data: Data, rng: Random) -> Problem:
    """Delete one post of a topic, as a moderator may."""
    while True:
        topic = _topic(data, rng)
        posts = data.all("posts", topic=topic["subject"])
        if len(posts) > 1:
            break
    post = rng.choice(posts[1:])
    same = [one["poster"] for one in posts[1:]].count(post["poster"]) > 1
    if same:
        return _delete(data, rng)
    goal = f'Delete the reply of {post["poster"]} in the topic "{topic["subject"]}".'
    wanted = data.copy()
    wanted.drop("posts", topic=topic["subject"], content=post["content"], poster=post["poster"])
    do = [press_above("Delete", post["content"]), press("Yes, I'm sure", "submit")]
    return Problem(goal=goal, wanted=wanted, expert=script(*_to(topic), *do))


def _moderate(data: Data, topic: Row, change: dict[str, object], entry: str, goal: str) -> Problem:
    wanted = data.copy()
    wanted.one("topics", subject=topic["subject"]).update(change)
    return Problem(goal=goal, wanted=wanted, expert=script(*_to(topic), *_menu(entry)))


def _lock(data: Data, rng: Random) -> Problem:
    topic = _topic(data, rng, status=_OPEN)
    goal = f'Lock the topic "{topic["subject"]}".'
    return _moderate(data, topic, {"status": _LOCKED}, "Lock topic", goal)


def _unlock(data: Data, rng: Random) -> Problem:
    """Unlock a topic and reply to it."""
    topic, text = _topic(data, rng, status=_LOCKED), rng.choice(_TEXTS)
    goal = f'Unlock the topic "{topic["subject"]}" and reply to it with the message "{text}".'
    problem = _reply_to(data, topic, text, goal, [*_to(topic), *_menu("Unlock topic")])
    problem.wanted.one("topics", subject=topic["subject"]).update(status=_OPEN)
    return problem


def _pin(data: Data, rng: Random) -> Problem:
    topic = _topic(data, rng, type=_NORMAL)
    goal = f'Make "{topic["subject"]}" a sticky topic.'
    return _moderate(data, topic, {"type": _STICKY}, "Change to sticky topic", goal)


def _move(data: Data, rng: Random) -> Problem:
    topic = _topic(data, rng, status=_OPEN)
    forum = rng.choice([one for one in _FORUMS if one != topic["forum"]])
    goal = f'Move the topic "{topic["subject"]}" to the forum {forum}.'
    wanted = data.copy()
    wanted.one("topics", subject=topic["subject"]).update(forum=forum, status=_MOVED)
    menu, entry, confirm = _menu("Move topic")
    pick = choose("Select a destination forum", f"-- {forum}")
    return Problem(goal=goal, wanted=wanted, expert=script(*_to(topic), menu, entry, pick, confirm))


def _remove(data: Data, rng: Random) -> Problem:
    topic, other = rng.sample(data.all("topics"), 2)
    wanted, do = data.copy(), []
    for subject in (topic["subject"], other["subject"]):
        wanted.drop("topics", subject=subject)
        for table in ("posts", "subscribers", "polls", "options"):
            wanted.drop(table, topic=subject)
    for one in (topic, other):
        do += [press("Forum index", "link"), *_to(one), *_menu("Delete topic")]
    goal = f'Delete the whole topics "{topic["subject"]}" and "{other["subject"]}".'
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _lock_all(data: Data, rng: Random) -> Problem:
    """Lock two or three topics, each on a page of its own."""
    while True:
        forum, user = rng.choice(_FORUMS), rng.choice(("ada", "ben", "cleo", "dan", "eva"))
        topics = data.all("topics", forum=forum, poster=user, status=_OPEN)
        if 2 <= len(topics) <= 3:
            break
    wanted = data.copy()
    followed, do = _subscribe(wanted, rng)
    goal = (
        f'Subscribe to the topic "{followed}", and lock every topic that {user} started in the '
        f"forum {forum} and that is not locked yet."
    )
    for topic in topics:
        wanted.one("topics", subject=topic["subject"]).update(status=_LOCKED)
        do += [press("Forum index", "link"), *_to(topic), *_menu("Lock topic")]
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _subscribe(wanted: Data, rng: Random) -> tuple[str, list[Stage]]:
    """Add a subscription to what is wanted; return its topic and how an expert gets it."""
    followed = {row["topic"] for row in wanted.all("subscribers", user=ME)}
    topic = rng.choice([row for row in wanted.all("topics") if row["subject"] not in followed])
    wanted.add("subscribers", topic=topic["subject"], user=ME)
    do = [press("Subscribe", "link"), press("Yes, I'm sure", "submit")]
    return topic["subject"], [*_to(topic), *do]


def _follow(data: Data, rng: Random) -> Problem:
    wanted = data.copy()
    topic, do = _subscribe(wanted, rng)
    goal = f'Subscribe to the topic "{topic}".'
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _unfollow(data: Data, rng: Random) -> Problem:
    row = rng.choice(data.all("subscribers", user=ME))
    topic = data.one("topics", subject=row["topic"])
    wanted = data.copy()
    followed, do = _subscribe(wanted, rng)
    wanted.drop("subscribers", topic=row["topic"], user=ME)
    goal = f'Subscribe to the topic "{followed}", and unsubscribe from "{topic["subject"]}".'
    do += [
        press("Subscriptions", "link"),
        press(row["topic"], "link"),
        press("Unsubscribe", "link"),
        press("Yes, I'm sure", "submit"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _signature(data: Data, rng: Random) -> Problem:
    text = f"{rng.choice(_SUBJECTS)}? {rng.choice(_TEXTS)}"
    goal = f'Set the signature in your profile to "{text}".'
    wanted = data.copy()
    wanted.one("profiles", user=ME).update(signature=text)
    do = [
        press("Your profile", "link"), press("Edit profile", "link"),
        enter("Signature (optional)", text), press("Submit", "button"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _last(data: Data, rng: Random) -> Problem:
    topic = _topic(data, rng)
    posts = data.all("posts", topic=topic["subject"])
    goal = f'Who wrote the last post in the topic "{topic["subject"]}"? Answer with the name.'
    return question(data, goal, posts[-1]["poster"], _to(topic))


def _count(data: Data, rng: Random) -> Problem:
    forum, user = rng.choice(_FORUMS), rng.choice(("ada", "ben", "cleo", "dan", "eva"))
    number = len(data.all("topics", forum=forum, poster=user))
    goal = f"How many topics of the forum {forum} were started by {user}? Answer with the number."
    return question(data, goal, str(number), [press(forum, "link")])


def _compare(data: Data, rng: Random) -> Problem:
    """Read the number of replies on three pages."""
    while True:
        topics = rng.sample(data.all("topics"), 3)
        sizes = [len(data.all("posts", topic=topic["subject"])) for topic in topics]
        if len({topic["forum"] for topic in topics}) == 3 and sizes.count(max(sizes)) == 1:
            break
    best = topics[sizes.index(max(sizes))]["subject"]
    names = ", ".join(f'"{topic["subject"]}"' for topic in topics)
    goal = f"Which of the topics {names} has the most replies? Answer with its subject."
    look = [stage for one in topics for stage in (press("Forum index"), press(one["forum"]))]
    return question(data, goal, best, look)


GENERATORS: dict[str, ProblemGenerator] = {
    "announce": _announce, "as-other": _as_other, "compare": _compare, "count": _count,
    "delete": _delete, "edit": _edit, "follow": _follow, "last": _last, "lock": _lock,
    "lock-all": _lock_all, "move": _move, "pin": _pin, "poll": _poll, "remove": _remove,
    "reply": _reply, "search": _search, "signature": _signature, "start": _start,
    "unfollow": _unfollow, "unlock": _unlock, "vote": _vote,
}  # fmt: skip
"""Kind of task to what makes one."""


# The environment.


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
