"""Rewards and advantages that users write: functions and classes by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.torch import load_file, save_file

from helpers import custom_credit
from helpers.cli import TINY_RUN
from helpers.trajectories import group
from turngym.config import load_config
from turngym.errors import ConfigError, TrainingError, TurnGymError
from turngym.reports.runs import learning_curve
from turngym.trainers.credit.base import Credit, CreditContext, CreditMethod, TurnBatch
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.credit.custom import custom_source
from turngym.trainers.loop import train
from turngym.trainers.metrics import read_metrics
from turngym.trainers.runs.needs import check_needs
from turngym.trainers.settings.algo import needs_of
from turngym.trainers.settings.rewards import CustomReward
from turngym.trainers.settings.train import TrainConfig

HERE = "helpers.custom_credit"
NO_MODEL = cast(CreditContext, object())
"""None of these methods looks at the model."""
GROUP = group([0.0, 1.0], [0.0, 0.0, 0.5])


def config(**algo: Any) -> TrainConfig:
    return load_config(
        TrainConfig, [{"env": {"id": "text/maze"}, "algo": {"name": "mine", **algo}}]
    )


def own(function: str, **more: Any) -> dict[str, Any]:
    return {"type": "custom", "function": f"{HERE}:{function}", **more}


def method(**algo: Any) -> CreditMethod:
    return build_credit(config(**algo).algo, NO_MODEL)


def advantages(credit: Credit) -> list[list[float]]:
    return [values_T.tolist() for values_T in credit.advantages]


async def test_a_function_decides_what_each_turn_is_worth() -> None:
    found = await method(advantage=own("summed", settings={"weight": 2.0})).assign([GROUP])
    assert advantages(found) == [[0.0, 2.0], [0.0, 0.0, 1.0]]
    [first, second] = found.samples
    assert first.advantages[first.loss_mask].tolist() == [0, 0, 2, 2]  # two tokens a turn
    assert second.advantages[second.loss_mask].tolist() == [0, 0, 0, 0, 1, 1]


async def test_a_function_pays_a_reward_that_shipped_methods_read() -> None:
    terms = [{"rewards": ["custom"], "centre": "none", "scale": "none"}]
    found = await method(
        rewards=[own("early", settings={"bonus": 3.0})],
        advantage={"type": "group_relative", "terms": terms},
    ).assign([GROUP])
    assert advantages(found) == [[3.0, 3.0], [3.0, 3.0, 3.0]]  # the outcome, on every turn


async def test_a_reward_may_speak_on_some_turns_only() -> None:
    rewards = [own("only_last")]
    found = await method(rewards=rewards, advantage=own("summed", rewards=["custom"])).assign(
        [GROUP]
    )
    assert advantages(found) == [[0.0, 2.0], [0.0, 0.0, 2.0]]


async def test_a_function_may_wait() -> None:
    found = await method(advantage=own("halved")).assign([GROUP])
    assert advantages(found) == [[0.0, 0.5], [0.0, 0.0, 0.25]]
    late, plain = (
        CustomReward(type="custom", function=f"{HERE}:{name}") for name in ("Late", "Counting")
    )
    assert (late.waits(late.imported()), plain.waits(plain.imported())) == (True, False)
    turns = TurnBatch.of([GROUP])
    read = [custom_source(one, NO_MODEL).read(turns)["custom"] for one in (late, plain)]
    assert read[0].values_N.tolist() == read[1].values_N.tolist()


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_a_judge_of_turns_is_asked_in_one_loop_beside_the_episodes(
    tmp_path: Path, mode: str
) -> None:
    custom_credit.LOOPS.clear()
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    terms = [{"rewards": ["custom"], "returns": "reward_to_go", "unit": "turn"}]
    algo = {
        "name": "mine",
        "rewards": [own("judged", settings={"judge": f"{HERE}:count_letters"})],
        "advantage": {"type": "group_relative", "terms": terms},
    }
    more: dict[str, Any] = {"algo": algo, "rollout": {"mode": mode}}
    if mode == "overlap":
        more["algo"]["loss"] = {"old_policy": "behaviour"}
    train(load_config(TrainConfig, [tmp_path / "tiny.toml", more]), tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert sum("train/loss" in row for row in rows) == 2
    assert len(custom_credit.LOOPS) == 1
    assert not next(iter(custom_credit.LOOPS)).is_closed()


async def test_a_class_may_learn_and_is_kept_in_checkpoints() -> None:
    algo = {"rewards": [own("Counting")], "advantage": own("summed", rewards=["custom"])}
    first = method(**algo)
    warming = await first.assign([GROUP])
    assert (warming.samples, dict(warming.dropped)) == ((), {"warmup": 1})
    assert advantages(await first.assign([GROUP])) == [[2.0, 2.0], [2.0, 2.0, 2.0]]
    second = method(**algo)
    second.load_state(first.state())
    again = await second.assign([GROUP])
    assert again.metrics == {"credit/asked": 3.0}
    assert len(again.samples) == 2


async def test_tensors_that_share_memory_are_kept_in_checkpoints(tmp_path: Path) -> None:
    first, second = method(advantage=own("Tied")), method(advantage=own("Tied"))
    await first.assign([GROUP])
    save_file(dict(first.state()), tmp_path / "credit.safetensors")
    second.load_state(load_file(tmp_path / "credit.safetensors"))
    assert second.state()["head"].tolist() == [[1.0, 1.0]] * 3


async def test_a_class_may_be_a_whole_method() -> None:
    made = method(advantage=own("Nothing", settings={"depth": 2}))
    assert (await made.assign([GROUP])).metrics == {"credit/groups": 1.0, "credit/depth": 2.0}


async def test_a_wrong_number_of_values_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"too_short': returned shape \(4,\), wanted .* \(5,\)"):
        await method(advantage=own("too_short")).assign([GROUP])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("breaks", r"'helpers\.custom_credit:breaks': KeyError: 'no' \(custom_credit\.py:\d+ in "),
        ("leaves", r"leaves': SystemExit: 0 \(custom_credit\.py:\d+ in leaves\)"),
        ("says_words", "says_words': ValueError: could not convert string to float"),
        ("Half", r"lacks state, load_state of turngym\.trainers\.credit\.base\.CreditMethod"),
    ],
)
async def test_what_breaks_in_a_function_is_one_line_with_its_place(
    function: str, message: str
) -> None:
    with pytest.raises(TurnGymError, match=message):
        await method(advantage=own(function)).assign([GROUP])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("is_ready", r"Broken': ZeroDivisionError: .* \(custom_credit\.py:\d+ in is_ready\)"),
        ("other", "Broken': read: 'custom' gave a NoneType, wanted a RewardComponent"),
        ("bare", "Broken': read gave a ndarray, wanted a Mapping"),
        ("metrics", "Broken': ValueError: could not convert string to float: 'often'"),
        ("name", "Broken': metrics has 'step', wanted 'credit/...'"),
        ("state", "Broken': state gave a float, wanted a Tensor"),
        ("key", "Broken': state: a key gave a int, wanted a str"),
        ("sparse", "Broken': RuntimeError: "),
    ],
)
async def test_what_breaks_in_a_class_of_rewards_is_one_line(where: str, message: str) -> None:
    terms = [{"rewards": ["custom"]}]
    rewards = [own("Broken", settings={"where": where})]

    async def use() -> None:
        made = method(rewards=rewards, advantage={"type": "group_relative", "terms": terms})
        await made.assign([GROUP])
        made.state()

    with pytest.raises(TurnGymError, match=message):
        await use()


async def test_what_breaks_in_a_class_of_credit_is_one_line() -> None:
    made = method(advantage=own("BrokenMethod"))
    with pytest.raises(TrainingError, match=r"KeyError: 'no' \(custom_credit\.py:\d+ in assign\)"):
        await made.assign([GROUP, GROUP])
    with pytest.raises(ConfigError, match="BrokenMethod': assign gave a NoneType, wanted a Credit"):
        await made.assign([GROUP])
    with pytest.raises(ConfigError, match="BrokenMethod': state gave a NoneType, wanted a Mapping"):
        made.state()
    with pytest.raises(TrainingError, match=r"KeyError: 'asked' \(custom_credit\.py:\d+ in load"):
        made.load_state({})


async def test_a_reward_says_as_many_truths_as_values() -> None:
    terms = [{"rewards": ["custom"]}]
    algo = {"advantage": {"type": "group_relative", "terms": terms}}
    with pytest.raises(ConfigError, match=r"lopsided': returned shape \(1,\), wanted .* \(5,\)"):
        await method(rewards=[own("lopsided")], **algo).assign([GROUP])


async def test_values_that_are_not_finite_stop_the_run_with_the_episode() -> None:
    with pytest.raises(TrainingError, match="made/train/0, attempt 1, turn 2: advantage is nan"):
        await method(advantage=own("not_finite")).assign([GROUP])
    compares = {"type": "group_relative", "terms": [{}]}
    with pytest.raises(TrainingError, match=r"made/train/0, attempt 0, turn 0: reward is 1e\+300"):
        await method(advantage=compares).assign([group([1e300, 0.0], [0.0])])


async def test_a_batch_without_episodes_teaches_nothing() -> None:
    found = await method(advantage=own("summed")).assign([group([])])
    assert (found.samples, dict(found.dropped)) == ((), {"too_small": 1})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("sumed", "Did you mean 'helpers.custom_credit:summed'"),
        ("NUMBER", "wanted a function or a class, found a int"),
    ],
)
def test_a_function_that_is_not_there_is_refused_before_anything_starts(
    function: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_needs(config(advantage=own(function)))
    with pytest.raises(ConfigError, match=message):
        check_needs(
            config(
                rewards=[own(function)],
                advantage={"type": "group_relative", "terms": [{"rewards": ["custom"]}]},
            )
        )


def test_settings_that_a_function_does_not_take_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"summed', settings: .* argument 'wieght'"):
        check_needs(config(advantage=own("summed", settings={"wieght": 2.0})))
    terms = [{"rewards": ["custom"]}]
    with pytest.raises(ConfigError, match=r"early', settings: .* argument 'bouns'"):
        check_needs(
            config(
                rewards=[own("early", settings={"bouns": 1.0})],
                advantage={"type": "group_relative", "terms": terms},
            )
        )


def test_a_module_that_is_not_there_is_refused() -> None:
    algo = {"type": "custom", "function": "no_such_module:f"}
    with pytest.raises(ConfigError, match="no module 'no_such_module' here or installed"):
        check_needs(config(advantage=algo))


def test_what_a_function_needs_is_asked_of_the_environment() -> None:
    settings = config(
        rewards=[own("early", needs=["potential"])],
        advantage=own("summed", rewards=["custom"], needs=["state_key"]),
    )
    assert needs_of(settings.algo.rewards, settings.algo.advantage) == ["potential", "state_key"]
    check_needs(settings)
    with pytest.raises(ConfigError, match="does not give what algo 'mine' needs"):
        check_needs(config(advantage=own("summed", needs=["ground_truth"])))


def test_channels_that_a_function_reads_must_be_there() -> None:
    with pytest.raises(ConfigError, match="reads the reward 'outcome'"):
        config(advantage=own("summed", rewards=["outcome"]))


def test_tokens_that_a_method_draws_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    algo = {"name": "mine", "advantage": own("Drawing")}
    train(load_config(TrainConfig, [tmp_path / "tiny.toml", {"algo": algo}]), tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    trained = [row for row in rows if "credit/counted" in row]
    assert len(trained) == 2
    for row in trained:
        assert row["credit/sampled_tokens"] == row["credit/counted"] > 0
    drawn = sum(row["rollout/tokens"] + row["credit/counted"] for row in trained)
    assert learning_curve(rows)[1][-1] == drawn
