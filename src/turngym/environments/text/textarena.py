"""Games of TextArena, each with random state of its own.

TextArena seeds and samples from the global ``random`` module; here every call of the engine runs in
``OwnRandom``, so neither the program nor a sibling environment is disturbed, and none disturbs it.

For some games a guide reads the state of the engine, for the legal moves and for an expert; its
moves are texts that the engine understands.

Source: Guertler et al. 2025, arXiv:2504.11442.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import io
import itertools
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from turngym.environments.core.actions import (
    Action,
    ActionStyle,
    InvalidAction,
    JsonTools,
    function_tool,
    in_style,
)
from turngym.environments.core.env import Outcome, SnapshotKind, TurnEnv
from turngym.errors import ConfigError, missing_extra, require_known
from turngym.seeding import derive_seed
from turngym.tasks.base import Task, split_of

_STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

Code = tuple[int, ...]
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Guide:
    """What is known of one game."""

    legal: Callable[[Any], list[str]]
    """Engine to the moves that it accepts now."""
    expert: Callable[[Any], str]
    """Engine to the best move."""


def guide_for(game: str) -> Guide | None:
    """Return the guide of a game such as ``"Mastermind-v0-hard"``, or None when there is none."""
    return _GUIDES.get(re.split(r"-v\d", game)[0])


# Guess the number.


def _numbers(engine: Any) -> list[str]:
    guesses = range(engine.min_number, engine.max_number + 1)
    return [f"[{number}]" for number in guesses if number not in engine.guessed_numbers]


def _halve(engine: Any) -> str:
    low, high = engine.min_number, engine.max_number
    for guess, hint in engine.state.game_state["guess_history"]:
        if hint == "higher":
            low = max(low, guess + 1)
        else:
            high = min(high, guess - 1)
    return f"[{(low + high) // 2}]"


# Mastermind.


def _codes(engine: Any) -> Iterable[Code]:
    digits = range(1, engine.num_numbers + 1)
    if engine.duplicate_numbers:
        return itertools.product(digits, repeat=engine.code_length)
    return itertools.permutations(digits, engine.code_length)


def _unused_codes(engine: Any) -> list[str]:
    used = {tuple(entry["guess"]) for entry in engine.state.game_state["history"]}
    return [_code_text(code) for code in _codes(engine) if code not in used]


def _consistent_code(engine: Any) -> str:
    """Return the first code that could have given all answers so far."""
    history = engine.state.game_state["history"]
    seen = [(tuple(entry["guess"]), (entry["black"], entry["white"])) for entry in history]
    for code in _codes(engine):
        if all(_pegs(guess, code) == pegs for guess, pegs in seen):
            return _code_text(code)
    raise ValueError("no code fits the answers")


def _pegs(guess: Code, code: Code) -> tuple[int, int]:
    black = sum(a == b for a, b in zip(guess, code, strict=True))
    common = sum(min(guess.count(digit), code.count(digit)) for digit in set(guess))
    return black, common - black


def _code_text(code: Code) -> str:
    return f"[{' '.join(map(str, code))}]"


# Frozen lake.


def _steps(engine: Any) -> list[str]:
    row, column = engine.state.game_state["player_pos"]
    return [
        f"[{name}]"
        for name, (down, right) in _STEPS.items()
        if 0 <= row + down < engine.size and 0 <= column + right < engine.size
    ]


def _around_the_holes(engine: Any) -> str:
    state = engine.state.game_state
    start: Cell = tuple(state["player_pos"])
    goal: Cell = tuple(state["goal_pos"])
    first: dict[Cell, str] = {start: ""}
    queue = deque([start])
    while queue and goal not in first:
        row, column = queue.popleft()
        for name, (down, right) in _STEPS.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < engine.size and 0 <= cell[1] < engine.size
            if inside and cell not in first and state["grid"][cell[0]][cell[1]] != "H":
                first[cell] = first[row, column] or f"[{name}]"
                queue.append(cell)
    return first[goal]


# Lights out.


def _lights(engine: Any) -> list[str]:
    return [f"[{row} {column}]" for row in range(engine.size) for column in range(engine.size)]


def _press(engine: Any) -> str:
    """Return the first light of a shortest solution."""
    size, grid = engine.size, engine.state.game_state["grid"]
    presses = min(_solutions(size, grid), key=lambda solution: (len(solution), solution))
    return f"[{presses[0][0]} {presses[0][1]}]"


def _solutions(size: int, grid: list[list[bool]]) -> list[list[Cell]]:
    """Return all sets of presses that put the lights out.

    The presses of the top row decide those of every row below, because a light can then only be put
    out from underneath; so it is enough to try each top row.
    """
    found = []
    for top in itertools.product((False, True), repeat=size):
        lights = [list(row) for row in grid]
        presses: list[Cell] = []
        for row in range(size):
            for column in range(size):
                if top[column] if row == 0 else lights[row - 1][column]:
                    presses.append((row, column))
                    for down, right in ((0, 0), *_STEPS.values()):
                        if 0 <= row + down < len(lights) and 0 <= column + right < len(lights):
                            lights[row + down][column + right] ^= True
        if not any(lights[size - 1]):
            found.append(presses)
    return found


# Sudoku.


def _fitting_digits(engine: Any) -> list[str]:
    """Return the digits that clash with nothing on the board; the engine may still know better."""
    board = engine.state.game_state["board"]
    return [
        f"[{row + 1} {column + 1} {digit}]"
        for row, column in _empty_cells(board)
        for digit in _digits(board, row, column)
    ]


def _next_digit(engine: Any) -> str:
    """Return the digit of the first empty cell in the only solution, which the engine keeps."""
    row, column = _empty_cells(engine.state.game_state["board"])[0]
    return f"[{row + 1} {column + 1} {engine.full_grid[row][column]}]"


def _empty_cells(board: list[list[int]]) -> list[Cell]:
    return [(row, column) for row in range(9) for column in range(9) if not board[row][column]]


def _digits(board: list[list[int]], row: int, column: int) -> list[int]:
    top, left = row // 3 * 3, column // 3 * 3
    taken = {*board[row], *(line[column] for line in board)}
    taken |= {board[r][c] for r in range(top, top + 3) for c in range(left, left + 3)}
    return [digit for digit in range(1, 10) if digit not in taken]


_GUIDES = {
    "GuessTheNumber": Guide(_numbers, _halve),
    "Mastermind": Guide(_unused_codes, _consistent_code),
    "FrozenLake": Guide(_steps, _around_the_holes),
    "LightsOut": Guide(_lights, _press),
    "Sudoku": Guide(_fitting_digits, _next_digit),
}


# The environment.


_MAX_SAMPLES = 200
_SWAP = threading.RLock()
_SAY = function_tool(
    "say",
    "Say something to the game; the move is what stands in square brackets.",
    {"text": {"type": "string"}},
    ["text"],
)


class OwnRandom:
    """The global generators of ``random`` and ``numpy.random`` as one environment sees them.

    Inside ``installed()`` the engine finds its own states in the global places; outside of it those
    places hold what they held before. One engine at a time is inside.

    Args:
        seed: Seeds both generators.
    """

    def __init__(self, seed: int) -> None:
        self.state: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % (1 << 32)).get_state(),
        )
        """State of ``random``, state of ``numpy.random``. Immutable and picklable."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the own states into the global places for the length of the block."""
        with _SWAP:
            outer = _states()
            _set_states(self.state)
            try:
                yield
            finally:
                self.state = _states()
                _set_states(outer)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


