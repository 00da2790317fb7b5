import multiprocessing
from contextlib import nullcontext

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordEpisodeStatistics

from helpers.envs import LadderEnv, registered
from helpers.vector_wrappers import limit_to_two
from turngym.environments.checks.probes import plain
from turngym.environments.gym.vector import make_vec
from turngym.errors import ConfigError, EnvironmentFault, UnknownNameError

MODES = [mode.value for mode in AutoresetMode]


class OddInfoEnv(LadderEnv):
    """Infos that Gymnasium alone would mix up, round or refuse."""

    def begin(self, task):
        outcome = super().begin(task)
        truth = {"answer": task.seed} if task.seed % 2 else np.zeros(task.seed % 5)
        return type(outcome)(text=outcome.text, info={"ground_truth": truth, "steps": 3})

    def score(self):
        return [None, 1, 0.5][self.ladder.number % 3]

    def turn(self, action):
        outcome = super().turn(action)
        return type(outcome)(text=outcome.text, truncated=True, info={"plan": ["a", ["b"]]})


@pytest.fixture
def ladder_id():
    with registered("helpers/Ladder-v0", "helpers.envs:LadderEnv", max_turns=4) as id:
        yield id


@pytest.fixture
def both(ladder_id):
    """Give a function that makes a sync and an async vector, and close them."""
    made = []

    def make(**options):
        made.extend(make_vec(ladder_id, 2, mode, **options) for mode in ("sync", "async"))
        return made[-2:]

    yield make
    for envs in made:
        envs.close()
    assert multiprocessing.active_children() == []


def comparable(result):
    """Return what a reset or step gave as plain values, without ``usage``, which holds the time."""
    for info in (result[-1], result[-1].get("final_info", {})):
        info.pop("usage", None)
        info.pop("_usage", None)
    return plain(result)


def test_a_vector_plays_its_environments_side_by_side(ladder_id):
    envs = make_vec(ladder_id, 3)
    single = [gymnasium.make(ladder_id) for _ in range(3)]
    observations, infos = envs.reset(seed=5)
    openings = [env.reset(seed=5 + number) for number, env in enumerate(single)]
    assert observations == {"text": tuple(opening["text"] for opening, _ in openings)}
    assert infos["task_id"].tolist() == [info["task_id"] for _, info in openings]
    actions = ("up", "x", "jump 2")
    observations, rewards, _, _, infos = envs.step(actions)
    steps = [env.step(action) for env, action in zip(single, actions, strict=True)]
    assert observations in envs.observation_space
    assert rewards.tolist() == [step[1] for step in steps]
    assert infos["invalid_action"].tolist() == [step[-1].get("invalid_action") for step in steps]
    assert infos["_invalid_action"].tolist() == ["invalid_action" in step[-1] for step in steps]
    assert infos["legal_actions"].tolist() == [["up", "jump 2", "jump 3"]] * 3


@pytest.mark.parametrize("mode", MODES)
def test_sync_and_async_give_the_same_in_every_autoreset_mode(both, mode):
    sync, parallel = both(autoreset_mode=mode)
    assert sync.metadata["autoreset_mode"] is parallel.metadata["autoreset_mode"]
    for seed in (3, 9):  # the second reset comes when episodes are over
        assert comparable(sync.reset(seed=seed)) == comparable(parallel.reset(seed=seed))
        for turn in range(4 if mode == "Disabled" else 11):
            actions = ("up" if turn % 2 else "x", "jump 2")
            ours, theirs = sync.step(actions), parallel.step(actions)
            if mode == "Disabled" and (ours[2] | ours[3]).any():
                break
            assert comparable(ours) == comparable(theirs)


def test_a_reset_by_hand_after_the_end_is_not_followed_by_another(both):
    for envs in both():
        envs.reset(seed=1)
        for _ in range(4):
            *_, truncated, _ = envs.step(("x", "x"))
        assert truncated.all()
        envs.reset(seed=1)
        *_, infos = envs.step(("x", "x"))
        assert infos["_invalid_action"].all()  # the step was carried out


