"""Part a: what one turn of a trivial environment costs, in microseconds.

The same game (``guess.py``) is played as a plain class, through turngym bare, wrapped,
vectorised and awaited as rollouts do, through GEM's own GuessTheNumber, and as a plain Gymnasium
environment over integers. All run in one process, interleaved.

A single environment plays episodes of ten turns, the last of which finds the number; the clock runs
from the first ``step`` to the last. A vector takes ten steps after each ``reset``, none of which
ends an episode; a turn is one step of one environment in it. Resets are measured apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import guess
import gymnasium

import turngym

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from harness import (
    Clock,
    Measurement,
    NotRun,
    PartResult,
    interleaved,
    ratio_goal,
    run_part,
    versions,
)
from turngym.environments.gym.vector import VectorizationMode, make_vec

EPISODES = 960
"""Episodes of one measured value of a single environment."""
TURNS = 10
"""Turns of an episode, and steps of a vector between two resets."""
FAR = 1_000_000
"""Largest number of a vector's game: ten guesses from 1 to 10 do not find it."""
BENCH_ID = "bench/Guess-v0"
INTEGER_ID = "bench/IntegerGuess-v0"

Case = Callable[[], float]


class SingleEnv(Protocol):
    """What all single environments have in common."""

    def reset(self, *, seed: int) -> Any:
        """Start an episode."""
        ...

    def step(self, action: str) -> Any:
        """Take one guess."""
        ...


def measure(repeats: int, clock: Clock) -> PartResult:
    """Measure everything that can run here."""
    result = PartResult(
        part="a",
        title="One turn of a trivial environment",
        settings={"episodes": EPISODES, "turns": TURNS},
        versions=versions("gymnasium", "gem-llm", "numpy"),
    )
    _register()
    gem = _import_gem()
    if gem is None:
        result.not_run.append(
            NotRun(
                name="GEM",
                reason="gem-llm is not installed for this interpreter",
                remedy="benchmarks/setup.sh gem",
            )
        )
    costs = interleaved(_turn_cases(gem, clock), repeats=repeats)
    resets = interleaved(_reset_cases(gem, clock), repeats=repeats)
    with contextlib.ExitStack() as stack:
        vectors = interleaved(_vector_cases(gem, stack, clock), repeats=repeats)
    for unit, found in (("us/turn", costs), ("us/turn", vectors), ("us/reset", resets)):
        result.measurements += [
            Measurement(name=name, unit=unit, values=values) for name, values in found.items()
        ]
    if gem is not None:
        result.goals.append(
            ratio_goal(
                "GEM raw / turngym wrapped",
                costs["GEM raw"],
                costs["turngym wrapped"],
                at_least=1.0,
            )
        )
    result.goals.append(
        ratio_goal(
            "20 us / turngym awaited", [20.0] * repeats, costs["turngym awaited"], at_least=1.0
        )
    )
    return result


def _turn_cases(gem: Any, clock: Clock) -> dict[str, Case]:
    """Return every single environment, as a function that returns its cost in microseconds."""

    def number(env: Any) -> int:
        return int(env.unwrapped.game.number)

    say: Callable[[int], str] = "guess {}".format
    cases: dict[str, Case] = {
        "plain class": _single(_Plain(), say, number, clock),
        "turngym bare": _single(guess.GuessEnv(), say, number, clock),
        "turngym wrapped": _single(gymnasium.make(BENCH_ID), say, number, clock),
        "turngym awaited": _awaited(turngym.make_async(BENCH_ID), number, clock),
    }
    if gem is not None:
        raw = gem.make("game:GuessTheNumber-v0-hard", max_turns=2 * TURNS)
        cases["GEM raw"] = _single(
            raw, "\\boxed{{{}}}".format, lambda env: int(env.game_number), clock
        )
    return cases


def _vector_cases(gem: Any, stack: contextlib.ExitStack, clock: Clock) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for size, is_async in ((8, False), (64, False), (8, True)):
        for name, make in _vector_makers(gem, size, is_async).items():
            vector, say = make()
            if hasattr(vector, "close"):
                stack.callback(vector.close)
            # Processes and threads cost what they keep waiting, which only the wall clock sees.
            timer = time.perf_counter if is_async else clock
            cases[name] = _vector(vector, size, say, timer)
    return cases


