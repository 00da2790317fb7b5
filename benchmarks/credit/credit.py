"""Part e: what turn credit costs.

First, information gain (IGPO): the policy's belief in the true answer before every turn. ``one
pass`` appends all answers to the episode and scores them in one row (``score_trees``); ``row per
turn`` gives each prefix a row of its own, batched as densely as memory allows; ``pass per turn``
runs one forward pass for each turn, one after the other, as a plain loop would. All three give the
same numbers, which is checked here, and stand side by side in one process.

Second, the share of credit in a training step (rollout, credit, update) of every preset: a few
real updates on one game, all from one warm start, as the trainer itself writes them to
``timings.jsonl``. Updates in which a critic warms up are left out. A preset that needs more than
the game gives is run on the next one, and says so.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from episodes import CONTEXT, SHAPES, VOCABULARY, make_model
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
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.credit.sources.branches import (
    Branch,
    Tree,
    TreeScores,
    score_trees,
    score_trees_apart,
)
from turngym.trainers.loop import train
from turngym.trainers.runs.checkpoints import find_model
from turngym.trainers.runs.needs import check_needs
from turngym.trainers.settings.algo import AlgoConfig, needs_of
from turngym.trainers.settings.train import TrainConfig

TURNS = (5, 10, 20)
EPISODES = 16
OPENING, OBSERVATION, ACTION, ANSWER = 24, 14, 6, 5
"""Tokens; an episode of 20 turns just fits into the context."""
BUDGET = 16384
"""Tokens of one forward pass, padding included."""
WANTED = {10: 3.0}
"""How many times the time of one pass the others should need at least, by turns."""

GAMES = ("text/twentyquestions-easy", "text/maze-easy")
"""A preset is run on the first that gives what it needs."""
UPDATES = 6
GROUPS, ATTEMPTS = 8, 8
WARM_START = [
    "warm_start.episodes=64",
    "warm_start.batch_episodes=8",
    "warm_start.lr=1.5e-3",
    "warm_start.max_steps=240",
    "warm_start.evaluate_every=60",
    "warm_start.target_success=0.2",
]
SIZES = [
    f"rollout.groups_per_step={GROUPS}",
    f"rollout.group_size={ATTEMPTS}",
    "rollout.max_new_tokens=12",
    "evaluation.every=1000",
    "evaluation.validation_tasks=16",
    "evaluation.held_out_tasks=1",
    "run.tensorboard=false",
]


def measure(repeats: int, clock: Clock) -> PartResult:
    """Measure scoring for each number of turns, then a step of each preset."""
    result = PartResult(
        part="e",
        title="Turn credit",
        settings={
            "episodes": EPISODES,
            "tokens_of": {"opening": OPENING, "observation": OBSERVATION, "action": ACTION},
            "answer_tokens": ANSWER,
            "tokens_per_pass": BUDGET,
            "games": GAMES,
            "episodes_per_update": GROUPS * ATTEMPTS,
            "threads": 1,
        },
        versions=versions("torch", "transformers", "numpy"),
    )
    for shape in SHAPES:
        for turns in TURNS:
            _add_scoring(result, shape, turns, repeats, clock)
    _add_shares(result)
    return result


def _add_scoring(result: PartResult, shape: str, turns: int, repeats: int, clock: Clock) -> None:
    model, trees = make_model(shape), make_trees(turns)
    ways: dict[str, Callable[[], list[TreeScores]]] = {
        "one pass": lambda: score_trees(model, trees, max_tokens=BUDGET),
        "row per turn": lambda: score_trees_apart(model, trees, max_tokens=BUDGET),
        "pass per turn": lambda: score_trees_apart(model, trees, max_tokens=1),
    }
    _check_equal({name: way() for name, way in ways.items()})

    def timed(way: Callable[[], list[TreeScores]]) -> float:
        start = clock()
        way()
        return 1e3 * (clock() - start) / EPISODES

    cases = {name: lambda way=way: timed(way) for name, way in ways.items()}
    costs = interleaved(cases, repeats=repeats)
    name = f"{shape}, {turns} turns"
    tokens = computed_tokens(trees[0])
    result.measurements += [
        Measurement(
            name=f"{name}: {way}",
            unit="ms/episode",
            values=values,
            note=f"{tokens[0] if way == 'one pass' else tokens[1]} tokens",
        )
        for way, values in costs.items()
    ]
    if turns in WANTED:
        result.goals += [
            ratio_goal(
                f"information gain, {name}: {way} / one pass",
                costs[way],
                costs["one pass"],
                at_least=WANTED[turns],
            )
            for way in ("pass per turn", "row per turn")
        ]


def make_trees(turns: int) -> list[Tree]:
    """Return episodes of random tokens with the same answer before each action."""
    rng = np.random.default_rng(turns)
    chosen = np.arange(ANSWER) >= ANSWER - 2
    starts = [OPENING + turn * (ACTION + OBSERVATION) for turn in range(turns)]
    trees = []
    for _ in range(EPISODES):
        answer = rng.integers(6, VOCABULARY, ANSWER)
        branches = [Branch(start=s, token_ids_M=answer, chosen_M=chosen) for s in starts]
        trunk = rng.integers(6, VOCABULARY, starts[-1])
        nothing = np.zeros(trunk.size, dtype=np.bool_)
        trees.append(Tree(trunk_L=trunk, chosen_L=nothing, branches=tuple(branches)))
    if trees[0].branches[-1].start + ANSWER > CONTEXT:
        raise ValueError(f"{turns} turns do not fit into a context of {CONTEXT} tokens")
    return trees


def computed_tokens(tree: Tree) -> tuple[int, int]:
    """Return how many tokens of one episode go through the model: in one pass, and in rows."""
    one_pass = tree.trunk_L.size + sum(b.token_ids_M.size for b in tree.branches)
    return one_pass, sum(b.start + b.token_ids_M.size for b in tree.branches)


def _check_equal(found: dict[str, list[TreeScores]]) -> None:
    def flat(scores: list[TreeScores]) -> Any:
        return np.concatenate([values for one in scores for values in one.branches])

    reference = flat(found["pass per turn"])
    for name, scores in found.items():
        worst = float(np.abs(flat(scores) - reference).max())
        if worst > 1e-3:
            raise RuntimeError(f"{name} differs from a pass per turn by {worst:g}")


def _add_shares(result: PartResult) -> None:
    """Train every preset for a few updates and add the share of credit in a step."""
    with tempfile.TemporaryDirectory(prefix="turngym-bench-") as folder:
        starts = {game: Path(folder) / f"start-{number}" for number, game in enumerate(GAMES)}
        for game, start in starts.items():
            words = [f"env.id={game}", *WARM_START, *SIZES, "run.steps=0"]
            train(load_config(TrainConfig, words), start)
        assert AlgoConfig.preset_folder is not None
        names = sorted(path.name for path in AlgoConfig.preset_folder.iterdir())
        for name in (name.removesuffix(".toml") for name in names if name.endswith(".toml")):
            try:
                game, config = _fitting(name, starts)
            except ConfigError as error:
                remedy = f"turngym train env.id=ENV algo={name}"
                result.not_run.append(NotRun(name=name, reason=str(error), remedy=remedy))
                continue
            print(f"preset {name} on {game} ...", file=sys.stderr, flush=True)
            train(config, Path(folder) / name)
            found = _shares(name, Path(folder) / name, note="" if game == GAMES[0] else game)
            result.measurements += found
            if not found:
                reason = f"none of its {UPDATES} updates trained the policy"
                result.not_run.append(NotRun(name=name, reason=reason, remedy="raise UPDATES"))


def _fitting(preset: str, starts: dict[str, Path]) -> tuple[str, TrainConfig]:
    """Return the first game that gives what ``preset`` needs, and the run on it.

    Raises:
        ConfigError: None of them does.
    """
    refused: ConfigError | None = None
    for game, start in starts.items():
        words = [f"env.id={game}", f"algo={preset}", *SIZES, "warm_start.episodes=0"]
        words += ["model.type=pretrained", f"model.path={find_model(start)}", "model.context=512"]
        words += [f"run.steps={UPDATES}"]
        try:
            config = load_config(TrainConfig, words)
            if "expert_match" in needs_of(config.algo.rewards, config.algo.advantage):
                config = load_config(TrainConfig, [*words, "env.expert_match=true"])
            check_needs(config)
        except ConfigError as error:
            refused = refused or error
        else:
            return game, config
    raise refused or ConfigError(f"{preset}: no game")


def _shares(name: str, run: Path, *, note: str) -> list[Measurement]:
    """Return credit's share of the steps that trained the policy, and its seconds."""
    trained = {
        row["step"] for row in _rows(run / "metrics.jsonl") if row.get("train/tokens", 0) > 0
    }
    steps = [
        row for row in _rows(run / "timings.jsonl") if "rollout_s" in row and row["step"] in trained
    ]
    if not steps:
        return []
    credit = [row["credit_s"] for row in steps]
    whole = [row["rollout_s"] + row["credit_s"] + row["update_s"] for row in steps]
    shares = tuple(100 * c / w for c, w in zip(credit, whole, strict=True))
    return [
        Measurement(name=f"{name}: credit's share of a step", unit="%", values=shares, note=note),
        Measurement(name=f"{name}: credit", unit="s/update", values=tuple(credit), note=note),
    ]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    run_part(measure, default_repeats=5)
