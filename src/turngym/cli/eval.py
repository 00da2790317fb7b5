"""``turngym eval``: play held-out tasks with an agent and say how well it did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngym import __version__, registry
from turngym.cli.agents import FORMS, HUMAN, make_policy
from turngym.cli.output import number, percent, print_json, progress, say, table, writable_folder
from turngym.errors import EnvironmentFault, TurnGymError, unknown_name
from turngym.registry import EnvEntry
from turngym.tasks.base import SPLITS, Split, Task

if TYPE_CHECKING:
    import gymnasium

    from turngym.agents.base import Policy
    from turngym.types import Trajectory

_CONCURRENCY = 16

Results = dict[str, dict[str, Any]]
"""Short name of an environment to the fields of its ``Evaluation``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Which episodes to play in each environment, and where to keep them."""

    agent: str
    episodes: int
    seed: int
    concurrency: int
    split: Split
    out: Path | None


def evaluate(
    envs: Annotated[list[str], typer.Argument(metavar="ENV...", help="Names, or FAMILY/*.")],
    agent: Annotated[str, typer.Option(help=FORMS)],
    episodes: Annotated[int, typer.Option(min=1, help="Tasks per environment.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Episodes alive at once; changes no result.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which tasks: test (held out) or train.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder for trajectories and results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play tasks 0..N-1 of each environment and print success with its 95 % interval."""
    entries = list({entry.id: entry for name in envs for entry in _entries(name)}.values())
    plan = _Plan(
        agent=agent,
        episodes=episodes,
        seed=seed,
        concurrency=concurrency or (1 if agent == HUMAN else _CONCURRENCY),
        split=_split(split),
        out=None if out is None else writable_folder(out),
    )
    results = asyncio.run(_evaluate_all(entries, make_policy(agent), plan))
    if plan.out is not None:
        _write_results(plan, results)
    if as_json:
        print_json(results)
    else:
        _print_table(results)
    broken = [name for name, found in results.items() if found["faults"] == found["episodes"] > 0]
    if broken:
        say(f"error: every episode broke in {', '.join(broken)}")
        raise typer.Exit(1)


def _entries(name: str) -> list[EnvEntry]:
    """Return the environments called ``name``; a pattern may match some that do not run here."""
    found = registry.match(name)
    if len(found) == 1 or all(entry.missing() for entry in found):
        found[0].require()
    return found


def _split(name: str) -> Split:
    for split in SPLITS:
        if name == split:
            return split
    raise unknown_name("split", name, SPLITS)


async def _evaluate_all(entries: list[EnvEntry], policy: Policy, plan: _Plan) -> Results:
    from turngym.rollouts.evaluation import summarize

    results: Results = {}
    for entry in entries:
        missing = entry.missing()
        if missing:
            say(f"not run: {entry.short_name}: {'; '.join(missing)}")
            results[entry.short_name] = {**summarize([]).to_json(), "not_run": missing}
            continue
        trajectories = await _play(entry, policy, plan)
        results[entry.short_name] = summarize(trajectories).to_json()
        _tell_faults(entry, trajectories)
        if plan.out is not None:
            _write_trajectories(plan.out, entry, trajectories)
    return results


async def _play(entry: EnvEntry, policy: Policy, plan: _Plan) -> list[Trajectory]:
    from turngym.rollouts.evaluation import evaluate as play_tasks

    tasks = _tasks(entry, plan)
    with _watch(entry, plan) as on_episode:
        return await play_tasks(
            lambda: _make(entry),
            policy,
            tasks,
            env_id=entry.id,
            seed=plan.seed,
            concurrency=plan.concurrency,
            on_episode=on_episode,
        )


@contextmanager
def _watch(entry: EnvEntry, plan: _Plan) -> Iterator[Callable[[Trajectory], None]]:
    """Show the progress of an evaluation, or to a player how each episode ended."""
    if plan.agent == HUMAN:
        yield _tell_end
        return
    solved = done = 0
    with progress(entry.short_name, plan.episodes) as advance:

        def count(trajectory: Trajectory) -> None:
            nonlocal solved, done
            solved, done = solved + trajectory.is_success, done + 1
            advance(done, f"{solved}/{done} solved")

        yield count


def _tell_end(trajectory: Trajectory) -> None:
    for message in trajectory.final_observation:
        say(message.content)
    say(f"{trajectory.stop_reason}: {'solved' if trajectory.is_success else 'not solved'}")


def _tasks(entry: EnvEntry, plan: _Plan) -> list[Task]:
    env = _make(entry)
    try:
        task = env.get_wrapper_attr("task")
        return [task(plan.split, index) for index in range(plan.episodes)]
    finally:
        env.close()


def _make(entry: EnvEntry) -> gymnasium.Env[Any, Any]:
    """Make one environment; whatever stops it is one line."""
    from turngym.environments.registration import make

    try:
        return make(entry.id)
    except TurnGymError:
        raise
    except Exception as error:
        raise EnvironmentFault(f"{entry.short_name}: {type(error).__name__}: {error}") from error


def _tell_faults(entry: EnvEntry, trajectories: list[Trajectory]) -> None:
    errors = [t.error for t in trajectories if t.error is not None]
    if errors:
        first = errors[0].splitlines()[0]
        say(f"{entry.short_name}: {len(errors)} of {len(trajectories)} episodes broke: {first}")


def _write_trajectories(out: Path, entry: EnvEntry, trajectories: list[Trajectory]) -> None:
    from turngym.records import write_trajectories

    write_trajectories(out / f"{entry.short_name.replace('/', '-')}.jsonl", trajectories)


def _write_results(plan: _Plan, results: Results) -> None:
    assert plan.out is not None
    settings = {key: value for key, value in asdict(plan).items() if key not in ("out", "agent")}
    content = {"turngym": __version__, "agent": plan.agent, **settings, "results": results}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (plan.out / "evaluation.json").write_text(text, encoding="utf-8")


def _print_table(results: Results) -> None:
    headers = ["ENVIRONMENT", "EPISODES", "SUCCESS [95 %]", "RETURN", "TURNS", "FAULTS"]
    rows = [
        [
            name,
            str(found["episodes"]),
            percent(found["success"], found["success_ci95"]),
            number(found["mean_return"]),
            number(found["mean_turns"], 1),
            str(found["faults"]),
        ]
        for name, found in results.items()
    ]
    print(table(headers, rows))