def _vector_makers(
    gem: Any, size: int, is_async: bool
) -> dict[str, Callable[[], tuple[Any, Callable[[int], Any]]]]:
    """Return name to a function that makes a vector and says how to guess in it.

    Gymnasium's asynchronous vector runs processes, GEM's runs threads.
    """
    mode: VectorizationMode = "async" if is_async else "sync"
    kind = f"{mode.capitalize()}VectorEnv x {size}"

    def ours() -> tuple[Any, Callable[[int], Any]]:
        return make_vec(BENCH_ID, size, mode, largest=FAR), "guess {}".format

    def integers() -> tuple[Any, Callable[[int], Any]]:
        vector = gymnasium.make_vec(INTEGER_ID, size, vectorization_mode=mode, largest=FAR)
        return vector, lambda number: number - 1

    def gems() -> tuple[Any, Callable[[int], Any]]:
        with contextlib.redirect_stdout(io.StringIO()):
            vector = gem.make_vec(
                ["game:GuessTheNumber-v0-hard"] * size,
                async_mode=is_async,
                max_number=FAR,
                max_turns=2 * TURNS,
            )
        return vector, "\\boxed{{{}}}".format

    makers = {f"turngym, {kind}": ours, f"Gymnasium over integers, {kind}": integers}
    if gem is not None:
        makers[f"GEM, {kind}"] = gems
    return makers


def _reset_cases(gem: Any, clock: Clock) -> dict[str, Case]:
    cases = {
        "turngym bare, reset": _reset(guess.GuessEnv(), clock),
        "turngym wrapped, reset": _reset(gymnasium.make(BENCH_ID), clock),
    }
    if gem is not None:
        cases["GEM raw, reset"] = _reset(gem.make("game:GuessTheNumber-v0-hard"), clock)
    return cases


def _single(
    env: SingleEnv, say: Callable[[int], str], number_of: Callable[[Any], int], clock: Clock
) -> Case:
    """Return a case that plays whole episodes in one environment."""
    actions = {number: say(number) for number in range(1, guess.LARGEST + 1)}

    def run() -> float:
        spent = 0.0
        for seed in range(EPISODES):
            env.reset(seed=seed)
            number = number_of(env)
            guesses = [actions[n] for n in _wrong(number)] + [actions[number]]
            step = env.step
            start = clock()
            for action in guesses:
                answer = step(action)
            spent += clock() - start
            if not answer[2]:
                raise RuntimeError(f"{env}: the right guess did not end the episode: {answer}")
        return 1e6 * spent / (EPISODES * TURNS)

    return run


def _awaited(env: Any, number_of: Callable[[Any], int], clock: Clock) -> Case:
    """Return a case that plays whole episodes as rollouts do, in an event loop."""

    async def play() -> float:
        spent = 0.0
        for seed in range(EPISODES):
            await env.reset(seed=seed)
            number = number_of(env)
            guesses = [f"guess {n}" for n in (*_wrong(number), number)]
            start = clock()
            for action in guesses:
                await env.step(action)
            spent += clock() - start
        return 1e6 * spent / (EPISODES * TURNS)

    return lambda: asyncio.run(play())


def _wrong(number: int) -> Iterator[int]:
    """Yield the wrong guesses of an episode."""
    return (n for n in range(1, TURNS + 1 if number <= TURNS else TURNS) if n != number)


def _vector(vector: Any, size: int, say: Callable[[int], Any], clock: Clock) -> Case:
    """Return a case that steps a vector; a turn is one step of one of its environments."""
    actions: Sequence[list[Any]] = [[say(n)] * size for n in range(1, TURNS + 1)]
    rounds = max(1, EPISODES // size)

    def run() -> float:
        spent = 0.0
        for seed in range(rounds):
            vector.reset(seed=seed)
            start = clock()
            for guesses in actions:
                answer = vector.step(guesses)
            spent += clock() - start
            if any(answer[2]) or any(answer[3]):
                raise RuntimeError(f"{vector}: an episode ended early")
        return 1e6 * spent / (rounds * TURNS * size)

    return run


def _reset(env: SingleEnv, clock: Clock) -> Case:
    def run() -> float:
        start = clock()
        for seed in range(EPISODES):
            env.reset(seed=seed)
        return 1e6 * (clock() - start) / EPISODES

    return run


class _Plain(guess.PlainGuess):
    """The plain class with what is asked of the others."""

    @property
    def unwrapped(self) -> guess.PlainGuess:
        return self


def _register() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    turngym.register(
        BENCH_ID, "guess:GuessEnv", family="bench", max_turns=2 * TURNS, snapshot_kind="exact"
    )
    gymnasium.register(
        INTEGER_ID, "guess:IntegerGuessEnv", max_episode_steps=2 * TURNS, disable_env_checker=True
    )


def _import_gem() -> Any:
    try:
        import gem  # type: ignore[import-not-found]
    except ImportError:
        return None
    logging.getLogger().setLevel(logging.WARNING)  # it configures the root logger when imported
    return gem


if __name__ == "__main__":
    run_part(measure, default_repeats=7)
