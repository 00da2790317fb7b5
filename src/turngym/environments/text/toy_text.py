"""Taxi and FrozenLake of Gymnasium's toy_text in words, on top of ``GymnasiumEnv``."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as InnerFrozenLake
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from gymnasium.envs.toy_text.taxi import TaxiEnv as InnerTaxi

from turngym.environments.core.actions import ActionStyle
from turngym.environments.core.spaces import Image, Info
from turngym.environments.text.base import Colour, bearing, squares
from turngym.environments.text.from_gymnasium import GymnasiumEnv, InnerEnv
from turngym.errors import require_known
from turngym.tasks.base import Task, split_of

Table = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""State, action -> (probability, next state, reward, terminated), as in ``toy_text``."""

Place = tuple[int, int]

_COLOURS: Mapping[str, Colour] = {
    "S": (240, 240, 240), "F": (240, 240, 240), "H": (40, 40, 40), "G": (90, 170, 60),
    "@": (30, 90, 220),
}  # fmt: skip
"""Of the signs of a lake, in pictures."""

_STEPS = {"south": (1, 0), "north": (-1, 0), "east": (0, 1), "west": (0, -1)}


class TableGame(GymnasiumEnv):
    """A deterministic ``toy_text`` environment whose table of transitions is known.

    The reward is 1 for success and else 0; the inner reward is in ``info["inner_reward"]``. A
    start belongs to the test split by its content. The expert follows a shortest plan.

    Args:
        difficulty: A key of ``difficulties``.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        picture: Show the state as a picture and not in words.
        render_mode: ``"ansi"`` or None.
    """

    difficulties: ClassVar[dict[str, dict[str, Any]]]
    actions: ClassVar[tuple[str, ...]]
    manual = ""

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        action_style: ActionStyle = "commands",
        picture: bool = False,
        render_mode: str | None = None,
    ) -> None:
        require_known(f"difficulty of {self.name}", difficulty, self.difficulties)
        self.settings = self.difficulties[difficulty]
        super().__init__(
            self.inner_env,
            actions=self.actions,
            describe=None if picture else self.describe,
            name=f"{self.name}-{difficulty}",
            success=lambda total, _: float(self._won),
            rules=self.manual,
            action_style=action_style,
            picture=picture,
            render_mode=render_mode,
        )
        self._won = False

    @abstractmethod
    def inner_env(self) -> InnerEnv:
        """Return a new inner environment."""

    @abstractmethod
    def describe(self, state: int, info: Info) -> str:
        """Return a state in words."""

    @abstractmethod
    def instance_key(self) -> str:
        """Return what makes the start this one; decides its split."""

    def prepare(self, seed: int) -> None:
        self._won = False

    def accepts(self, task: Task) -> bool:
        """Return True when the start is of the task's split and its plan is short enough."""
        plan = self._plan() if split_of(self.instance_key()) == task.split else None
        shortest, longest = self.settings.get("moves", (1, 1 << 30))
        return plan is not None and shortest <= len(plan) <= longest

    def reward(self, inner_reward: float, terminated: bool) -> float:
        self._won = terminated and inner_reward > 0
        return float(self._won)

    def state_key(self) -> str:
        return str(self.state)

    def potential(self) -> float:
        """Return what is still to be earned: 1, less a twentieth for every action, or 0."""
        plan = None if self._won else self._plan()
        return 0.0 if plan is None else 1.0 - 0.05 * len(plan)

    def expert_action(self) -> str:
        """Return the first action of a shortest plan; the first legal one when there is none."""
        plan = self._plan()
        return self.say(plan[0]) if plan else self.legal_actions()[0]

    @property
    def state(self) -> int:
        """The number of the state in the inner table."""
        return int(self._observation)

    def _plan(self) -> list[int] | None:
        table: Table = self.inner.unwrapped.P  # type: ignore[attr-defined]
        return shortest_plan(table, self.state)


