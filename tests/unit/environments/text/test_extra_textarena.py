"""TextArena's games: random state of their own, guides, and the generic adapter."""

from __future__ import annotations

import pickle
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from turngym.environments.core.actions import Action, InvalidAction
from turngym.environments.text.textarena import (
    Bracketed,
    OwnRandom,
    TextArenaEnv,
    from_textarena,
    guide_for,
)
from turngym.errors import ConfigError, EnvironmentFault, UnknownNameError
from turngym.tasks.base import SPLITS

needs_textarena = pytest.mark.extra("textarena")


def global_state() -> tuple[object, str]:
    return random.getstate(), repr(np.random.get_state())


# Random state.


def draw(own: OwnRandom) -> tuple[float, float]:
    with own.installed():
        return random.random(), float(np.random.random())


def test_own_random_leaves_the_global_state_as_it_was() -> None:
    before = global_state()
    draw(OwnRandom(1))
    assert global_state() == before
    with pytest.raises(ZeroDivisionError), OwnRandom(1).installed():
        random.seed(1 // 0)
    assert global_state() == before


def test_own_random_goes_on_where_it_was_whoever_draws_in_between() -> None:
    alone, disturbed, sibling = OwnRandom(1), OwnRandom(1), OwnRandom(2)
    expected = [draw(alone) for _ in range(3)]
    found = []
    for _ in range(3):
        found.append(draw(disturbed))
        draw(sibling)
        random.random()
        np.random.random()
    assert found == expected
    assert draw(OwnRandom(2)) != expected[0]


def test_own_random_may_be_installed_inside_another() -> None:
    outer, inner = OwnRandom(1), OwnRandom(2)
    first, _ = draw(OwnRandom(1))
    with outer.installed():
        draw(inner)
        assert random.random() == first


def test_threads_take_turns() -> None:
    expected = [draw(own)[0] for own in [OwnRandom(5)] for _ in range(200)]
    found: dict[int, list[float]] = {}

    def work(number: int) -> None:
        own = OwnRandom(5)
        found[number] = [draw(own)[0] for _ in range(200)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [expected] * 4


# Guides, on hand-made engines.


def engine(state: dict[str, object], **attributes: object) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(game_state=state), **attributes)


def test_the_number_is_halved() -> None:
    guide = guide_for("GuessTheNumber-v0")
    game = engine(
        {"guess_history": [(50, "higher"), (75, "lower")]},
        min_number=1,
        max_number=100,
        guessed_numbers={50, 75},
    )
    assert guide is not None
    assert guide.expert(game) == "[62]"
    assert "[50]" not in guide.legal(game)
    assert len(guide.legal(game)) == 98


def test_the_code_fits_all_answers() -> None:
    """After 1234: 4 white and 2143: 0 black, 4 white, the first that fits is 3412."""
    guide = guide_for("Mastermind-v0-hard")
    history = [
        {"guess": [1, 2, 3, 4], "black": 0, "white": 4},
        {"guess": [2, 1, 4, 3], "black": 0, "white": 4},
    ]
    game = engine({"history": history}, num_numbers=6, code_length=4, duplicate_numbers=False)
    assert guide is not None
    assert guide.expert(game) == "[3 4 1 2]"
    assert len(guide.legal(game)) == 6 * 5 * 4 * 3 - 2


def test_the_way_leads_around_the_holes() -> None:
    guide = guide_for("FrozenLake-v0")
    grid = [[" ", "H", " "], [" ", "H", " "], [" ", " ", "G"]]
    game = engine({"grid": grid, "player_pos": (0, 0), "goal_pos": (2, 2)}, size=3)
    assert guide is not None
    assert guide.expert(game) == "[down]"
    assert guide.legal(game) == ["[down]", "[right]"]


def test_lights_are_put_out_in_the_fewest_presses() -> None:
    guide = guide_for("LightsOut-v0")
    grid = [[False, True, False], [True, True, True], [False, True, False]]
    assert guide is not None
    assert guide.expert(engine({"grid": grid}, size=3)) == "[1 1]"


def test_sudoku_lists_digits_that_clash_with_nothing() -> None:
    guide = guide_for("Sudoku-v0")
    solved = [[(3 * row + row // 3 + column) % 9 + 1 for column in range(9)] for row in range(9)]
    board = [list(row) for row in solved]
    board[0][0] = board[8][8] = 0
    game = engine({"board": board}, full_grid=solved)
    assert guide is not None
    assert guide.expert(game) == "[1 1 1]"
    assert guide.legal(game) == ["[1 1 1]", f"[9 9 {solved[8][8]}]"]


def test_unknown_games_have_no_guide() -> None:
    assert guide_for("PegJump-v0") is None


# The adapter.


def test_the_last_brackets_are_the_move() -> None:
    form = Bracketed()
    assert form.parse("not [1 2], rather\n[3 4].") == Action(
        name="say", arguments={"text": "[3 4]"}
    )
    assert isinstance(form.parse("3 4"), InvalidAction)


@needs_textarena
def test_neither_the_program_nor_a_sibling_is_disturbed() -> None:
    before = global_state()
    alone = from_textarena("2048-v0-easy")  # draws a random tile in every turn
    boards = play_2048(alone, None)
    assert global_state() == before
    disturbed, sibling = from_textarena("2048-v0-easy"), from_textarena("2048-v0-easy")
    assert play_2048(disturbed, sibling) == boards


def play_2048(env: TextArenaEnv, sibling: TextArenaEnv | None) -> list[str]:
    seen = [env.reset(options={"task": env.task("test", 0)})[0]["text"]]
    if sibling is not None:
        sibling.reset(options={"task": sibling.task("test", 1)})
    for turn in range(24):
        move = ("[up]", "[left]", "[down]", "[right]")[turn % 4]
        observation, _, terminated, _, _ = env.step(move)
        seen.append(observation["text"])
        if terminated:
            break
        if sibling is not None:
            sibling.step(move)
            random.random()
            np.random.random()
    return seen


@needs_textarena
def test_the_own_random_state_is_part_of_a_snapshot() -> None:
    env = from_textarena("2048-v0-easy")
    env.reset(options={"task": env.task("test", 0)})
    env.step("[up]")
    snapshot = pickle.loads(pickle.dumps(env.snapshot()))
    went_on = [env.step(move)[0] for move in ("[left]", "[down]", "[right]")]
    env.restore(snapshot)
    assert [env.step(move)[0] for move in ("[left]", "[down]", "[right]")] == went_on


@needs_textarena
def test_a_game_without_guide_has_neither_legal_moves_nor_expert() -> None:
    env = from_textarena("TowerOfHanoi-v0", split_by_content=False)
    _, info = env.reset(seed=0)
    assert "legal_actions" not in info
    with pytest.raises(ConfigError, match="has no expert"):
        env.expert_action()


@needs_textarena
def test_a_solved_game_has_reward_and_score_1() -> None:
    env = from_textarena("TowerOfHanoi-v0", split_by_content=False)
    env.reset(seed=0)
    for move in ("A C", "A B", "C B", "A C", "B A", "B C", "A C"):
        _, reward, terminated, _, info = env.step(f"[{move}]")
    assert (reward, terminated, info["score"]) == (1.0, True, 1.0)


@needs_textarena
@pytest.mark.parametrize("game", ["Mastermind-v0", "FrozenLake-v0-hardcore", "LightsOut-v0"])
def test_an_end_by_invalid_moves_pays_nothing(game: str) -> None:
    env = from_textarena(game)
    paid = []
    for seed in range(6):  # guesses that come near, then nonsense
        env.reset(seed=seed)
        env.step(env.expert_action())
        env.step("[nonsense]")
        _, reward, terminated, _, info = env.step("[nonsense]")
        assert terminated
        paid.append((reward, info["score"]))
    assert all(reward <= 0.0 and score == 0.0 for reward, score in paid)


@needs_textarena
def test_the_second_invalid_move_in_a_row_ends_the_game_as_textarena_says() -> None:
    env = from_textarena("Mastermind-v0")
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step("[1 1 1 1]")
    assert "Duplicate numbers are not allowed" in info["invalid_action"]
    assert not terminated
    env.step(env.expert_action())
    env.step("[9 9 9 9]")
    observation, _, terminated, _, info = env.step("[9 9 9 9]")
    assert terminated
    assert "Invalid Move" in observation["text"]
    assert info["score"] < 1.0


@needs_textarena
def test_a_game_with_one_problem_cannot_be_split() -> None:
    env = from_textarena("TowerOfHanoi-v0")
    with pytest.raises(ConfigError, match="needs split_by_content=False"):
        # Which of the two it is in is chance; the other is empty.
        [env.reset(options={"task": env.task(split, 0)}) for split in SPLITS]


@needs_textarena
def test_unknown_games_and_games_for_several_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'Mastermind-v0'"):
        from_textarena("Mastermnd-v0")
    with pytest.raises(ConfigError, match="for num_players=1"):
        from_textarena("TicTacToe-v0")


@needs_textarena
def test_several_play_and_each_hears_the_other() -> None:
    env = from_textarena("KuhnPoker-v0", num_players=2, split_by_content=False)
    _, info = env.reset(seed=1)
    assert info["players"] == ("Player 0", "Player 1")
    first = info["player"]
    opening, _, _, _, info = env.step("[check]")
    assert info["player"] != first
    assert f"[{first}] [check]" in opening["text"] or "submitted move: '[check]'" in opening["text"]
    assert "Your card is" in opening["text"]  # it had not heard its rules yet
    paid: dict[str, float] = {}
    for _ in range(30):
        mover = info["player"]
        _, reward, over, _, info = env.step(
            ["[check]", "[bet]", "[call]"][env.np_random.integers(3)]
        )
        if over:
            paid = {mover: reward, **info["other_rewards"]}
            break
    assert sorted(paid.values()) in ([-1.0, 1.0], [0.0, 0.0])
    assert info["scores"] == {name: (1 + reward) / 2 for name, reward in paid.items()}


@needs_textarena
def test_an_invalid_move_costs_who_made_it_and_no_one_else() -> None:
    env = from_textarena("LiarsDice-v0", num_players=3, split_by_content=False)
    env.reset(seed=1)
    moves = ["[nonsense]", "[nonsense]", *["[Bid: 1, 2]", "[Call]"] * 20]
    refused, over, mover = list[bool](), False, ""
    for move in moves:
        mover = str(env.player())
        _, reward, over, _, info = env.step(move)
        refused.append("invalid_action" in info)
        if over:
            break
    assert refused == [True, True] + [False] * (len(refused) - 2)
    paid = {mover: reward, **info["other_rewards"]}
    assert over
    assert paid["Player 0"] == -1.0
    assert sorted(paid.values()) == [-1.0, 0.0, 1.0]
    assert (reward, info["score"]) == (1.0, 1.0)  # who moved last has won, by its call


@needs_textarena
def test_who_is_out_by_an_invalid_move_has_the_score_of_its_reward() -> None:
    env = from_textarena("Poker-v0", num_players=2, split_by_content=False)
    env.reset(seed=1)
    for move in ["[nonsense]"] * 4 + ["[fold]"]:  # TextArena has it fold, and win
        _, reward, over, _, info = env.step(move)
    assert over
    assert info["score"] == (1 + reward) / 2


@needs_textarena
def test_a_game_that_breaks_is_a_fault_and_gives_the_global_state_back() -> None:
    env = from_textarena("LightsOut-v0")
    env.reset(seed=0)

    def broken(_: str) -> None:
        random.seed(1)
        raise KeyError("lamp")

    env.state.engine.step = broken
    before = global_state()
    with pytest.raises(EnvironmentFault, match="lamp"):
        env.step("[0 0]")
    assert global_state() == before
