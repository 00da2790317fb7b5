"""BabyAI in words: what is seen where, one move a turn, and the shipped bot as the expert.

Source: Chevalier-Boisvert et al. 2019, arXiv:1810.08272; the engine is minigrid's.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import Commands
from turngym.environments.core.env import Outcome, SnapshotKind
from turngym.environments.core.spaces import Image, text_observation_space
from turngym.environments.text.base import LOOK, EngineGame
from turngym.errors import ConfigError
from turngym.tasks.base import Task, split_of

MOVES = {
    "turn left": 0, "turn right": 1, "go forward": 2, "pick up": 3, "drop": 4, "toggle": 5,
}  # fmt: skip
"""Command to minigrid's action number, all of them possible at any time."""

_RULES = (
    "You are in a grid of rooms. Carry out the instruction. {} You act on the cell right in front "
    "of you: pick up what is there, drop what you carry, or toggle a door to open it. A locked "
    "door needs the key of its colour in your hands. To go to a thing, stand right in front of it "
    "and face it."
)
_TILE_PX = 16
_NO_LIMIT = 1 << 30


@dataclass
class GridState:
    """Where an episode stands; copied deeply, so world and bot stay tied to each other."""

    world: Any
    """The minigrid environment."""
    bot: Any = None
    """The expert, from when it is first asked."""
    advice: int | None = None
    """The bot's action for the current state."""
    is_done: bool = False