class TaxiEnv(TableGame):
    """Fetch the passenger and bring them to their place; ``Taxi`` without rain or fickleness.

    Action: ``south``, ``north``, ``east``, ``west``, ``pick up``, ``drop off``.
    Observation: which way the passenger or the destination lies and which ways are open; hard: the
    position only, the map is in the rules. ``picture=True``: what Gymnasium renders, with pygame.
    Reward: 1 for delivery, else 0.
    Start: a random place of taxi, passenger and destination; easy: at most 10 actions away.
    End: terminated by delivery.
    """

    name = "taxi"
    manual = (
        "Drive the taxi: pick up the passenger, then drop off at the destination. There are four "
        "places: red, green, yellow, blue. You are told how far the next one is and which ways "
        "are open; walls may force a detour."
    )
    actions = ("south", "north", "east", "west", "pick up", "drop off")
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"moves": (5, 10)}, "medium": {}, "hard": {"bare": True},
    }  # fmt: skip

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.shows_picture:
            self.rules = (
                "Drive the taxi: pick up the passenger, then drop off at the destination. In the "
                "picture the destination is where the house stands, and walls are dark."
            )
        elif self.settings.get("bare"):
            drawing = "\n".join(row.tobytes().decode() for row in self._taxi.desc)
            self.rules = (
                "Drive the taxi: pick up the passenger, then drop off at the destination. You are "
                "told row and column of the taxi, counted from 0 at the top left. In the map, R, "
                "G, Y and B are the places red, green, yellow and blue; a bar is a wall, a colon "
                f"is open.\n{drawing}"
            )

    def inner_env(self) -> InnerEnv:
        return InnerTaxi(render_mode="rgb_array")

    def instance_key(self) -> str:
        return str(self.state)

    def describe(self, state: int, info: Info) -> str:
        row, column, passenger, destination = (int(part) for part in self._taxi.decode(state))
        if self._won:
            return "delivered."
        places = ("red", "green", "yellow", "blue")
        goal = places[destination]
        carrying = passenger == len(places)
        if self.settings.get("bare"):
            where = "in the taxi" if carrying else f"at {places[passenger]}"
            return f"taxi at row {row} column {column}. passenger {where}, to {goal}."
        target = self._taxi.locs[destination if carrying else passenger]
        way = bearing((row, column), target, distances=True)
        ways = " ".join(name for n, name in enumerate(_STEPS) if info["action_mask"][n])
        errand = f"to {goal}" if carrying else f"fetch {places[passenger]}"
        return f"{errand} {way}. open {ways}."

    @property
    def _taxi(self) -> InnerTaxi:
        inner = self.inner.unwrapped
        assert isinstance(inner, InnerTaxi)
        return inner


class FrozenLakeEnv(TableGame):
    """Cross the ice without falling into a hole; ``FrozenLake`` that is not slippery.

    Action: ``west``, ``south``, ``east``, ``north``; walking off the edge leaves you where you are.
    Observation: easy: which way the goal lies and which ways are safe; medium and hard: a drawing;
    with ``picture=True`` one in colours.
    Reward: 1 for the goal, else 0.
    Start: the top left corner of a random lake of 4, 6 or 8 squares a side.
    End: terminated at the goal or in a hole.
    """

    name = "frozenlake"
    actions = ("west", "south", "east", "north")
    difficulties: ClassVar[dict[str, dict[str, Any]]] = {
        "easy": {"side": 4, "ice": 0.85},
        "medium": {"side": 6, "ice": 0.7, "drawing": True},
        "hard": {"side": 8, "ice": 0.7, "drawing": True},
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rules = "Cross the frozen lake to the goal; a hole ends the game. " + (
            "In the picture ice is light, holes are dark, the goal is green, you are blue."
            if self.shows_picture
            else "@ is you, F ice, H a hole, G the goal, S the start."
            if self.settings.get("drawing")
            else "You are told how far the goal is and which ways lead onto ice."
        )

    def inner_env(self) -> InnerEnv:
        self.prepare(0)
        return self.inner

    def prepare(self, seed: int) -> None:
        super().prepare(seed)
        self._lake = generate_random_map(
            size=self.settings["side"], p=self.settings["ice"], seed=seed
        )
        self.inner = InnerFrozenLake(desc=self._lake, is_slippery=False)

    def draw(self) -> Image:
        """Return the lake in colours, with you on it."""
        signs = list("".join(self._lake))
        signs[int(self.inner.unwrapped.s)] = "@"  # type: ignore[attr-defined]
        side = len(self._lake)
        return squares(
            np.array([_COLOURS[sign] for sign in signs], np.uint8).reshape(side, side, 3)
        )

    def instance_key(self) -> str:
        return "/".join(self._lake)

    def describe(self, state: int, info: Info) -> str:
        rows = self._lake
        side = len(rows)
        at = divmod(state, side)
        if rows[at[0]][at[1]] in "GH":
            return "at the goal." if rows[at[0]][at[1]] == "G" else "in a hole."
        if self.settings.get("drawing"):
            marked = "".join(rows)
            marked = marked[:state] + "@" + marked[state + 1 :]
            return "\n".join(marked[n : n + side] for n in range(0, len(marked), side))
        safe = " ".join(
            name
            for name, (down, right) in _STEPS.items()
            if 0 <= at[0] + down < side
            and 0 <= at[1] + right < side
            and rows[at[0] + down][at[1] + right] != "H"
        )
        return f"goal {bearing(at, (side - 1, side - 1), distances=True)}. safe {safe}."


def shortest_plan(table: Table, state: int) -> list[int] | None:
    """Return the fewest actions from ``state`` to a rewarded end, or None when there are none.

    Args:
        table: Transitions; only the first outcome of an action is followed.
        state: Where to start.
    """
    plans: dict[int, list[int]] = {state: []}
    queue = deque([state])
    while queue:
        here = queue.popleft()
        for action, outcomes in table[here].items():
            _, there, reward, terminated = outcomes[0]
            if terminated and reward > 0:
                return [*plans[here], int(action)]
            if not terminated and there not in plans:
                plans[int(there)] = [*plans[here], int(action)]
                queue.append(int(there))
    return None