class Bracketed:
    """Any text in which a move stands in square brackets; the last brackets count."""

    def instructions(self) -> str:
        """Return how to answer."""
        return "Answer with your move in square brackets, in the form that the rules give."

    def parse(self, text: str) -> Action | InvalidAction:
        """Return the last bracketed move in ``text``."""
        found = re.findall(r"\[[^\[\]]*\]", text)
        if not found:
            return InvalidAction(reason="No move found. Put it in square brackets.")
        return Action(name="say", arguments={"text": found[-1]})

    def render(self, action: Action) -> str:
        """Return the bracketed move."""
        return str(action.arguments["text"])

    def tools(self) -> list[dict[str, Any]]:
        """Return the one tool ``say``."""
        return [_SAY]


@dataclass
class ArenaState:
    """Where an episode stands; copied deeply."""

    engine: Any
    """The TextArena environment, without wrappers."""
    own_random: OwnRandom
    reward: float = 0.0


class TextArenaEnv(TurnEnv):
    """A game of TextArena, of one player or several.

    Action: any text with the move in square brackets.
    Observation: what the game says, and what others say to all or to this player; at the start its
        rules.
    Reward: TextArena's own at the end of the game: 1 when solved, else a part for what was reached;
        nothing where an invalid move ended it. Of several players 1 to who won, -1 to who lost.
    Start: the game that TextArena makes from the task's seed.
    End: terminated when the game says so, which includes a second invalid move in a row; the
    registered turn limit truncates.

    Args:
        game: An id of TextArena.
        options: More arguments of the game, for example ``{"num_disks": 4}``.
        num_players: Who plays: one, or as many as the game takes.
        name: First part of task ids; by default ``textarena-<game>``.
        split_by_content: Sample until the problem itself belongs to the split, so that none is in
            both. False for games with one problem only, or whose problem is sampled during the
            game; then training and test tasks differ by their seeds.
        action_style: ``"commands"`` for plain text, ``"tools"`` for JSON tool calls.
        render_mode: ``"ansi"`` or None.

    Raises:
        MissingExtraError: TextArena is not installed.
        ConfigError: There is no such game, it takes another number of players, or it does not start
            here.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "exact"

    state: ArenaState

    def __init__(
        self,
        game: str,
        *,
        options: Mapping[str, Any] | None = None,
        num_players: int = 1,
        name: str = "",
        split_by_content: bool = True,
        action_style: ActionStyle = "commands",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.name = name or f"textarena-{game}"
        if importlib.util.find_spec("textarena") is None:
            raise missing_extra(f"environment {self.name!r}", "textarena")
        self.game, self.options = game, dict(options or {})
        self.split_by_content = split_by_content
        self.action_format = in_style(action_style, Bracketed(), JsonTools([_SAY]))
        if num_players > 1:
            self.players = tuple(f"Player {number}" for number in range(num_players))
        how = "against others" if self.players else "alone"
        self.rules = f"You play {re.split(r'-v[0-9]', game)[0]} {how}."
        self._guide = guide_for(game)
        self._legal: list[str] | None = None
        self._make_engine(OwnRandom(0))

    def begin(self, task: Task) -> Outcome:
        with self._boundary(f"reset to {task.id}"):
            for number in range(_MAX_SAMPLES):
                self._draw(derive_seed(task.seed, "game", number))
                if not self.split_by_content or split_of(self._key()) == task.split:
                    self._note_legal()
                    return Outcome(text=self._hear())
        raise ConfigError(
            f"{self.name}: no problem of split {task.split!r} in {_MAX_SAMPLES} samples; "
            "a game with few problems needs split_by_content=False"
        )

    def turn(self, action: Action) -> Outcome:
        text, state = str(action.arguments["text"]).strip(), self.state
        with self._boundary(f"step {text[:40]!r}"):
            errors, mover = state.engine.state.error_count, state.engine.state.current_player_id
            with self._engine_at_work():
                is_over, _ = state.engine.step(text)
            ended = state.engine.state.game_info[mover]
            refused = ended["invalid_move"] or state.engine.state.error_count > errors
            is_legal = self._legal is not None and text in self._legal
            said = "\n".join(part for part in (self._hear(), ended.get("reason")) if part)
            rewards = dict(state.engine.state.rewards or {}) if is_over else {}
            if is_over:
                state.reward = float(rewards.get(mover, 0.0))
                if ended["invalid_move"]:  # some games pay for what was reached before it
                    state.reward = min(state.reward, 0.0)
                rewards[mover] = state.reward
            else:
                self._note_legal()
        return Outcome(
            text=said,
            reward=state.reward,
            terminated=bool(is_over),
            invalid_action=said[:200] if refused and not is_legal else None,
            info=self._paid(rewards, mover) if self.players and is_over else None,
        )

    def player(self) -> str | None:
        """Return who acts next; None where the game is played alone."""
        return self.players[self.state.engine.state.current_player_id] if self.players else None

    def _paid(self, rewards: Mapping[int, float], mover: int) -> dict[str, Any]:
        """Return what the end of a game of several says of each; a reward of -1 to 1 as a score."""
        by_name = {name: float(rewards.get(n, 0.0)) for n, name in enumerate(self.players)}
        scores = {name: min(max((1.0 + r) / 2, 0.0), 1.0) for name, r in by_name.items()}
        mine = self.players[mover]
        others = {name: reward for name, reward in by_name.items() if name != mine}
        return {"other_rewards": others, "scores": scores, "score": scores[mine]}

    def score(self) -> float:
        """Return TextArena's reward, limited to [0, 1]; 0 while the game goes on."""
        return min(max(self.state.reward, 0.0), 1.0)

    def legal_actions(self) -> list[str] | None:
        """Return the moves that are accepted now, or None where there is no guide."""
        return None if self._legal is None else [self._styled(move) for move in self._legal]

    def expert_action(self) -> str:
        if self._guide is None:
            return super().expert_action()
        with self._boundary("expert"):
            return self._styled(self._guide.expert(self.state.engine))

    def state_key(self) -> str:
        return hashlib.sha256(self._key().encode()).hexdigest()[:16]

    def get_state(self) -> ArenaState:
        return copy.deepcopy(self.state)

    def set_state(self, state: ArenaState) -> None:
        self.state = copy.deepcopy(state)
        self._note_legal()

    def _draw(self, seed: int) -> None:
        own_random = OwnRandom(seed)
        self.state = ArenaState(self._make_engine(own_random), own_random)
        with self._engine_at_work():
            self.state.engine.reset(num_players=len(self.players) or 1, seed=seed % (1 << 31))

    def _make_engine(self, own_random: OwnRandom) -> Any:
        """Return the engine without TextArena's wrappers; importing it uses random numbers too."""
        with own_random.installed():
            import textarena

        known = textarena.envs.registration.ENV_REGISTRY
        require_known("game of TextArena", self.game, known)
        try:
            with own_random.installed(), redirect_stdout(io.StringIO()):
                engine = textarena.make(self.game, **self.options)
                while isinstance(engine, textarena.Wrapper):
                    engine = engine.env
                engine.reset(num_players=len(self.players) or 1, seed=0)
        except Exception as error:
            raise ConfigError(
                f"{self.name}: TextArena cannot start it for num_players={len(self.players) or 1} "
                f"here: {type(error).__name__}: {error}"
            ) from error
        return engine

    @contextmanager
    def _engine_at_work(self) -> Iterator[None]:
        with self.state.own_random.installed(), redirect_stdout(io.StringIO()):
            yield

    def _hear(self) -> str:
        """Return what the player has not heard yet, without words of its own."""
        with self._engine_at_work():
            player, messages = self.state.engine.get_observation()
        heard = ((speaker, text.strip()) for speaker, text, _ in messages if speaker != player)
        return "\n".join(text if n == -1 else f"[Player {n}] {text}" for n, text in heard)

    def _note_legal(self) -> None:
        self._legal = None if self._guide is None else self._guide.legal(self.state.engine)

    def _key(self) -> str:
        return _canonical(self.state.engine.state.game_state)

    def _styled(self, move: str) -> str:
        return self.action_format.render(Action(name="say", arguments={"text": move}))


from_textarena = TextArenaEnv
"""Returns a turn environment that plays a game of TextArena."""


def _canonical(value: Any) -> str:
    """Return a text that is equal for equal values, whatever the order of sets and keys."""
    if isinstance(value, Mapping):
        pairs = sorted((_canonical(key), _canonical(item)) for key, item in value.items())
        return "{" + ",".join(f"{key}:{item}" for key, item in pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, (set, frozenset)):
        return "<" + ",".join(sorted(map(_canonical, value))) + ">"
    return repr(value)