class BabyAIEnv(EngineGame):
    """Carry out an instruction in a grid of rooms that is seen 7 x 7 cells at a time.

    Action: ``turn left``, ``turn right``, ``go forward``, ``pick up``, ``drop`` or ``toggle`` (open
    or close what is in front). One that has no effect costs the turn, as in minigrid.
    Observation: the instruction, the things in view with steps ahead and to the side, the distance
    to walls, and what is carried; with ``picture=True`` what is in view is a picture.
    Reward: 1 when the instruction is carried out, else 0.
    Start: a level that minigrid generates from the task's seed.
    End: terminated when done, or when minigrid sees that it cannot be done any more; the registered
    turn limit truncates.

    Args:
        difficulty: As ``GradedGame``.
        picture: Show what is in view as a picture and not in words.
        **kwargs: As ``GradedGame``.
    """

    name = "babyai"
    extra = "babyai"
    modules = ("minigrid",)
    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    rules = _RULES.format("Places are given as steps ahead of you and steps to your left or right.")
    commands = Commands({text.replace(" ", "_"): text for text in MOVES})
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        level: {"level": level, "moves": moves}
        for level, moves in {
            "GoToRedBall": (4, 12), "GoToLocal": (4, 12), "PickupLoc": (4, 14),
            "PutNextLocal": (5, 24), "UnlockLocal": (6, 26), "GoToObjMazeS5": (10, 70),
        }.items()
    }  # fmt: skip
    """Level to its name in minigrid and the least and most moves that the expert may need."""

    state: GridState

    def __init__(
        self, *, difficulty: str = "GoToRedBall", picture: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(difficulty=difficulty, **kwargs)
        self.shows_picture = picture
        if picture:
            self.rules = _RULES.format(
                "You see the 7 x 7 cells ahead of you; you are in the middle of the lowest row."
            )
            self.observation_space = text_observation_space(image_hw=(7 * _TILE_PX,) * 2)

    def start(self, task: Task) -> str:
        """Draw a level of the split that is fair.

        Raises:
            ConfigError: None was found.
        """
        world = _make_world(self.settings["level"])
        rng = np.random.default_rng(task.seed)
        for _ in range(1000):
            world.reset(seed=int(rng.integers(1 << 31)))
            if split_of(_key(world)) == task.split and _is_fair(world, *self.settings["moves"]):
                self.state = GridState(world)
                return self.describe()
        raise ConfigError(f"{self.name}: no level of split {task.split!r} in 1000 samples")

    def play(self, command: str) -> Outcome:
        state = self.state
        before = _place(state.world)
        _, reward, terminated, _, _ = state.world.step(MOVES[command])
        state.is_done = terminated and reward > 0
        if terminated:
            text = "Done." if state.is_done else "That was wrong; it cannot be done any more."
            return Outcome(text=text, reward=float(state.is_done), terminated=True)
        if state.bot is not None:
            self._advise(MOVES[command])
        effect = "" if _place(state.world) != before else f"You {command}: nothing changes. "
        return Outcome(text=effect + self.describe())

    def describe(self) -> str:
        world = self.state.world
        hands = "nothing" if world.carrying is None else _named(world.carrying)
        if self.shows_picture:
            return f"Task: {world.mission}. {LOOK} You carry {hands}."
        seen, walls = _view(world)
        return (
            f"Task: {world.mission}. You see {', '.join(seen) or 'nothing'}. "
            f"Walls: {', '.join(walls) or 'none in view'}. You carry {hands}."
        )

    reminder = describe

    def picture(self) -> Image | None:
        """Return what is in view as minigrid renders it, where it is shown so."""
        if not self.shows_picture:
            return None
        return np.array(self.state.world.get_pov_render(_TILE_PX), dtype=np.uint8)

    def possible_commands(self) -> dict[str, str]:
        return {text: text for text in MOVES}

    def score(self) -> float:
        return float(self.state.is_done)

    def state_key(self) -> str:
        """Return a digest of the whole grid, the player and the instruction."""
        return hashlib.sha256(_key(self.state.world).encode()).hexdigest()[:16]

    def expert_command(self) -> str:
        """Return what BabyAI's bot would do; it remembers what it saw."""
        state = self.state
        if state.bot is None:
            state.bot = _make_bot(state.world)
            self._advise(None)
        return next((text for text, number in MOVES.items() if number == state.advice), "turn left")

    def _advise(self, taken: int | None) -> None:
        """Report to the bot which move was made, and note the next. A lost bot starts anew."""
        state = self.state
        state.advice = _replan(state.bot, taken)
        if state.advice is None:
            state.bot = None


def _make_world(level: str) -> Any:
    import gymnasium
    import minigrid
    from minigrid.envs.babyai.core import roomgrid_level

    # It prints what it rejects. Its own print is replaced, since standard output belongs to all
    # threads: two that redirect it in turns leave it redirected.
    roomgrid_level.print = lambda *_words: None
    env_id = f"BabyAI-{level}-v0"
    if env_id not in gymnasium.registry:
        minigrid.register_minigrid_envs()
    return gymnasium.make(env_id, max_steps=_NO_LIMIT, disable_env_checker=True).unwrapped


def _make_bot(world: Any) -> Any:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    return BabyAIBot(world)


def _replan(bot: Any, taken: int | None) -> int | None:
    """Return the bot's next move, or None when it gives up, for example on an opened box."""
    try:
        return int(bot.replan(taken))
    except Exception:  # noqa: BLE001 - the bot gives up by several errors; the world is sound
        return None


def _is_fair(world: Any, fewest: int, most: int) -> bool:
    """Return True when the bot carries out the instruction in ``fewest`` to ``most`` moves."""
    world = copy.deepcopy(world)
    bot, move = _make_bot(world), None
    for made in range(1, most + 1):
        move = _replan(bot, move)
        if move is None:
            return False
        _, reward, terminated, _, _ = world.step(move)
        if terminated:
            return bool(reward > 0 and made >= fewest)
    return False


def _key(world: Any) -> str:
    carried = None if world.carrying is None else _named(world.carrying)
    grid = world.grid.encode().tobytes().hex()
    return repr(
        (world.mission, tuple(map(int, world.agent_pos)), int(world.agent_dir), carried, grid)
    )


def _place(world: Any) -> tuple[Any, ...]:
    return tuple(world.agent_pos), world.agent_dir, world.carrying, world.grid.encode().tobytes()


def _named(thing: Any) -> str:
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    return f"{state} {thing.color} door"


def _view(world: Any) -> tuple[list[str], list[str]]:
    """Return the things in view, nearest first, and the distance to walls ahead and beside.

    In minigrid's view the player stands in the middle of the bottom row and looks up.
    """
    grid, visible = world.gen_obs_grid()
    middle, bottom = grid.width // 2, grid.height - 1
    things = []
    walls: dict[str, int] = {}
    for row in range(grid.height):
        for column in range(grid.width):
            thing = grid.get(column, row)
            ahead, right = bottom - row, column - middle
            if thing is None or not visible[column, row] or (ahead, right) == (0, 0):
                continue
            if thing.type != "wall":
                things.append((ahead + abs(right), ahead, right, f"{_named(thing)} "))
            elif right == 0 or ahead == 0:
                side = "ahead" if right == 0 else "left" if right < 0 else "right"
                walls[side] = min(walls.get(side, ahead + abs(right)), ahead + abs(right))
    things.sort()
    ordered = [f"{walls[side]} {side}" for side in ("ahead", "left", "right") if side in walls]
    return [text + _bearing(ahead, right) for _, ahead, right, text in things], ordered


def _bearing(ahead: int, right: int) -> str:
    words = [f"{ahead} ahead"] if ahead else []
    if right:
        words.append(f"{abs(right)} {'left' if right < 0 else 'right'}")
    return " ".join(words)
