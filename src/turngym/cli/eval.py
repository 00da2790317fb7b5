"""``turngym eval``: play held-out tasks with an agent and say how well it did."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import typer

from turngym import registry
from turngym.agents.policy import Policy
from turngym.api.agents import CHANCE, FORMS, HUMAN, against, agent_digest, make_policy
from turngym.api.verbs import first_tasks
from turngym.cli.arguments import EnvOptions, Json, complete_env, env_options, split_of
from turngym.cli.output import evaluation_table, first_cause, print_found, progress, say
from turngym.cli.play import interruptible, person
from turngym.coroutines import cancelled_by_signals
from turngym.environments.gym.registration import done_with, make, named, players_of
from turngym.errors import ConfigError, Interrupted
from turngym.records import writable_folder
from turngym.registry import EnvEntry
from turngym.reports.texts import amount
from turngym.rollouts.evaluation.evaluate import EvalJob, OnRow, play_job
from turngym.rollouts.evaluation.folder import EvalFolder
from turngym.rollouts.evaluation.rows import EpisodeRow, summarize_rows
from turngym.rollouts.players import Versus
from turngym.tasks.base import Split
from turngym.types import Trajectory

_CONCURRENCY = 16
_WORTH_A_LINE = 10
"""Episodes of one environment among several whose end is reported where there is no terminal."""

Results = dict[str, dict[str, Any]]
"""Short name of an environment to the fields of its ``Summary``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Which episodes to play in each environment."""

    agent: str
    opponent: str
    episodes: int
    seeds: int
    seed: int
    split: Split
    env_options: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None
    concurrency: int

    @property
    def is_human(self) -> bool:
        """Whether a person at the keyboard plays."""
        return HUMAN in (self.agent, self.opponent)

    def identity(self, entries: Sequence[EnvEntry], policy: Policy) -> dict[str, Any]:
        """Return what decides the results, of environments and of who acts, as JSON values."""
        from turngym.environments.own import data_digests, files_digest

        found = {name: value for name, value in asdict(self).items() if name != "concurrency"}
        agent = policy.policy if isinstance(policy, Versus) else policy
        found |= {"agent_sha256": agent_digest(self.agent, agent)}
        if isinstance(policy, Versus):
            found |= {"opponent_sha256": agent_digest(self.opponent, policy.opponent)}
        found |= {"envs": {entry.short_name: entry.id for entry in entries}}
        own = {entry.short_name: files_digest(entry.source) for entry in entries if entry.source}
        own |= data_digests(self.env_options)
        return {**found, "envs_sha256": own} if own else found


def evaluate(
    envs: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV",
            help=f"FAMILY/*, FAMILY/NAME-*, {registry.FORMS}.",
            autocompletion=complete_env,
        ),
    ],
    agent: Annotated[str, typer.Option(help=FORMS)],
    episodes: Annotated[int, typer.Option(min=1, help="Tasks per environment.")] = 100,
    seeds: Annotated[
        int, typer.Option(min=1, help="Attempts at each task; K of them give pass@1..K.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Episodes alive at once, {_CONCURRENCY} by default; changes no result."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which tasks: test (held out) or train.")] = "test",
    opponent: Annotated[
        str, typer.Option(help="Who the others are where several play: as --agent, or self.")
    ] = CHANCE,
    env_option: EnvOptions = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e8, help="Seconds after which an episode is truncated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; the same command resumes there.")
    ] = None,
    retry_faults: Annotated[
        bool, typer.Option("--retry-faults", help="When resuming, play the failed episodes again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Play tasks 0..N-1 of each environment and print success and costs with 95 % intervals.

    Models take the likeliest token, unless the agent says otherwise: 'run:FOLDER temperature=1'.
    Of names with *, environments that cannot run here are left out and listed.
    """
    entries, chosen = _entries(envs)
    plan = _Plan(
        agent=agent,
        opponent=opponent,
        episodes=episodes,
        seeds=seeds,
        seed=seed,
        split=split_of(split),
        env_options=env_options(env_option),
        timeout_s=timeout,
        concurrency=concurrency or (1 if HUMAN in (agent, opponent) else _CONCURRENCY),
    )
    policy = person() if agent == HUMAN else make_policy(agent)
    player = against(policy, person() if opponent == HUMAN else opponent)
    _check_options(entries, chosen, plan)  # before there is a folder
    keeping: AbstractContextManager[EvalFolder | None] = nullcontext()
    if out is not None:
        identity = plan.identity(entries, player)
        keeping = EvalFolder(writable_folder(out), identity, retry_faults=retry_faults)
    with keeping as folder:
        if folder is not None and folder.rows:
            say(f"{out}: going on; {amount(len(folder.rows), 'episode')} kept")
        evaluation = _Evaluation(plan, player, folder, chosen)
        with _saved(folder):
            results = asyncio.run(evaluation.run(entries))
        if left := getattr(policy, "abandoned", 0):
            calls = amount(left, "call")
            say(f"{calls} of the agent never came back; what still runs ends with this program")
        if folder is not None:
            _keep_tokenizer(policy, folder.path)
            folder.finish(evaluation.order, results)
    print_found(results, evaluation_table(results), as_json=as_json)
    if out is not None:
        say(f"kept in {out}: 'turngym view {out}' shows it, 'turngym report {out}' recomputes it")
    if all("not_run" in found for found in results.values()):
        raise ConfigError(f"nothing of {', '.join(envs)} could be played")
    broken = [name for name, found in results.items() if found["faults"] == found["episodes"] > 0]
    if broken:
        say(f"error: every episode broke in {', '.join(broken)}")
        raise typer.Exit(1)