def test_single_environments_can_be_reset_by_mask_when_autoreset_is_off(both):
    for envs in both(autoreset_mode="Disabled"):
        first, _ = envs.reset(seed=[1, 2])
        envs.step(("x", "up"))
        second, infos = envs.reset(seed=[8, 2], options={"reset_mask": np.array([True, False])})
        assert second["text"][0] != first["text"][0]
        assert infos["_task_id"].tolist() == [True, False]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_episode_that_begins_by_itself_stays_in_the_split(both, mode):
    for envs in both(autoreset_mode=mode):
        for split, wanted in (({"split": "test"}, "test"), (None, "train")):
            _, infos = envs.reset(seed=1, options=split)
            for _ in range(6):
                assert all(f"/{wanted}/" in id for id in infos["task_id"])
                *_, infos = envs.step(("x", "x"))


def test_the_same_step_mode_keeps_the_last_observation_and_info(both):
    for envs in both(autoreset_mode="SameStep"):
        envs.reset(seed=1)
        for _ in range(4):
            observations, *_, infos = envs.step(("x", "x"))
        assert "rung 0" in observations["text"][0]
        assert "Not a command" in infos["final_obs"][0]["text"]
        assert infos["final_info"]["stop_reason"].tolist() == ["truncated_turns"] * 2
        assert infos["final_info"]["score"].tolist() == [0.0, 0.0]


def test_scores_and_truths_keep_their_values():
    with registered("helpers/Odd-v0", f"{__name__}:OddInfoEnv") as id:
        envs = make_vec(id, 12)
        _, infos = envs.reset(seed=1)
        assert {type(truth) for truth in infos["ground_truth"]} == {dict, np.ndarray}
        assert infos["steps"].tolist() == [3] * 12
        single = [env.unwrapped.score() for env in envs.envs]
        assert {None, 1, 0.5} == set(single)
        *_, infos = envs.step(("up",) * 12)
    assert infos["score"].dtype == np.float64
    wanted = [np.nan if score is None else score for score in single]
    np.testing.assert_array_equal(infos["score"], wanted)
    assert infos["plan"].tolist() == [["a", ["b"]]] * 12


def test_an_environment_that_goes_on_has_no_score_yet(both):
    for envs in both(top=1, slip=0.0):
        envs.reset(seed=1)
        *_, infos = envs.step(("x", "up"))
        np.testing.assert_array_equal(infos["score"], [np.nan, 1.0])
        assert infos["_score"].tolist() == [False, True]


def test_reward_parts_come_as_one_array_per_name(ladder_id):
    envs = make_vec(ladder_id, 2, slip=0.0)
    envs.reset(seed=1)
    *_, infos = envs.step(("up", "jump 2"))
    assert infos["reward_parts"]["climbed"].tolist() == [1.0, 1.0]
    assert infos["reward_parts"]["tired"].tolist() == [0.0, -0.5]


def test_statistics_of_gymnasiums_wrapper_come_in_gymnasiums_form(both):
    for envs in both(top=1, slip=0.0, wrappers=[RecordEpisodeStatistics]):
        envs.reset(seed=1)
        *_, infos = envs.step(("x", "up"))
        assert infos["episode"]["r"].tolist() == [0.0, 1.0]
        assert infos["_episode"].tolist() == [False, True]


class UnevenInfoEnv(LadderEnv):
    """Infos of which one environment has a whole number, and another has not."""

    def turn(self, action):
        outcome = super().turn(action)
        found = {"up": (1, 3), "jump 2": (0.5, None), "jump 3": (2**70, "none")}
        seconds, place = found[self.action_format.render(action)]
        outcome.info = {"seconds": seconds, "place": place}
        return outcome


def test_whole_numbers_of_one_environment_do_not_round_or_refuse_what_others_have():
    with registered("helpers/Uneven-v0", f"{__name__}:UnevenInfoEnv", max_turns=9) as id:
        envs = make_vec(id, 3, top=9)
        envs.reset(seed=1)
        *_, infos = envs.step(("up", "jump 2", "jump 3"))
        assert infos["seconds"].tolist() == [1, 0.5, 2**70]
        assert infos["place"].tolist() == [3, None, "none"]
        envs.close()


def test_methods_and_attributes_of_the_environments_can_be_asked(both):
    for envs in both(top=9):
        envs.reset(seed=1)
        assert envs.call("legal_actions") == (["up", "jump 2", "jump 3"],) * 2
        assert envs.call("expert_action") == ("jump 3", "jump 3")
        assert envs.call("score") == (0.0, 0.0)
        assert envs.get_attr("top") == (9, 9)
        envs.set_attr("slip", [0.0, 1.0])
        assert envs.get_attr("slip") == (0.0, 1.0)


def test_tasks_are_chosen_by_option(both):
    for envs in both():
        _, infos = envs.reset(seed=1, options={"task": "ladder/test/3"})
        assert infos["task_id"].tolist() == ["ladder/test/3"] * 2


