"""``turngym play``: one episode with a person at the keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngym.cli.arguments import Env
from turngym.cli.keyboard import EndOfInput, ask
from turngym.cli.output import say

if TYPE_CHECKING:
    import gymnasium


def play(
    env: Env,
    task: Annotated[
        str | None, typer.Option(help="Task id, such as maze-easy/test/0; random by default.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the episode; random by default.")
    ] = None,
) -> None:
    """Play an episode yourself: type an action, ? for the legal ones, quit or Ctrl-D to stop.

    Lines may also come from a pipe.
    """
    import numpy as np

    from turngym.environments.gym.registration import make

    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    world = make(env)
    try:
        options = {} if task is None else {"task": task}
        observation, info = world.reset(seed=seed, options=options)
        say(f"{env}: task {info['task_id']}, seed {seed}. '?' lists actions, 'quit' stops.")
        print(info.get("instructions", ""), end="\n\n")
        _play(world, observation, info)
    finally:
        world.close()


def _play(world: gymnasium.Env[Any, Any], observation: Any, info: dict[str, Any]) -> None:
    instructions = info.get("instructions", "")
    turns, episode_return = 0, 0.0
    over = False
    while not over:
        print(observation["text"], flush=True)
        try:
            action = ask(instructions, info)
        except EndOfInput:
            print(f"stopped after {turns} turns: return {episode_return:g}")
            return
        observation, reward, terminated, truncated, info = world.step(action)
        over = terminated or truncated
        turns += 1
        episode_return += float(reward)
        if float(reward) != 0:
            print(f"[reward {float(reward):+g}]")
    print(observation["text"])
    score = info.get("score")
    judged = "not scored" if score is None else f"score {score:g}"
    reason = info.get("stop_reason", "terminated" if terminated else "truncated")
    print(f"{reason} after {turns} turns: return {episode_return:g}, {judged}")
