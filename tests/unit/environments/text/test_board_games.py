"""Noughts and crosses, four in a row: rules, ends, and an expert that cannot be beaten."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import turngym
from turngym.environments.text.board_games import Board, FourInARowEnv, TicTacToeEnv

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def at(cells, **options):
    env = TicTacToeEnv(**options)
    env.reset(seed=0)
    env.state = Board(cells, 3)
    return env


@cache
def worth(cells, mover):
    """Return what perfect play gets the mover of noughts and crosses, found in the plain way."""
    other = "O" if mover == "X" else "X"
    if any(all(cells[n] == other for n in line) for line in LINES):
        return -1
    free = [n for n, cell in enumerate(cells) if cell == "."]
    after = [cells[:n] + mover + cells[n + 1 :] for n in free]
    return max((-worth(board, other) for board in after), default=0)


def test_a_row_wins_and_the_other_one_loses():
    env = at("XX.OO....")
    text, reward, terminated, truncated, info = env.step("place 3")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["other_rewards"] == {"O": -1.0}
    assert info["scores"] == {"X": 1.0, "O": 0.0}
    assert (info["score"], info["stop_reason"]) == (1.0, "terminated")
    assert text["text"] == "XXX OO. ... you are X."


@pytest.mark.parametrize("line", LINES)
def test_every_line_wins(line):
    *two, last = line
    others = [n for n in range(9) if n not in line]
    for pair in ((a, b) for a in others for b in others if a < b):
        cells = "".join("X" if n in two else "O" if n in pair else "." for n in range(9))
        _, reward, terminated, *_ = at(cells).step(f"place {last + 1}")
        assert (reward, terminated) == (1.0, True)


def test_a_full_board_is_a_draw():
    _, reward, terminated, _, info = at("XOXXOOO.X").step("place 8")
    assert (reward, terminated) == (0.0, True)
    assert info["other_rewards"] == {"O": 0.0}
    assert info["scores"] == {"X": 0.5, "O": 0.5}


@pytest.mark.parametrize("answer", ["place 1", "place 0", "place ten", "go home", ""])
def test_what_is_no_possible_move_loses(answer):
    _, reward, terminated, _, info = at("XX.OO....").step(answer)
    assert (reward, terminated) == (-1.0, True)
    assert info["invalid_action"]
    assert info["scores"] == {"X": 0.0, "O": 1.0}
    assert info["other_rewards"] == {"O": 1.0}
    assert info["legal_actions"] == []


def test_players_take_turns_and_each_sees_whose_letter_is_its_own():
    env = at(".........")
    seen = [env.step(f"place {n}")[0]["text"][-10:] for n in (1, 2, 3)]
    assert seen == ["you are O.", "you are X.", "you are O."]


def test_letters_fall():
    env = FourInARowEnv()
    env.reset(seed=0)
    env.state = Board("." * 16, 4)
    env.step("place 2")
    text, *_ = env.step("place 2")
    assert text["text"] == ".... .... .O.. .X.. you are X."
    for _ in range(2):
        env.step("place 2")
    assert env.legal_actions() == ["place 1", "place 3", "place 4"]


@pytest.mark.parametrize("column", [1, 2, 3, 4])
def test_three_on_top_of_each_other_win_the_easy_game(column):
    env = FourInARowEnv()
    env.reset(seed=0)
    env.state = Board("." * 16, 4)
    other = column % 4 + 1
    for place in (column, other, column, other, column):
        _, reward, terminated, *_ = env.step(f"place {place}")
    assert (reward, terminated) == (1.0, True)


def test_the_expert_plays_as_well_as_can_be():
    rng = np.random.default_rng(0)
    for number in range(200):
        env = TicTacToeEnv(difficulty=("easy", "medium", "hard")[number % 3])
        env.reset(seed=number)
        while (result := env.result()) is None:
            mover, value = env.player(), worth(env.state.cells, env.player())
            move = env.expert_action()
            cells = env.state.with_stone(int(move.split()[1]) - 1).cells
            assert -worth(cells, "O" if mover == "X" else "X") == value
            choice = [move, *env.legal_actions()][int(rng.integers(2))]
            env.step(choice)
        assert set(result.values()) in ({0.0}, {1.0, -1.0})


@pytest.mark.parametrize("name", ["text/tictactoe-hard", "text/fourinarow-medium"])
def test_the_expert_wins_at_once_where_it_can(name):
    rng = np.random.default_rng(1)
    wins = 0
    for seed in range(40):
        env = turngym.make(name).unwrapped
        env.reset(seed=seed)
        for _ in range(30):
            if env.result() is not None:
                break
            winning = []
            for action in env.legal_actions():
                child = env.fork(1)[0]
                if child.step(action)[1] == 1.0:
                    winning.append(action)
            if winning:
                wins += 1
                assert env.expert_action() in winning
            legal = env.legal_actions()
            env.step(legal[int(rng.integers(len(legal)))])
    assert wins > 20


def test_a_mirrored_board_is_the_same_problem():
    env = at("XO.......")
    key = env.instance_key()
    env.state = Board(".OX......", 3)
    assert env.instance_key() == key
    env.state = Board("OX.......", 3)
    assert env.instance_key() != key


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
@pytest.mark.parametrize("kind", [TicTacToeEnv, FourInARowEnv])
def test_a_game_begins_undecided_with_as_many_stones_as_the_difficulty_says(kind, difficulty):
    for seed in range(20):
        env = kind(difficulty=difficulty)
        _, info = env.reset(seed=seed)
        stones = len(env.state.cells) - env.state.cells.count(".")
        assert stones == env.settings["stones"]
        assert env.result() is None
        assert info["players"] == ("X", "O")
        assert info["player"] == ("X" if stones % 2 == 0 else "O")
