"""What a comparison runs: equal starts, equal episodes, equal tasks, and nothing that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.cli import TINY_RUN
from helpers.runs import write_run
from helpers.signals import register_for_a_while
from turngym.agents.engine.config import PretrainedModelConfig
from turngym.config import load_config
from turngym.errors import ConfigError, UnknownNameError
from turngym.trainers.runs.comparison import ComparedAlgo, Heat, Source, plan, shipped_config
from turngym.trainers.runs.run_folder import RunFolder
from turngym.trainers.settings.train import TrainConfig

GRPO = ComparedAlgo(name="grpo", algo="grpo")
NULL = "algo.advantage.batch=null"
RLOO = ComparedAlgo(name="rloo", algo="rloo", settings=("learner.num_minibatches=1",))


@pytest.fixture
def settings(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_RUN)
    return str(path)


def planned(out: Path, *sources: Source, **changes: Any) -> list[Heat]:
    wanted: dict[str, Any] = {
        "envs": [],
        "compared": [GRPO, RLOO],
        "seeds": range(2),
        "budget_episodes": 42,
        **changes,
    }
    return plan(wanted.pop("envs"), wanted.pop("compared"), sources=sources, out=out, **wanted)


def test_a_comparison_that_was_moved_goes_on(tmp_path: Path, settings: str) -> None:
    [heat] = planned(tmp_path / "before", settings, seeds=[0])
    begun, fresh = heat.runs
    with RunFolder(begun.folder, begun.config) as folder:
        folder.conclude({"updates": 3})
    (tmp_path / "before").rename(tmp_path / "after")
    [heat] = planned(tmp_path / "after", settings, seeds=[0])
    assert heat.runs[0].config == begun.config, "its weights are in its checkpoints"
    assert heat.runs[1].config != fresh.config, "it begins where the model is now"


def test_all_begin_with_one_model_and_play_as_many_episodes(tmp_path: Path, settings: str) -> None:
    heats = planned(tmp_path, settings, "learner.num_minibatches=2", "evaluation.every=3")
    assert [heat.runs[0].seed for heat in heats] == [0, 1]
    for heat in heats:
        assert heat.warm_start is not None
        warm = heat.warm_start.config
        assert (warm.run.steps, warm.warm_start.episodes, warm.model.type) == (0, 16, "tiny")
        assert [run.name for run in heat.runs] == ["grpo", "rloo"]
        for run in heat.runs:
            config = run.config
            assert isinstance(config.model, PretrainedModelConfig)
            assert config.model.path == str(heat.start)
            assert config.model.context == warm.model.context == 256
            assert config.warm_start.episodes == 0
            assert config.run.seed == warm.run.seed == heat.runs[0].seed
            assert config.run.steps == 10  # 42 episodes in steps of 2 * 2
            assert config.evaluation.target_success is None
            assert config.evaluation.every == 3
            assert config.algo.name == run.name
        minibatches = [run.config.learner.num_minibatches for run in heat.runs]
        assert minibatches == [2, 1]
    folders = {run.folder for heat in heats for run in heat.runs}
    assert folders == {
        tmp_path / "text-maze" / f"seed-{seed}" / name
        for seed in range(2)
        for name in ("grpo", "rloo")
    }


def test_an_algorithm_may_have_another_group_size_at_the_same_budget_and_evaluations(
    tmp_path: Path, settings: str
) -> None:
    big = ComparedAlgo(name="big", algo="grpo", settings=("rollout.group_size=4",))
    sources = [settings, "evaluation.every=4"]
    [heat, *_] = planned(tmp_path, *sources, compared=[GRPO, big], budget_episodes=40)
    found = {run.name: (run.config.run.steps, run.config.evaluation.every) for run in heat.runs}
    assert found == {"grpo": (10, 4), "big": (5, 2)}


def test_settings_survive_the_way_through_a_file(tmp_path: Path, settings: str) -> None:
    [heat, *_] = planned(tmp_path, settings)
    for run in heat.runs:
        run.write_settings()
        assert load_config(TrainConfig, [run.settings_file]) == run.config
        assert not run.is_done


def test_a_run_with_fewer_updates_than_a_greater_budget_wants_is_not_done(
    tmp_path: Path, settings: str
) -> None:
    for budget, is_done in ((42, True), (44, False), (30, True)):
        run = planned(tmp_path, settings, budget_episodes=budget)[0].runs[0]
        if not run.folder.exists():
            write_run(run.folder, (0.1, 0.2), algo="grpo", seed=0, updates=10)
            (run.folder / "config.json").unlink()
        assert run.is_done == is_done, budget
    (run.folder / "summary.json").write_text("{")
    assert run.is_done  # so that the report names the file


def test_a_pretrained_model_without_imitation_needs_no_warm_start(tmp_path: Path) -> None:
    own = ["env.id=text/maze", "warm_start.episodes=0", "rollout.group_size=4"]
    own += ['model={"type": "pretrained", "path": "some/model"}', "rollout.groups_per_step=1"]
    [heat, *_] = planned(tmp_path, *own, envs=["text/maze"])
    assert heat.warm_start is None
    models = [run.config.model for run in heat.runs]
    assert [m.path for m in models if isinstance(m, PretrainedModelConfig)] == ["some/model"] * 2


def test_another_environment_does_not_inherit_options(tmp_path: Path, settings: str) -> None:
    options = ["env.num_train_tasks=50"]
    own = planned(tmp_path, settings, *options)[0].runs[0].config.env
    assert (own.id, own.num_train_tasks) == ("text/maze", 50)
    Path(settings).write_text(TINY_RUN.replace("[model]", "num_train_tasks = 50\n\n[model]"))
    same = planned(tmp_path, settings, envs=["turngym/Maze-easy-v0"])[0].runs[0].config.env
    other = planned(tmp_path, settings, envs=["text/taxi"])[0].runs[0].config.env
    assert (other.id, other.num_train_tasks) == ("text/taxi", None)
    assert same.id == "text/maze-easy"


def test_mappings_and_paths_are_sources_as_for_training(tmp_path: Path, settings: str) -> None:
    changes = {"rollout": {"group_size": 4}, "env": {"id": "text/maze", "num_train_tasks": 500}}
    by_text = [settings, "rollout.group_size=4", "env.num_train_tasks=500"]
    for env in ("text/maze", "text/taxi"):
        [[wanted, _], [found, _]] = (
            planned(tmp_path, *sources, envs=[env])
            for sources in (by_text, [Path(settings), changes])
        )
        assert found == wanted
    shipped = planned(tmp_path, {}, changes, envs=["text/taxi"], budget_episodes=640)
    assert shipped[0].runs[0].config.rollout.groups_per_step == 16  # no file: those of the recipe


def test_without_a_file_the_shipped_settings_are_used(tmp_path: Path) -> None:
    assert shipped_config("text/taxi")["env"]["id"] == "text/taxi"
    assert shipped_config("text/taxi-easy")["learner"] == shipped_config("text/taxi")["learner"]
    demo = shipped_config("text/maze")
    other = shipped_config("text/wordle")
    assert other["env"]["id"] == "text/wordle"
    assert other["rollout"] == demo["rollout"]
    [heat] = planned(tmp_path, envs=["text/taxi"], seeds=[0], budget_episodes=128, compared=[GRPO])
    assert heat.runs[0].config.rollout.groups_per_step == 16


@pytest.mark.parametrize(
    ("changes", "sources", "message"),
    [
        ({"budget_episodes": 3}, [], "--budget-episodes 3: one update of 'grpo' takes 4 episodes"),
        ({}, ["run.steps=3"], "run.steps: compare sets it itself"),
        ({}, ["evaluation.target_success=0.5"], "evaluation.target_success: compare sets"),
        ({}, [{"run": {"steps": 3}}], "run.steps: compare sets it itself"),
        ({}, ["algo.name=x"], "algo.name: algorithms come from --algos; to change one, --set NAME"),
        ({}, ["learner.lrr=1"], "learner.lrr: unknown key. Did you mean 'lr'?"),
        ({"envs": ["text/mze"]}, [], "Did you mean 'text/maze'?"),
        ({"compared": [ComparedAlgo(name="a", algo="gpro")]}, [], "a: unknown algo preset 'gpro'"),
        (
            {"compared": [ComparedAlgo(name="a", algo="grpo", settings=("env.id=text/taxi",))]},
            [],
            "a:env.id: --set and --try may only have algo, engine, learner, ",
        ),
        (
            {"compared": [ComparedAlgo(name="a", algo="ppo", settings=(NULL,))]},
            [],
            "text/maze, seed 0, a: a setting is null where the default is not, which TOML cannot",
        ),
        (
            {"compared": [ComparedAlgo(name="a", algo="grpo", settings=("learner.lr=fast",))]},
            [],
            "a: learner.lr: ",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    tmp_path: Path, settings: str, changes: dict[str, Any], sources: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path / "out", settings, *sources, **changes)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_preset_names_the_nearest(tmp_path: Path, settings: str) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'gigpo'"):
        planned(tmp_path, settings, compared=[ComparedAlgo(name="a", algo="gigop")])


def test_without_environment_and_file_there_is_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted --env ENV, or a TOML file"):
        planned(tmp_path, "learner.lr=1e-3")


def test_a_file_may_leave_the_environment_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[rollout]\ngroup_size = 2\ngroups_per_step = 2\n")
    heat, _ = planned(tmp_path, str(tmp_path / "own.toml"), envs=["text/wordle"])
    assert heat.runs[0].config.env.id == "text/wordle"


def test_a_mix_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text('env.mix = ["text/maze", "text/wordle"]\n')
    with pytest.raises(ConfigError, match="compare: plays no mix; wanted --env"):
        planned(tmp_path, str(tmp_path / "mix.toml"))


def test_an_environment_in_a_file_names_its_folder_without_the_place_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_for_a_while(monkeypatch)
    nim = Path(__file__).parents[3] / "examples" / "11_two_players.py"
    [heat] = planned(tmp_path, envs=[f"{nim}:Nim"], seeds=[0], budget_episodes=256)
    place = heat.runs[0].folder.relative_to(tmp_path)
    assert place.parts == ("examples-nim", "seed-0", "grpo")
