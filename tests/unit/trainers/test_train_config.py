"""Every shipped run loads, presets are what they claim, and contradictions are refused."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic._internal._docs_extraction import extract_docstrings_from_cls

from turngym.config import StrictModel, load_config, to_toml, toml_files
from turngym.errors import ConfigError
from turngym.rollouts.scheduler.config import Capacity, InOrder, ReadyFirst, Windowed
from turngym.trainers.settings.surrogates import PolicyGradient, PpoClip
from turngym.trainers.settings.train import TrainConfig, recipes

PRESETS = sorted(toml_files(files("turngym.trainers") / "presets"))


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, ["env.id=text/maze", *overrides])


def test_the_shipped_presets_are_there() -> None:
    assert {"grpo", "dr_grpo", "rloo", "trloo", "gigpo"} <= set(PRESETS)


SHIPPED = {"search": "igpo"}
"""What a shipped run trains with, where it is not GRPO."""


@pytest.mark.parametrize("recipe", recipes())
@pytest.mark.parametrize("algo", [None, *PRESETS])
def test_every_shipped_run_loads_with_every_preset(recipe: str, algo: str | None) -> None:
    sources = [recipe] + ([f"algo={algo}"] if algo else [])
    assert load_config(TrainConfig, sources).algo.name == (algo or SHIPPED.get(recipe, "grpo"))


@pytest.mark.parametrize("name", PRESETS)
def test_the_name_of_a_preset_is_its_file(name: str) -> None:
    assert config(f"algo={name}").algo.name == name


def test_presets_choose_the_parts_of_their_papers() -> None:
    parts = {
        name: (term.returns, term.centre, term.scale, a.loss.aggregation)
        for name in ("grpo", "dr_grpo", "rloo", "trloo")
        if (a := config(f"algo={name}").algo) and (term := a.advantage.terms[0])
    }
    assert parts["grpo"] == ("outcome", "mean", "std", "seq_mean_token_mean")
    assert parts["dr_grpo"] == ("outcome", "mean", "none", "seq_mean_token_sum_const")
    assert parts["rloo"] == ("outcome", "leave_one_out", "none", "seq_mean_token_sum")
    assert parts["trloo"][:3] == ("reward_to_go", "leave_one_out", "none")
    assert isinstance(config("algo=rloo").algo.loss.surrogate, PolicyGradient)
    assert config("algo=trloo").algo.loss.surrogate == PpoClip(clip_low=0.2, clip_high=0.28)


def test_presets_leave_the_regularizer_alone() -> None:
    found = config("regularizer.entropy_coefficient=0.01", "algo=rloo")
    assert found.regularizer.entropy_coefficient == 0.01


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown algo preset 'gigop'. Did you mean 'gigpo'\?"):
        config("algo=gigop")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=rloo", "learner.num_epochs=2"], "'pg' has no trust region"),
        (["algo=rloo", "learner.num_minibatches=2"], "make 2 optimizer steps per batch"),
        (["rollout.group_size=1"], "leaves nothing to compare with"),
        (["rollout.group_size=1", "algo=starpo_s_ppo"], "leaves nothing to compare with"),
        (
            ["rollout.group_size=1", "algo=ppo", "selection.filter.spread=true"],
            "leaves nothing to compare with",
        ),
        (
            ["selection.sampler.type=thompson", "env.id=", 'env.mix=["text/maze", "text/taxi"]'],
            "selection learns .* set env.num_train_tasks, of one environment and no mix",
        ),
        (
            ["algo=gdpo", 'algo.advantage.terms.0.reward_weights={"env": 2}'],
            "reward_weights weighs 'env', which is none of this term's rewards: parts",
        ),
        (["env.num_train_tasks=64"], "leaves none of env.num_train_tasks=64 to train on"),
        (["rollout.temperature=0"], "rollout.temperature: .*greater than 0"),
        (["model.image_size=20"], "image_size=20 must be a multiple of patch_size=8"),
    ],
)
def test_parts_that_do_not_fit_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


def test_a_divergence_from_the_start_is_trust_region_enough() -> None:
    found = config("algo=rloo", "learner.num_epochs=2", "regularizer.kl_coefficient=0.1")
    assert found.learner.steps_per_batch == 2


BF16 = ["engine.type=vllm", "engine.dtype=bfloat16"]


@pytest.mark.parametrize("old_policy", ["behaviour", "current"])
def test_log_probs_of_a_less_exact_engine_are_not_taken_for_the_learners(old_policy: str) -> None:
    chosen = [*BF16, f"algo.loss.old_policy={old_policy}"]
    with pytest.raises(ConfigError, match="difference between engine and learner"):
        config(*chosen)
    assert config(*chosen, "engine.dtype=float32").engine.type == "vllm"
    assert config(*BF16, "algo.loss.old_policy=proximal").engine.type == "vllm"


def test_servers_need_a_folder_for_weights() -> None:
    with pytest.raises(ConfigError, match=r"set engine\.folder"):
        config("engine.type=vllm", 'engine.urls=["http://127.0.0.1:1"]')


def test_a_loss_of_whole_groups_refuses_groups_of_one() -> None:
    with pytest.raises(ConfigError, match="group_size=1 leaves nothing to compare with"):
        config("algo=pacs", "rollout.group_size=1")


def test_arguments_of_servers_leave_alone_what_other_settings_decide() -> None:
    for taken in ('["--seed", "3", "--max-model-len", "512"]', '["--max-model-len=512"]'):
        with pytest.raises(ConfigError, match=r"--max-model-len is set by model\.context"):
            config("engine.type=vllm", f"engine.args={taken}")
    assert config("engine.type=vllm", 'engine.args=["--seed", "3"]').engine.type == "vllm"


def test_resolved_settings_read_back_the_same(tmp_path: Path) -> None:
    file = tmp_path / "resolved.toml"
    for name in PRESETS:
        found = config(f"algo={name}", 'env.options={"difficulty": "hard"}')
        file.write_text(to_toml(found))
        assert load_config(TrainConfig, [file]) == found


def models_in(annotation: Any) -> list[type[StrictModel]]:
    """Return the blocks that a field may hold, whatever it wraps them in."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


