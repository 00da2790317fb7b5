import asyncio

import pytest

import turngym
from turngym.agents.policy import EpisodeContext, Policy
from turngym.agents.scripted import (
    ExpertPolicy,
    FunctionPolicy,
    InlinePolicy,
    NoopPolicy,
    RandomPolicy,
)
from turngym.errors import ConfigError
from turngym.rollouts.episode import group_specs
from turngym.rollouts.evaluation.evaluate import collect
from turngym.types import Trajectory


def play(policy: Policy, *, env: str = "text/maze", episodes: int = 1) -> list[Trajectory]:
    task = turngym.make(env).unwrapped.task("test", 0)
    specs = group_specs(env, task, seed=1, group_size=episodes)
    return asyncio.run(collect(lambda: turngym.make(env), policy, specs, concurrency=2))


def actions(trajectory: Trajectory) -> list[str]:
    return [turn.action.content for turn in trajectory.turns]


def test_expert_solves_and_noise_makes_it_err() -> None:
    [clean] = play(ExpertPolicy())
    noisy = play(ExpertPolicy(noise=1.0), episodes=8)
    assert clean.is_success
    assert len({tuple(actions(t)) for t in noisy}) > 1
    assert not all(t.is_success for t in noisy)


def test_noise_may_be_kept_to_some_commands() -> None:
    played = play(ExpertPolicy(0.9, ["ask"]), env="text/guesscity", episodes=16)
    guesses = [a for t in played for a in actions(t) if not a.startswith("ask")]
    assert guesses
    assert sum(t.is_success for t in played) == len(guesses)  # none was drawn, so all are right
    assert min(len(t.turns) for t in played) < max(len(t.turns) for t in played)


def test_noise_of_a_command_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"begins with \['say'\]; they begin with \['ask', 'guess'\]"
    ):
        play(ExpertPolicy(0.5, ["ask", "say"]), env="text/guesscity")
    with pytest.raises(ConfigError, match="must be a list, got 'ask'"):
        ExpertPolicy(0.5, "ask")


def test_random_actions_are_legal_and_follow_the_policy_seed() -> None:
    first, second = play(RandomPolicy(), episodes=2)
    again, _ = play(RandomPolicy(), episodes=2)
    assert actions(first) == actions(again) != actions(second)
    assert all(turn.invalid_action is None for turn in first.turns)


def test_noop_never_solves_and_every_turn_is_invalid() -> None:
    [trajectory] = play(NoopPolicy())
    assert trajectory.score == 0.0
    assert all(turn.invalid_action for turn in trajectory.turns)


def test_function_sees_observation_and_info() -> None:
    [trajectory] = play(FunctionPolicy(lambda seen, info: info["legal_actions"][len(seen) - 1]))
    assert actions(trajectory)[0].startswith("go ")


def test_person_answers_the_observation_they_were_shown() -> None:
    shown: list[str] = []

    def ask(prompt: str) -> str:
        shown.append(prompt)
        return "go north"

    [trajectory] = play(InlinePolicy(lambda seen, _: ask(seen["text"])))
    assert len(shown) == len(trajectory.turns)
    assert trajectory.turns[0].observation[0].content in shown[0]


def test_wrong_noise_and_missing_expert_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"noise must lie in \[0, 1\], got 2"):
        ExpertPolicy(noise=2)
    context = EpisodeContext(env_id="x/y", task_id="t", seed=0, instructions="")
    with pytest.raises(ConfigError, match="'x/y' has no expert"):
        ExpertPolicy().start(context)
