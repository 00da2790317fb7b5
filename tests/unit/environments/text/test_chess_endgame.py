import numpy as np
import pytest

from turngym.environments.text.chess_endgame import (
    UNKNOWN,
    ChessEndgameEnv,
    EndgameState,
    mate_table,
)


def square(name):
    return "abcdefgh".index(name[0]) + 8 * (int(name[1]) - 1)


def position(king, rook, enemy):
    return EndgameState(square(king), square(rook), square(enemy))


def env_at(king, rook, enemy):
    env = ChessEndgameEnv()
    env.reset(seed=0)
    env.state = position(king, rook, enemy)
    return env


def test_the_longest_mate_takes_sixteen_moves_and_white_always_wins_if_it_moves():
    white, black = mate_table()
    assert white[white != UNKNOWN].max() == 16
    assert black[black != UNKNOWN].max() == 16
    assert (black == 0).sum() == 216  # known number of mates with king and rook


def test_table_agrees_with_its_own_successors():
    """Every depth follows from the legal moves, found by another, slower move generator."""
    white, black = mate_table()
    rng = np.random.default_rng(0)
    for _ in range(1500):
        king, rook, enemy = (int(n) for n in rng.integers(64, size=3))
        if not possible(king, rook, enemy):
            assert black[king, rook, enemy] == UNKNOWN
            continue
        moves = black_moves(king, rook, enemy)
        checked = covered(king, rook, enemy, enemy)
        if not moves:
            assert black[king, rook, enemy] == (0 if checked else UNKNOWN)
        elif rook in moves:
            assert black[king, rook, enemy] == UNKNOWN
        else:
            assert black[king, rook, enemy] == max(white[king, rook, there] for there in moves)
        if checked:
            assert white[king, rook, enemy] == UNKNOWN
        else:
            after = [black[k, r, enemy] for k, r in white_moves(king, rook, enemy)]
            assert white[king, rook, enemy] == min(after) + 1


def distance(a, b):
    return max(abs(a % 8 - b % 8), abs(a // 8 - b // 8))


def possible(king, rook, enemy):
    return len({king, rook, enemy}) == 3 and distance(king, enemy) > 1


def covered(king, rook, enemy, target):
    """True when the rook attacks ``target``; the black king is no obstacle to itself."""
    if rook == target or (rook % 8 != target % 8 and rook // 8 != target // 8):
        return False
    low, high = sorted((rook, target))
    step = 8 if rook % 8 == target % 8 else 1
    return king not in range(low + step, high, step)


def black_moves(king, rook, enemy):
    return [
        there
        for there in range(64)
        if distance(there, enemy) == 1
        and distance(there, king) > 1
        and not covered(king, rook, enemy, there)
    ]


def white_moves(king, rook, enemy):
    kings = [(there, rook) for there in range(64) if distance(there, king) == 1]
    rooks = [
        (king, there)
        for there in range(64)
        if covered(king, rook, enemy, there) and not blocked(rook, there, enemy)
    ]
    return [move for move in kings + rooks if possible(*move, enemy)]


def blocked(rook, target, piece):
    low, high = sorted((rook, target))
    step = 8 if rook % 8 == target % 8 else 1
    return piece in range(low + step, high, step)


def test_mate_wins():
    env = env_at("g6", "a1", "h8")
    observation, reward, terminated, _, info = env.step("move a1a8")
    assert observation["text"] == "mate."
    assert (reward, terminated, info["score"]) == (1.0, True, 1.0)


def test_stalemate_is_a_draw():
    env = env_at("f6", "a7", "h8")
    observation, reward, terminated, _, info = env.step("move a7g7")
    assert observation["text"] == "stalemate."
    assert (reward, terminated, info["score"]) == (0.0, True, 0.0)


def test_black_takes_a_rook_that_nobody_guards():
    env = env_at("a1", "e1", "d4")
    observation, reward, terminated, _, info = env.step("move e1e4")
    assert observation["text"] == "black takes the rook. draw."
    assert (reward, terminated, info["score"]) == (0.0, True, 0.0)


def test_black_defends_as_long_as_it_can():
    white, _ = mate_table()
    env = ChessEndgameEnv(difficulty="hard")
    for seed in range(10):
        env.reset(seed=seed)
        s = env.state
        left = [int(white[s.king, s.rook, s.enemy])]
        while left[-1] > 1:
            env.step(env.expert_action())
            s = env.state
            left.append(int(white[s.king, s.rook, s.enemy]))
        assert left == list(range(left[0], 0, -1))


@pytest.mark.parametrize("move", ["a1b2", "g6h7", "e2e4", "a1"])
def test_impossible_moves_are_part_of_the_game(move):
    env = env_at("g6", "a1", "h8")
    observation, _, terminated, _, info = env.step(f"move {move}")
    assert info["invalid_action"] == f"{move} is not a legal move."
    assert observation["text"].endswith("king g6 rook a1 black h8.")
    assert not terminated


def test_mirror_images_are_one_problem():
    keys = {
        env_at(*pieces).instance_key()
        for pieces in [
            ("g6", "a1", "h8"),
            ("b6", "h1", "a8"),
            ("f7", "a1", "h8"),
            ("g3", "a8", "h1"),
        ]
    }
    assert len(keys) == 1
