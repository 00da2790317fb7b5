import gymnasium
import pytest

from helpers.broken_envs import Switch
from helpers.envs import LadderEnv, registered
from helpers.writers import at_once, record_ladders
from turngym.environments.core.limits import TurnLimit
from turngym.environments.gym.wrappers import RecordTurns, limited
from turngym.errors import ConfigError
from turngym.records import read_trajectories
from turngym.rollouts.replay import restore
from turngym.types import StopReason


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "episodes.jsonl"


def recorder(path, max_turns=4, **options):
    return RecordTurns(limited(LadderEnv(**{"slip": 0.0, **options}), TurnLimit(max_turns)), path)


def read(path):
    return list(read_trajectories(path))


def test_an_episode_is_written_when_it_ends_with_all_that_was_seen(path):
    env = recorder(path, top=2)
    opening, info = env.reset(seed=11)
    refused = env.step("jump 9")
    assert not path.exists()
    first, last = env.step("up"), env.step("up")
    (made,) = read(path)
    assert (made.env_id, made.env_seed) == ("<LadderEnv instance>", 11)
    assert made.task_id == info["task_id"]
    assert (made.stop_reason, made.score) == (StopReason.TERMINATED, 1.0)
    assert made.episode_return == 2.0
    assert [turn.action.content for turn in made.turns] == ["jump 9", "up", "up"]
    seen = [opening, refused[0], first[0]]
    assert [turn.observation[0].content for turn in made.turns] == [each["text"] for each in seen]
    assert made.final_observation[0].content == last[0]["text"]
    assert made.turns[0].invalid_action == "You can jump 1 to 3 rungs."
    assert made.turns[1].reward_parts == {"climbed": 1.0, "tired": 0.0}
    assert made.turns[0].state_key == made.turns[1].state_key == info["state_key"]
    assert made.turns[2].state_key == first[-1]["state_key"]
    assert made.spans == ()


def test_what_shows_no_text_is_refused_before_it_is_played(path):
    with pytest.raises(ConfigError, match=r"RecordTurns: .* shows Discrete\(16\), wanted a dict"):
        RecordTurns(gymnasium.make("FrozenLake-v1"), path)


def test_a_limit_is_recorded_as_such(path):
    env = recorder(path, max_turns=2, top=4)
    env.reset(seed=1)
    env.step("up")
    env.step("up")
    (made,) = read(path)
    assert (made.stop_reason, made.score) == (StopReason.TRUNCATED_TURNS, 0.5)


def test_episodes_follow_each_other_under_one_header(path):
    for _ in range(2):  # the second environment appends
        env = recorder(path, max_turns=1)
        env.reset(seed=1)
        env.step("up")
        env.reset()
        env.step("up")
        env.close()
    made = read(path)
    assert [m.env_seed for m in made] == [1, -1, 1, -1]
    assert [m.policy_seed for m in made] == [0, 1, 0, 1]


def test_what_a_limit_judged_and_what_states_promise_is_recorded_as_in_rollouts(path):
    class Promising(Switch):
        def potential(self):
            return float(self.is_pressed)

    env = RecordTurns(limited(Promising(), TurnLimit(1)), path)
    env.reset(seed=1)
    env.step("press")
    (made,) = read(path)
    assert made.judged_at_limit
    assert (made.turns[0].potential, made.final_potential) == (0.0, 1.0)


@pytest.mark.parametrize("how", ["reset", "close"])
def test_an_episode_that_is_left_is_marked_and_has_no_score(path, how):
    env = recorder(path)
    env.reset(seed=1)
    env.step("up")
    getattr(env, how)()
    (made,) = read(path)
    assert made.stop_reason is StopReason.ERROR_POLICY
    assert made.score is None
    assert "before its end" in str(made.error)
    assert len(made.turns) == 1


def test_an_episode_without_a_turn_leaves_no_trace(path):
    env = recorder(path)
    env.reset(seed=1)
    env.reset(seed=2)
    env.close()
    env.close()
    assert not path.exists()


def test_an_environment_that_breaks_is_recorded_as_an_error_and_still_raises(path):
    env = recorder(path)
    env.reset(seed=1)
    env.step("up")
    with pytest.raises(ValueError, match="broke by order"):
        env.step("break value")
    (made,) = read(path)
    assert made.stop_reason is StopReason.ERROR_ENV
    assert made.error == "step: ValueError: broke by order"
    assert (made.score, len(made.turns)) == (None, 1)
    env.reset(seed=2)
    env.close()
    assert len(read(path)) == 1


def test_what_is_returned_is_what_the_environment_returned(path):
    plain, env = limited(LadderEnv(), TurnLimit(4)), recorder(path, slip=0.3)
    assert env.reset(seed=3) == plain.reset(seed=3)
    for action in ("up", "x"):
        ours, theirs = env.step(action), plain.step(action)
        assert ours[:4] == theirs[:4]
        assert ours[-1].keys() == theirs[-1].keys()


def test_it_is_rebuilt_from_the_spec_and_names_the_environment(path):
    with registered("helpers/Ladder-v0", "helpers.envs:LadderEnv", max_turns=1) as id:
        env = gymnasium.make(RecordTurns(gymnasium.make(id), path).spec)
        env.reset(seed=1)
        env.step("up")
    assert read(path)[0].env_id == "helpers/Ladder-v0"


def test_several_processes_record_into_one_file(path):
    wanted = at_once(record_ladders, path, 2)
    assert sorted(made.env_seed for made in read(path)) == wanted


@pytest.mark.parametrize(("seed", "slip"), [(5, 0.5), (None, 0.0)])
def test_an_episode_whose_reset_chose_the_task_is_replayed(path, seed, slip):
    env = recorder(path, max_turns=12, slip=slip)
    env.reset(seed=seed)
    while not any(env.step("up")[2:4]):
        pass
    (made,) = read(path)
    assert restore(LadderEnv(slip=slip), made, len(made.turns)).played[0].turn == made.turns[0]
