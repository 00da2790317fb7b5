import pytest

from turngym.environments.text.maze import MazeEnv, MazeState
from turngym.errors import ConfigError, UnknownNameError
from turngym.tasks.base import split_of

OPEN = MazeState(size=2, walls=frozenset({((0, 0), (0, 1))}), at=(0, 0), key=(0, 1), door=(1, 0))


def maze_at(state, **kwargs):
    env = MazeEnv(**kwargs)
    env.reset(seed=0)
    env.set_state(state)
    return env


def test_a_walk_through_the_maze():
    env = maze_at(OPEN)
    assert env.describe() == "key east. exits south."
    said = [env.step(f"go {way}")[0]["text"] for way in ("south", "east", "north")]
    assert said == [
        "key north east. exits north east.",
        "key north. exits north west.",
        "got key. door south west. exits south.",
    ]
    env.step("go south")
    observation, reward, terminated, _, info = env.step("go west")
    assert (observation["text"], reward, terminated) == ("you are out.", 1.0, True)
    assert info["score"] == 1.0


def test_walking_into_a_wall_changes_nothing():
    env = maze_at(OPEN)
    observation, _, _, _, info = env.step("go east")
    assert observation["text"] == "wall. key east. exits south."
    assert info["invalid_action"] == "There is a wall."
    assert env.state == OPEN


def test_states_are_copied_in_and_out():
    env = maze_at(OPEN)
    kept = env.get_state()
    env.step("go south")
    assert kept.at == (0, 0)
    assert OPEN.at == (0, 0)


def test_legal_actions_and_expert_speak_tool_calls():
    env = maze_at(OPEN, action_style="tools")
    call = '{"name": "go", "arguments": {"direction": "south"}}'
    assert env.legal_actions() == [call]
    assert env.expert_action() == call


def test_about_a_fifth_of_all_problems_is_for_testing():
    share = sum(split_of(f"problem {n}") == "test" for n in range(5000)) / 5000
    assert 0.18 < share < 0.23


class OnlyMaze(MazeEnv):
    def new_game(self, rng):
        return OPEN


def test_a_game_with_one_problem_says_that_it_is_in_one_split():
    env, other = OnlyMaze(), {"train": "test", "test": "train"}[split_of(repr(OPEN))]
    with pytest.raises(ConfigError, match=r"no problem of split .*; one problem in five is a test"):
        env.reset(seed=0, options={"split": other})


class NoMaze(MazeEnv):
    def new_game(self, rng):
        super().new_game(rng)


def test_a_game_that_makes_no_state_is_named():
    with pytest.raises(TypeError, match="new_game returned None, wanted a state"):
        NoMaze().reset(seed=0)


@pytest.mark.parametrize("setting", [{"difficulty": "eesy"}, {"action_style": "tool"}])
def test_settings_with_a_typo_name_the_nearest(setting):
    with pytest.raises(UnknownNameError, match="Did you mean"):
        MazeEnv(**setting)


class PlainCommandsMaze(MazeEnv):
    commands = ("go {way}",)


def test_commands_that_are_no_format_are_refused_when_the_game_is_made():
    with pytest.raises(ConfigError, match=r"wanted Commands\(\{\.\.\.\}\), found \(.go"):
        PlainCommandsMaze()
