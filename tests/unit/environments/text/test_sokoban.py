from collections import deque

import numpy as np
import pytest

from turngym.environments.text.sokoban import (
    Room,
    SokobanEnv,
    SokobanState,
    empty_room,
    is_dead,
    play_backwards,
    solve,
)


def read(drawing):
    """Return the state that a drawing shows."""
    rows = drawing.strip("\n").split("\n")
    width = len(rows[0])
    signs = dict(enumerate("".join(rows)))
    room = Room(
        width,
        len(rows),
        frozenset(cell for cell, sign in signs.items() if sign == "#"),
        frozenset(cell for cell, sign in signs.items() if sign in ".*+"),
    )
    boxes = frozenset(cell for cell, sign in signs.items() if sign in "$*")
    (player,) = (cell for cell, sign in signs.items() if sign in "@+")
    return SokobanState(room, boxes, player)


def env_at(drawing, *, difficulty="medium"):
    env = SokobanEnv(difficulty=difficulty)
    env.reset(seed=0)
    env.state = read(drawing)
    return env


CORRIDOR = """
#######
#@ $ .#
#######
"""

TWO_BOXES = """
######
#.  ##
# $$ #
#  @.#
######
"""


def test_the_drawing_shows_every_sign():
    drawing = "######\n#+$* #\n#  # #\n######"
    assert env_at(drawing).describe() == drawing
    assert env_at("#####\n#@*.#\n# $ #\n#####").describe() == "#####\n#@*.#\n# $ #\n#####"


def test_words_lead_to_the_nearest_spot_and_name_the_push_there():
    drawing = "######\n#@   #\n#  $ #\n#    #\n#.   #\n######"
    env = env_at(drawing, difficulty="easy")
    assert env.describe() == "spot east. free east south."
    env.step("go east")
    observation, *_ = env.step("go east")
    assert observation["text"] == "push south. free east west."
    said = [env.step(f"go {way}")[0]["text"] for way in ("east", "south")]
    assert said == ["spot west. free south west.", "push west. free north south."]


def test_a_push_moves_box_and_player():
    env = env_at(CORRIDOR)
    env.step("go east")
    assert env.step("go east")[0]["text"] == "#######\n#  @$.#\n#######"
    observation, reward, terminated, _, info = env.step("go east")
    assert (observation["text"], reward, terminated) == ("solved.", 1.0, True)
    assert info["score"] == 1.0


def test_two_boxes_in_a_row_do_not_move():
    env = env_at("########\n#@$$ ..#\n########")
    observation, _, terminated, _, info = env.step("go east")
    assert info["invalid_action"] == "That way is blocked."
    assert observation["text"].startswith("blocked.")
    assert not terminated
    assert env.step("go west")[4]["invalid_action"] == "That way is blocked."


def test_a_box_in_a_corner_loses():
    env = env_at("######\n#    #\n# $@ #\n#.   #\n######")
    env.step("go north")
    env.step("go west")
    assert not env.state.stuck
    observation, reward, terminated, _, info = env.step("go south")
    assert not terminated  # along the goal's wall it can still be pushed
    env = env_at("######\n# $@ #\n#    #\n#.   #\n######")
    observation, reward, terminated, _, info = env.step("go west")
    assert observation["text"] == "a box is stuck. lost."
    assert (reward, terminated, info["score"]) == (0.0, True, 0.0)


def test_dead_cells_are_corners_and_walls_without_a_goal():
    room = read("######\n#    #\n#    #\n# . @#\n######").room
    dead = {cell for cell in room.floor if is_dead(room, cell)}
    assert dead == {7, 8, 9, 10, 13, 16, 19, 22}


def shortest_by_brute_force(state):
    """Return the length of a shortest solution by plain search over single moves."""
    start = (state.player, state.boxes)
    lengths, queue = {start: 0}, deque([start])
    while queue:
        player, boxes = queue.popleft()
        if boxes == state.room.goals:
            return lengths[player, boxes]
        for step in state.room.moves.values():
            there, beyond = player + step, player + 2 * step
            if there in state.room.walls:
                continue
            moved = boxes
            if there in boxes:
                if beyond in state.room.walls | boxes:
                    continue
                moved = boxes - {there} | {beyond}
            if (there, moved) not in lengths:
                lengths[there, moved] = lengths[player, boxes] + 1
                queue.append((there, moved))
    return None


@pytest.mark.parametrize("drawing", [CORRIDOR, TWO_BOXES])
def test_solutions_are_shortest_on_small_levels(drawing):
    state = read(drawing)
    assert len(solve(state.room, state.boxes, state.player)) == shortest_by_brute_force(state)


def test_solutions_are_shortest_and_hopeless_levels_have_none():
    rng, hopeless = np.random.default_rng(0), 0
    for _ in range(60):
        room = empty_room(6, 5)
        cells = [int(cell) for cell in rng.choice(room.floor, size=7, replace=False)]
        room = Room(6, 5, room.walls | {cells[0], cells[1]}, frozenset(cells[2:4]))
        state = SokobanState(room, frozenset(cells[4:6]), cells[6])
        path, wanted = solve(room, state.boxes, state.player), shortest_by_brute_force(state)
        assert (None if path is None else len(path)) == wanted
        hopeless += wanted is None
    assert 0 < hopeless < 60


def test_what_was_played_backwards_can_be_solved():
    rng, made = np.random.default_rng(1), 0
    for _ in range(20):
        room = empty_room(7, 7)
        goals = frozenset(int(cell) for cell in rng.choice(room.floor, size=2, replace=False))
        room = Room(7, 7, room.walls, goals)
        start = play_backwards(room, rng, pulls=10)
        if start is not None:
            made += 1
            assert solve(room, *start) is not None
    assert made > 10


def test_expert_replans_after_a_detour():
    env = env_at("########\n#      #\n# @$  .#\n#      #\n########", difficulty="easy")
    for move in ("north", "west", "south"):
        env.step(f"go {move}")
    for _ in range(10):
        observation, *_, info = env.step(env.expert_action())
        if observation["text"] == "solved.":
            break
    assert info["score"] == 1.0


def test_expert_of_a_lost_level_still_moves():
    env = env_at("#######\n#@ $$.#\n#    .#\n#######")
    assert env.expert_action() in env.legal_actions()