def test_wrappers_are_applied_in_the_worker_too(ladder_id):
    for mode in ("sync", "async"):
        envs = make_vec(ladder_id, 1, mode, wrappers=[limit_to_two])
        envs.reset(seed=1)
        envs.step(("x",))
        *_, infos = envs.step(("x",))
        assert infos["stop_reason"].tolist() == ["truncated_invalid"]
        envs.close()


def test_environments_that_were_never_registered_in_the_worker_work_there(both):
    _, parallel = both()  # "helpers/Ladder-v0" is known here only; the spec travels
    _, infos = parallel.reset(seed=1)
    assert infos["_task_id"].all()
    assert parallel.spec.id == "helpers/Ladder-v0"
    assert "helpers/Ladder-v0, num_envs=2" in repr(parallel)


def test_a_worker_keeps_the_turns_of_a_variant_that_only_the_maker_knows(both):
    with registered(
        "helpers/Ladder-tall-v0", "helpers.envs:LadderEnv", max_turns=1, kwargs={"top": 9}
    ):
        for envs in both(top=9):
            envs.reset(seed=1)
            assert envs.step(["up", "up"])[3].all()


def test_the_vector_is_made_again_from_its_spec(ladder_id):
    envs = gymnasium.make_vec(make_vec(ladder_id, 3, top=8).spec)
    assert envs.num_envs == 3
    assert envs.get_attr("top") == (8, 8, 8)


def test_gymnasiums_own_make_vec_works_too(ladder_id):
    envs = gymnasium.make_vec(ladder_id, 2, vectorization_mode="sync")
    observations, _ = envs.reset(seed=1)
    assert observations in envs.observation_space


def test_an_error_in_a_worker_is_raised_here(both):
    for envs in both():
        envs.reset(seed=1)
        with pytest.raises(ValueError, match="broke by order"):
            envs.step(("up", "break value"))


def test_our_own_errors_in_a_worker_keep_their_type(both):
    _, parallel = both()
    with pytest.raises(ConfigError, match="unknown reset option 'tusk'"):
        parallel.reset(seed=1, options={"tusk": 3})


@pytest.mark.parametrize("actions", [("up",), ("up", "up", "up")])
def test_a_wrong_number_of_actions_moves_no_answer_to_the_next_call(both, actions):
    for envs in both():
        envs.reset(seed=1)
        with pytest.raises(ValueError, match=f"wanted 2 actions, found {len(actions)}"):
            envs.step(actions)
        assert envs.call("score") == (0.0, 0.0)


def test_all_processes_end_although_one_was_killed(both):
    for is_waiting in (False, True):
        _, parallel = both()
        parallel.reset(seed=1)
        if is_waiting:
            parallel.step_async(("up", "up"))
        parallel.processes[0].kill()
        parallel.processes[0].join()
        with pytest.warns(UserWarning, match="pending call") if is_waiting else nullcontext():
            parallel.close()
        assert not any(process.is_alive() for process in parallel.processes)


def test_stepping_on_after_the_end_is_refused_when_autoreset_is_off(both):
    _, parallel = both(autoreset_mode="Disabled")
    parallel.reset(seed=1)
    for _ in range(4):
        parallel.step(("x", "x"))
    with pytest.raises(EnvironmentFault, match="the episode is over"):
        parallel.step(("x", "x"))


def test_a_limit_on_how_many_work_at_once_is_kept(ladder_id):
    if "max_concurrency" not in gymnasium.vector.AsyncVectorEnv.__init__.__annotations__:
        pytest.skip("this gymnasium has no max_concurrency")
    envs = make_vec(ladder_id, 2, "async", vector_kwargs={"max_concurrency": 1})
    envs.reset(seed=1)
    assert envs.step(("x", "x"))[-1]["_invalid_action"].all()
    envs.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("text/mase", 2), UnknownNameError, "Did you mean 'text/maze'"),
        (("text/maze", 2, "asink"), UnknownNameError, "Did you mean 'async'"),
        (("text/maze", 0), ConfigError, "num_envs must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_explained(arguments, error, message):
    with pytest.raises(error, match=message):
        make_vec(*arguments)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_option_that_is_none_is_named_with_those_there_are(mode):
    with pytest.raises(UnknownNameError, match="unknown option of text/maze 'dificulty'"):
        make_vec("text/maze", 2, mode, dificulty="hard")
