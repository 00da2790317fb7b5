"""A limit of turns judges as ``stop`` or ``submit`` does, in every family whose agent says that."""

from __future__ import annotations

import pytest

import turngym
from turngym import registry
from turngym.environments.core.limits import TokenLimit
from turngym.environments.gym.wrappers import ExpertMatch, limited
from turngym.environments.web.sites.catalogue import PROGRAMS

NAMES = (
    "swe/bugs-mini", "swe/bugs-sample", "terminal/shell-text", "phone/contact-add",
    "desktop/notes-create", "web/forum-lock",
)  # fmt: skip


def one_of_each_family() -> list[object]:
    found = []
    for name in NAMES:
        entry = registry.find(name)
        marks = [pytest.mark.extra(*entry.modules, *entry.programs)] if entry.extra else []
        if name.startswith("web/") and not PROGRAMS["forum"].is_installed:
            needs = "needs it: python -m turngym.environments.web.sites.install forum"
            marks.append(pytest.mark.skip(reason=needs))
        found.append(pytest.param(name, marks=marks))
    return found


def play_to_the_limit(env, *, with_expert: bool):
    """Return the return and the last info of an episode that never says that it is done."""
    _, info = env.reset(seed=3)
    words = info["instructions"]
    assert f"ends after {info['max_turns']} turns at the latest" in words
    assert "stop" in words or "submit" in words
    earned, over, seen = 0.0, False, []
    while not over:
        action = env.get_wrapper_attr("expert_action")() if with_expert else ""
        if action in ("stop", "submit"):
            with_expert, action = False, ""
        observation, reward, terminated, truncated, info = env.step(action)
        seen.append((action, observation))
        earned, over = earned + reward, terminated or truncated
    assert truncated
    assert info["stop_reason"].startswith("truncated")
    return earned, info | {"seen": seen}


@pytest.mark.parametrize("name", one_of_each_family())
def test_return_and_score_agree_at_the_limit(name):
    env = turngym.make(name)
    try:
        earned, info = play_to_the_limit(env, with_expert=True)
        assert (earned, info["score"]) == (1.0, 1.0), info["seen"]
        earned, info = play_to_the_limit(env, with_expert=False)
        assert earned == info["score"] == 0.0
    finally:
        env.close()


def test_other_limits_judge_too_and_an_expert_match_pays_nothing_for_it():
    env, matched = turngym.make("swe/bugs-mini"), ExpertMatch(turngym.make("swe/bugs-mini"))
    for made, wanted in ((env, 0.0), (matched, 1.0)):
        limited(made, TokenLimit(1, len, actions_only=True))
        made.reset(seed=0)
        _, reward, _, truncated, info = made.step(made.get_wrapper_attr("expert_action")())
        assert truncated
        assert reward == wanted
        assert info["score"] == 0.0
        made.close()
