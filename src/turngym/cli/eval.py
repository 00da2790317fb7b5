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
from turngym.cli.errors import first_cause
from turngym.cli.keyboard import interruptible
from turngym.cli.output import number, percent, print_json, progress, say, table, writable_folder
from turngym.errors import ConfigError, EnvironmentFault, TurnGymError, unknown_name
from turngym.records import write_trajectories
from turngym.registry import EnvEntry
from turngym.rollouts.evaluation import evaluate as play_tasks
from turngym.rollouts.evaluation import summarize
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
    """Play tasks 0..N-1 of each environment and print success with its 95 % interval.

    Models always take the likeliest token. Of FAMILY/*, what cannot run here is left out and told.
    """
    entries, chosen = _entries(envs)
    plan = _Plan(
        agent=agent,
        episodes=episodes,
        seed=seed,
        concurrency=concurrency or (1 if agent == HUMAN else _CONCURRENCY),
        split=_split(split),
        out=None if out is None else writable_folder(out),
    )
    policy = make_policy(agent)
    with interruptible():
        results = asyncio.run(_evaluate_all(entries, chosen, policy, plan))
    if plan.out is not None:
        _write_results(plan, results)
    if as_json:
        print_json(results)
    else:
        _print_table(results)
    if all("not_run" in found for found in results.values()):
        raise ConfigError(f"nothing of {', '.join(envs)} could be played")
    broken = [name for name, found in results.items() if found["faults"] == found["episodes"] > 0]
    if broken:
        say(f"error: every episode broke in {', '.join(broken)}")
        raise typer.Exit(1)


def _entries(names: list[str]) -> tuple[list[EnvEntry], set[str]]:
    """Return the environments that ``names`` match, and the ids of those named in person.

    What was named in person must run; of a family, some may not.
    """
    entries: dict[str, EnvEntry] = {}
    chosen: set[str] = set()
    for name in names:
        found = registry.match(name)
        entries |= {entry.id: entry for entry in found}
        if not name.endswith("/*"):
            chosen.add(found[0].id)
            found[0].require()
        elif all(entry.missing() for entry in found):
            found[0].require()
    return list(entries.values()), chosen


def _split(name: str) -> Split:
    for split in SPLITS:
        if name == split:
            return split
    raise unknown_name("split", name, SPLITS)


async def _evaluate_all(
    entries: list[EnvEntry], chosen: set[str], policy: Policy, plan: _Plan
) -> Results:
    asyncio.get_running_loop().set_exception_handler(_forget_interrupts)
    results: Results = {}
    for entry in entries:
        try:
            entry.require()
            results[entry.short_name] = await _evaluate(entry, policy, plan)
        except Exception as error:
            cause = first_cause(error)
            if entry.id in chosen or not isinstance(cause, ConfigError):
                raise
            say(f"not run: {cause}")
            results[entry.short_name] = {**summarize([]).to_json(), "not_run": str(cause)}
    return results


async def _evaluate(entry: EnvEntry, policy: Policy, plan: _Plan) -> dict[str, Any]:
    trajectories = await _play(entry, policy, plan)
    errors = [t.error for t in trajectories if t.error is not None]
    if errors:
        first = errors[0].splitlines()[0]
        say(f"{entry.short_name}: {len(errors)} of {len(trajectories)} episodes broke: {first}")
    if plan.out is not None:
        name = f"{entry.short_name.replace('/', '-')}.jsonl"
        write_trajectories(plan.out / name, trajectories)
    return summarize(trajectories).to_json()


def _forget_interrupts(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle errors of tasks as usual, but do not tell of those that Ctrl-C cut short."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


async def _play(entry: EnvEntry, policy: Policy, plan: _Plan) -> list[Trajectory]:
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