def _keep_tokenizer(policy: Policy, folder: Path) -> None:
    """Keep the tokenizer of a policy that has one, so that the viewer can show tokens."""
    for path in ("renderer", "model.renderer"):
        with suppress(AttributeError):
            tokenizer = attrgetter(f"{path}.tokenizer.backend_tokenizer")(policy)
            tokenizer.save(str(folder / "tokenizer.json"))


def _entries(names: list[str]) -> tuple[list[EnvEntry], set[str]]:
    """Return the environments that ``names`` match, and the ids of those that are no pattern.

    What is named by itself must run; of several (``text/*``), some may not.
    """
    entries: dict[str, EnvEntry] = {}
    chosen: set[str] = set()
    for name in names:
        found = registry.match(name)
        if "*" in name:  # of several with one short name, the one that it means
            found = [registry.find(entry.short_name) for entry in found]
        entries |= {entry.id: entry for entry in found}
        if "*" not in name:
            chosen.add(found[0].id)
            found[0].require()
        elif all(entry.missing() for entry in found):
            found[0].require()
    names_of: dict[str, str] = {}
    for entry in entries.values():
        if (other := names_of.setdefault(entry.short_name, entry.id)) != entry.id:
            raise ConfigError(
                f"{other} and {entry.id} are both called {entry.short_name!r} in results; "
                "evaluate them one by one, each in a folder of its own"
            )
    return list(entries.values()), chosen