@cache
def documented_in(block: type) -> set[str]:
    """Return the settings of a class that a text follows."""
    return set(extract_docstrings_from_cls(block, use_inspect=True))


@cache
def undocumented(model: type[StrictModel]) -> list[str]:
    """Return the settings without a word on them, those of all blocks below included."""
    found = [] if model.__doc__ else [model.__name__]
    said = {name for base in model.__mro__ for name in documented_in(base)}
    for name, field in model.model_fields.items():
        below = models_in(field.annotation)
        found += [what for block in below for what in undocumented(block)]
        if not below and name not in said and name not in SELF_EXPLAINING:
            found.append(f"{model.__name__}.{name}")
    return found


SELF_EXPLAINING = (
    "type",
    "architecture",
    "weight_decay",
    "beta1",
    "beta2",
    "lr",
    "layers",
    "heads",
    "grad_clip",
)


def test_every_setting_is_documented() -> None:
    assert sorted(set(undocumented(TrainConfig))) == []


def test_settings_are_read_without_torch() -> None:
    code = (
        "import sys\n"
        "from turngym.config import load_config\n"
        "from turngym.trainers.settings.train import TrainConfig, recipes\n"
        "load_config(TrainConfig, ['env.id=text/maze', 'algo=grpo'])\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("old", "line"),
    [
        ("warm_start.oracle_noise=0.1", "warm_start.oracle_noise: has a new name: warm_start.ex"),
        ("algo.loss.ratio_anchor=prox", "ratio_anchor: has a new name: algo.loss.old_policy"),
        ("algo.advantage.terms.0.singleton=raw", "has a new name: .*group_of_one"),
        ("algo.advantage.terms.0.group_by=anchor", "group_by=anchor: has a new name: state"),
        (
            'algo.rewards=[{"type": "custom", "function": "mine:earned", "needs": ["anchor"]}]',
            "algo.rewards.0.needs.0=anchor: has a new name: state_key",
        ),
    ],
)
def test_an_old_name_of_a_setting_says_the_new_one(old: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        config("algo=gigpo", old)


@pytest.mark.parametrize("setting", ["agent.prompt=react", "agent.show_legal_actions=true"])
def test_an_expert_is_not_imitated_in_other_words_than_its_own(setting: str) -> None:
    with pytest.raises(ConfigError, match="answers with its action alone"):
        config(setting)
    assert config(setting, "warm_start.episodes=0").agent != config().agent


@pytest.mark.parametrize("place", ["learner.dtype", "engine.dtype"])
def test_no_ratio_is_taken_between_engine_and_learner_of_other_rounding(place: str) -> None:
    setting, behaviour = f"{place}=bfloat16", "algo.loss.old_policy=behaviour"
    with pytest.raises(ConfigError, match="old_policy='behaviour' takes the difference"):
        config(setting, behaviour)
    assert config(setting).algo.loss.old_policy == "proximal"
    assert config(behaviour).learner.dtype == "float32"


def test_everything_that_the_scheduler_can_is_set_in_rollout() -> None:
    settings = {
        "group": {"quorum": 3, "patience": 2.0, "redundancy": 1, "late": "carry"},
        "retry": {"max_tries": 7, "quarantine_after": 9},
        "failures": {"window": 50, "fraction": 0.4},
        "budget": {"max_turns": 9, "max_tokens": 99, "extra_turns": 2, "max_extensions": 3},
        "deadlines": {"reset_s": 5.0, "act_s": 6.0, "step_s": 7.0, "close_s": 8.0},
        "concurrency": 17,
        "groups_per_step": 5,
        "timeout_s": 70.0,
        "interruption": "drain",
        "oversampling": 1.5,
        "buffer_groups": 99,
        "watchdog_s": 33.0,
        "keep_packed": 11,
        "stale": "train_partial",
    }
    ahead = {"mode": "overlap", "admission": "windowed", "staleness": 3}
    admission = {"type": "windowed", "staleness": 3, "pace": False, "freshest": True}
    sources = ["demo", "algo=ppo", {"rollout": settings | ahead}]
    both = ["rollout.pace=false", "rollout.freshest=true"]
    schedule = load_config(TrainConfig, [*sources, *both]).rollout.schedule().model_dump()
    # Barriers exist to be compared with.
    assert settings.keys() | {"admission", "barrier"} == schedule.keys()
    assert {name: schedule[name] for name in settings} == settings
    assert schedule["admission"] == admission
    kinds = (InOrder, ReadyFirst, Windowed, Capacity)
    assert {name for kind in kinds for name in kind.model_fields} == admission.keys()


@pytest.mark.parametrize("algo", ["scale_rl", "pacs", "tba"])
def test_imitated_attempts_are_refused_where_attempts_are_judged_by_their_group(algo: str) -> None:
    with pytest.raises(ConfigError, match="attempts without a group"):
        config(f"algo={algo}", 'selection.replay={"type": "imitation"}')
