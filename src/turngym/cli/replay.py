"""``turngym replay``: go back to a turn of a recorded episode, look around, play on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngym import registry
from turngym.api.agents import FORMS, HUMAN, make_policy
from turngym.cli.arguments import EnvOptions, Json, complete_env, env_options
from turngym.cli.output import print_json, say, writable_file
from turngym.cli.play import interruptible, play_from
from turngym.environments.gym.registration import make
from turngym.errors import ConfigError, EpisodeError
from turngym.pictures import png
from turngym.records import writable_folder, write_trajectories
from turngym.reports.texts import amount

if TYPE_CHECKING:
    import gymnasium

    from turngym.reports.export import Recorded
    from turngym.rollouts.replay import Restored


def replay(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a file of trajectories.")
    ],
    episode: Annotated[
        int, typer.Argument(min=0, metavar="EPISODE", help="Its number in the viewer.")
    ] = 0,
    turn: Annotated[
        int | None,
        typer.Option(min=1, help="The state before this turn's action; before the last's else."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help=f"Who plays on from there: {FORMS}.")] = None,
    look: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write what is there: text, files, page, screen."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="The environment, where the run was of a file of your own.",
            autocompletion=complete_env,
        ),
    ] = None,
    env_option: EnvOptions = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the episode as it is played on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore the state of any turn of a recorded episode, look into it, or play on from there.

    The recorded actions are carried out again, from the task and its seed.
    What comes of them is compared with the record; exit code 1 where a turn differs.
    """
    from turngym.reports.export import find_recorded
    from turngym.rollouts.replay import restore

    if out is not None:
        if agent in (None, HUMAN):
            raise ConfigError("--out: is for what an --agent plays on, and that no person")
        writable_file(out)
    found = find_recorded(run, episode)
    options = {**found.options, **env_options(env_option)}
    number = turn or max(1, len(found.trajectory.turns))
    with closing(_make(env or found.env, options)) as world:
        restored = restore(world, found.trajectory, number)
        if look is not None:
            _write(writable_folder(look, "--look"), world, restored)
        if agent is None:
            _show(found, number, restored, as_json=as_json)
        elif restored.is_over:
            raise ConfigError(f"turn {number}: the episode is over there; choose an earlier one")
        elif agent == HUMAN:
            with interruptible():
                play_from(world, restored.observation, restored.info, restored.instructions)
    if agent not in (None, HUMAN):
        _play_on(_make(env or found.env, options), str(agent), found, restored, out, as_json)


def _make(name: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        registry.find(name)
    except ConfigError as error:
        raise ConfigError(
            f"{str(error).rstrip('.')}; of a file of your own, name it: --env FILE"
        ) from error
    return make(name, **options)


def _show(found: Recorded, number: int, restored: Restored, *, as_json: bool) -> None:
    one = found.trajectory
    recorded = one.turns[number - 1].action.content if number <= len(one.turns) else None
    text, legal = restored.observation["text"], restored.info.get("legal_actions")
    if as_json:
        print_json({
            "env": found.env, "task": one.task_id, "turn": number, "turns": len(one.turns),
            "observation": text, "legal_actions": legal, "is_over": restored.is_over,
            "recorded_action": recorded,
        })  # fmt: skip
        return
    end = ", which is its end" if number > len(one.turns) else f" of {len(one.turns)}"
    print(f"{found.env}, task {one.task_id}, before turn {number}{end}\n\n{text}")
    if legal:
        print(f"\nlegal actions: {'; '.join(legal)}")
    if recorded is not None:
        print(f"\nthe recorded action: {recorded}")


def _write(folder: Path, world: gymnasium.Env[Any, Any], restored: Restored) -> None:
    """Write what there is to see."""
    is_ours = world.has_wrapper_attr("state_files")
    files: dict[str, Any] = dict(world.get_wrapper_attr("state_files")()) if is_ours else {}
    files["observation.txt"] = restored.observation["text"].encode("utf-8", "replace")
    if (image := restored.observation.get("image")) is not None:
        files["observation.png"] = image
    for name, data in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data if isinstance(data, bytes) else png(data))
    say(f"files in {folder}: {len(files)}")


def _play_on(
    env: gymnasium.Env[Any, Any],
    agent: str,
    found: Recorded,
    restored: Restored,
    out: Path | None,
    as_json: bool,
) -> None:
    from turngym.rollouts.replay import play_on

    policy = make_policy(agent)
    with interruptible():
        one = asyncio.run(play_on(env, policy, found.trajectory, restored))
    if out is not None:
        write_trajectories(out, [one])
        say(f"the episode is in {out}; 'turngym view {out}' shows it")
    if one.error is not None:
        raise EpisodeError(f"the episode broke: {one.error}")
    then, now = found.trajectory, len(one.turns)
    if as_json:
        rows = {"recorded": then, "played": one}
        print_json({
            key: {"turns": len(row.turns), "return": row.episode_return, "score": row.score,
                  "stop_reason": row.stop_reason.value}
            for key, row in rows.items()
        })  # fmt: skip
        return
    for turn in one.turns[len(restored.played) :]:
        print(f"{turn.action.content}  [reward {turn.reward:+g}]")
    print(
        f"{one.stop_reason.value} after {amount(now, 'turn')}: return {one.episode_return:g} "
        f"(recorded {then.episode_return:g}), score {one.score} (recorded {then.score})"
    )