@contextmanager
def _saved(folder: EvalFolder | None) -> Iterator[None]:
    """Say where an evaluation that was interrupted goes on."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        if folder is None:
            raise KeyboardInterrupt from None
        raise Interrupted(
            f"{folder.path}: interrupted; {amount(len(folder.rows), 'episode')} kept, "
            "and the same command goes on from there"
        ) from None


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Plays one environment after the other."""

    plan: _Plan
    policy: Policy
    folder: EvalFolder | None
    chosen: set[str]
    order: list[tuple[str, str, int]] = field(default_factory=list)

    async def run(self, entries: Sequence[EnvEntry]) -> Results:
        """Return the table; what of a family could not run is in it as ``not_run``.

        Raises:
            CancelledError: SIGINT or SIGTERM arrived.
            KeyboardInterrupt: The same, from a player, or for the second time.
        """
        asyncio.get_running_loop().set_exception_handler(_forget_interrupts)
        # A player's line is waited for inside the event loop. Elsewhere an interrupt is never
        # raised there: in the middle of asyncio it may lose a wake-up, and then nothing ends.
        with interruptible() if self.plan.is_human else cancelled_by_signals():
            return await self._run(entries)

    async def _run(self, entries: Sequence[EnvEntry]) -> Results:
        results: Results = {}
        for number, entry in enumerate(entries, start=1):
            place = f" {number}/{len(entries)}" if len(entries) > 1 else ""
            try:
                entry.require()
                rows = await self._play(entry, place)
            except Exception as error:
                cause = first_cause(error)
                if entry.id in self.chosen or not isinstance(cause, ConfigError):
                    raise
                say(f"not run: {cause}")
                kept = summarize_rows(self._kept(entry.short_name)).to_json()
                results[entry.short_name] = {**kept, "not_run": str(cause)}
            else:
                self.order.extend(row.key for row in rows)
                results[entry.short_name] = summarize_rows(rows).to_json()
        return results

    def _kept(self, env: str) -> list[EpisodeRow]:
        rows = {} if self.folder is None else self.folder.rows
        return [row for row in rows.values() if row.env == env]

    async def _play(self, entry: EnvEntry, place: str) -> list[EpisodeRow]:
        plan = self.plan
        tasks = first_tasks(lambda: _make(entry, plan), plan.split, plan.episodes)
        if (count := len({task.id for task in tasks})) < plan.episodes:
            say(f"{entry.short_name}: split {plan.split!r} has {amount(count, 'task')}")
        job = EvalJob(
            env=entry.short_name,
            env_id=entry.id,
            make_env=lambda: _make(entry, plan),
            tasks=tasks,
            seed=plan.seed,
            attempts=plan.seeds,
            concurrency=plan.concurrency,
            timeout_s=plan.timeout_s,
        )
        kept = self._kept(job.env)
        total = count * plan.seeds
        with _watch(f"{job.env}{place}", kept, total, is_human=plan.is_human) as on_row:
            rows = await play_job(job, self.policy, folder=self.folder, on_row=on_row)
        if place and len(rows) >= _WORTH_A_LINE and not sys.stderr.isatty():
            judged = sum(row.is_judged for row in rows)
            solved = sum(row.is_success for row in rows)
            say(f"{job.env}{place}: {amount(len(rows), 'episode')}, {solved}/{judged} solved")
        if errors := [row.error for row in rows if row.error is not None]:
            first = errors[0].splitlines()[0]
            say(f"{job.env}: {len(errors)} of {len(rows)} episodes broke: {first}")
        if silent := [row for row in rows if row.turns == 0 and not row.is_fault]:
            where = f"{len(silent)} of {len(rows)} episodes"
            say(f"{job.env}: the agent never acted in {where}: {silent[0].stop_reason}")
        return rows


def _forget_interrupts(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle errors of tasks as usual, but not those that Ctrl-C caused."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


@contextmanager
def _watch(
    label: str, kept: Sequence[EpisodeRow], total: int, *, is_human: bool
) -> Iterator[OnRow]:
    """Show the progress of an evaluation, or to a player how each episode ended."""
    if is_human:
        yield _say_end
        return
    done, judged = len(kept), sum(row.is_judged for row in kept)
    solved, faults = sum(row.is_success for row in kept), sum(row.is_fault for row in kept)
    with progress(label, total) as advance:

        def count(row: EpisodeRow, trajectory: Trajectory) -> None:
            nonlocal done, judged, solved, faults
            done, judged = done + 1, judged + row.is_judged
            solved, faults = solved + row.is_success, faults + row.is_fault
            share = f" ({100 * solved / judged:.0f} %)" if judged else ""
            broke = f", {faults} broke" if faults else ""
            advance(done, f"{solved}/{judged} solved{share}{broke}")

        yield count


def _say_end(row: EpisodeRow, trajectory: Trajectory) -> None:
    for message in trajectory.final_observation:
        say(message.content)
    say(f"{trajectory.stop_reason}: {'solved' if trajectory.is_success else 'not solved'}")


def _check_options(entries: Sequence[EnvEntry], chosen: Container[str], plan: _Plan) -> None:
    """Make each environment that is named by itself, which refuses wrong options."""
    with_one: list[str] = []
    for entry in entries:
        if entry.id in chosen:
            made = _make(entry, plan)
            with_one += [] if players_of(made) else [entry.short_name]
            done_with(made)
    if plan.opponent != CHANCE and len(with_one) == len(entries):
        names = ", ".join(with_one)
        raise ConfigError(f"--opponent {plan.opponent}: there is one player in {names}")


def _make(entry: EnvEntry, plan: _Plan) -> gymnasium.Env[Any, Any]:
    """Make one environment; whatever stops it is one line."""
    with named(entry.short_name, plan.env_options):
        return make(entry.id, **plan.env_options)
