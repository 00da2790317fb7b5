"""Makes the forum that episodes begin with. Runs in the forum's own Python.

Usage: python seed.py DATA NUMBER     (each number gives other content)
"""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from django_site import START, make_tables, sign_in
from project import set_up

USERS = ("ada", "ben", "cleo", "dan", "eva")
"""The agent acts for the first one, who moderates."""
FORUMS = {
    "Growing": ("Vegetables", "Fruit trees", "Flowers"),
    "Around the house": ("Tools", "Swap corner"),
}
TOPICS = {
    "Vegetables": (
        "Tomatoes under glass", "Slugs in the lettuce", "When to sow carrots",
        "Beans that climb", "Storing potatoes", "Peppers from seed",
    ),
    "Fruit trees": (
        "Pruning an old apple tree", "Cherries before the birds", "Pears for a north wall",
        "Plum jam", "Planting in autumn",
    ),
    "Flowers": (
        "Roses and greenfly", "Tulips every year", "A meadow instead of a lawn",
        "Dahlias in winter", "Sunflowers for children",
    ),
    "Tools": (
        "Sharpening a spade", "Which hose lasts", "Repairing a wheelbarrow", "A shed of pallets",
    ),
    "Swap corner": (
        "Giving away strawberry plants", "Looking for a rain barrel", "Seed swap in March",
        "Two garden chairs",
    ),
}  # fmt: skip
SENTENCES = (
    "It worked well last year.", "Start early and be patient.", "I would not do that again.",
    "Mine stand on the south side.", "A neighbour told me the same.", "Water only in the morning.",
    "The soil here is heavy clay.", "Compost makes all the difference.", "Mind the late frost.",
    "We tried it three times.", "My grandmother swore by it.", "Half of them came up.",
)  # fmt: skip
THINGS = (
    "copper tape", "straw mulch", "coffee grounds", "wood ash", "old curtains", "egg boxes",
    "nettle tea", "bamboo canes", "beer traps", "horse manure", "green soap", "seaweed",
)  # fmt: skip
POLLS = {
    "Seed swap in March": ("Where do we meet?", ("Town hall", "School yard", "My barn")),
    "When to sow carrots": ("Which month is best?", ("March", "April", "May", "June")),
    "Tulips every year": ("Lift the bulbs in summer?", ("Yes", "No", "Only the old ones")),
}
LOCKED = ("Plum jam", "Which hose lasts", "Two garden chairs")
STICKY = ("Planting in autumn",)
FOLLOWED = (
    "Storing potatoes", "Beans that climb", "Plum jam", "Roses and greenfly", "Dahlias in winter",
    "A shed of pallets", "Sharpening a spade", "Two garden chairs",
)  # fmt: skip
"""Topics that the agent's user subscribed to."""


def main(data: Path, number: int) -> None:
    clock = set_up(data)
    clock.fixed = START
    make_tables(data)
    users = make_users()
    forums = make_forums()
    draw = random.Random(5 + 1_000 * number)
    minute = 0
    for forum, subjects in TOPICS.items():
        for subject in subjects:
            minute = make_topic(forums[forum], subject, users, draw, clock, minute)
    finish(users, forums)


def make_users() -> dict[str, Any]:
    from django.contrib.auth.models import User
    from machina.apps.forum_permission.models import ForumPermission, UserForumPermission

    users = {name: User.objects.create_user(name, password=f"{name}-secret") for name in USERS}
    for permission in ForumPermission.objects.all():
        if "file" in permission.codename:
            continue
        of_all = permission.codename in (
            "can_see_forum", "can_read_forum", "can_start_new_topics", "can_reply_to_topics",
            "can_delete_own_posts", "can_edit_own_posts", "can_post_without_approval",
            "can_create_polls", "can_vote_in_polls",
        )  # fmt: skip
        UserForumPermission.objects.create(
            permission=permission,
            user=None if of_all else users[USERS[0]],
            authenticated_user=of_all,
            has_perm=True,
        )
        if permission.codename in ("can_see_forum", "can_read_forum"):
            UserForumPermission.objects.create(
                permission=permission, anonymous_user=True, has_perm=True
            )
    sign_in(users[USERS[0]])
    return users


def make_forums() -> dict[str, Any]:
    from machina.apps.forum.models import Forum

    forums = {}
    for category, names in FORUMS.items():
        above = Forum.objects.create(name=category, type=Forum.FORUM_CAT)
        for name in names:
            forums[name] = Forum.objects.create(name=name, type=Forum.FORUM_POST, parent=above)
    return forums


def make_topic(
    forum: Any, subject: str, users: dict[str, Any], draw: random.Random, clock: Any, minute: int
) -> int:
    from machina.apps.forum_conversation.forum_polls.models import TopicPoll, TopicPollOption
    from machina.apps.forum_conversation.models import Post, Topic

    poster = users[draw.choice(USERS)]
    topic = Topic.objects.create(
        forum=forum,
        poster=poster,
        subject=subject,
        type=Topic.TOPIC_STICKY if subject in STICKY else Topic.TOPIC_POST,
        status=Topic.TOPIC_LOCKED if subject in LOCKED else Topic.TOPIC_UNLOCKED,
    )
    for number in range(draw.randint(1, 6)):
        minute += draw.randint(7, 90)
        clock.fixed = START + timedelta(minutes=minute)
        thing = draw.choice(THINGS)
        text = f"{draw.choice(SENTENCES)} Have you tried {thing}? {draw.choice(SENTENCES)}"
        Post.objects.create(
            topic=topic,
            poster=users[draw.choice(USERS)] if number else poster,
            subject=f"Re: {subject}" if number else subject,
            content=text,
        )
    if subject in POLLS:
        question, options = POLLS[subject]
        poll = TopicPoll.objects.create(topic=topic, question=question, max_options=1)
        for option in options:
            TopicPollOption.objects.create(poll=poll, text=option)
    return minute


def finish(users: dict[str, Any], forums: dict[str, Any]) -> None:
    from machina.apps.forum_conversation.models import Topic
    from machina.apps.forum_member.models import ForumProfile

    for topic in Topic.objects.all():
        topic.update_trackers()
        if topic.subject in FOLLOWED:
            topic.subscribers.add(users[USERS[0]])
    for user in users.values():
        profile, _ = ForumProfile.objects.get_or_create(user=user)
        profile.posts_count = user.posts.count()
        profile.save()
    for forum in forums.values():
        forum.refresh_from_db()
        forum.update_trackers()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
