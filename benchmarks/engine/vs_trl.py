"""One GRPO update by turngym's engine and learner, and by TRL's GRPOTrainer with equal settings.

    vs_trl.py --side turngym|TRL|... --batch one-turn|multi-turn --model DIR --output FILE

runs one side in this process and writes seconds per update and peak memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share

from episodes import (
    Episode,
    Played,
    Range,
    make_engine,
    make_episodes,
    play_with_engine,
    play_with_generate,
)
from harness import Clock
from turngym.agents.engine.models import load_model_dir

if TYPE_CHECKING:
    from turngym.types import Trajectory

SIDES = ("turngym", "TRL", "TRL, recomputing activations")
PROMPTS, GROUP = 16, 8
"""Tasks of a batch, and attempts at each."""
ROWS = 8
"""Sequences that are trained on at once, TRL's default. turngym counts tokens, and is given as many
as so many of the longest sequences have."""
UPDATES = 4
"""Of one process; the first is not counted."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What the episodes of one update look like, in turns and tokens."""

    turns: Range
    opening: Range
    observation: Range
    action: int

    def episodes(self, update: int) -> list[Episode]:
        """Return the episodes of one update; attempts at a task share its first observation."""
        count = PROMPTS * GROUP
        episodes = make_episodes(
            count, turns=self.turns, opening=self.opening, observation=self.observation, seed=update
        )
        for i, episode in enumerate(episodes):
            episode[0] = episodes[i - i % GROUP][0]
        return episodes

    def tokens(self, episode: Episode) -> int:
        """Return how many tokens an episode has when it is over."""
        return sum(map(len, episode)) + self.action * len(episode)


BATCHES = {
    # What TRL is made for: a prompt and an answer. No padding anywhere.
    "one-turn": Batch(turns=(1, 1), opening=(32, 32), observation=(0, 0), action=64),
    # What turngym is made for. Lengths as in text/maze, which ends after 4 to 14 turns.
    "multi-turn": Batch(turns=(4, 14), opening=(10, 17), observation=(10, 17), action=8),
}


def reward(action_ids: Sequence[int]) -> float:
    """Return the share of even ids: cheap, and different for each episode."""
    return sum(token % 2 == 0 for token in action_ids) / len(action_ids)


class TurngymSide:
    """Engine, credit, samples and learner, put together as a training run does."""

    def __init__(self, batch: Batch, model_dir: Path, clock: Clock) -> None:
        from turngym.trainers.settings.loss import LossConfig
        from turngym.trainers.settings.optimizer import LearnerConfig
        from turngym.trainers.update.learner import TorchLearner

        self._batch = batch
        self._model, self._tokenizer = load_model_dir(model_dir)
        self._engine = make_engine(self._model)
        longest = max(batch.tokens(e) for n in range(UPDATES) for e in batch.episodes(n))
        self._learner = TorchLearner(
            self._model,
            LearnerConfig(lr=LEARNING_RATE, microbatch_tokens=ROWS * longest),
            LossConfig(aggregation="seq_mean_token_mean"),
        )
        self._clock = clock

    def run(self) -> list[tuple[float, float]]:
        """Return seconds of each update, with and without its rollout."""
        from turngym.trainers.credit.controls import build_credit
        from turngym.trainers.settings.algo import AlgoConfig
        from turngym.types import TrajectoryGroup

        credit = build_credit(AlgoConfig(), None)

        spent = []
        for number in range(UPDATES):
            episodes = self._batch.episodes(number)
            start = self._clock()
            played = play_with_engine(self._engine, episodes, action=self._batch.action)
            rolled_out = self._clock()
            trajectories = [
                self._trajectory(i, *pair)
                for i, pair in enumerate(zip(episodes, played, strict=True))
            ]
            groups = [
                TrajectoryGroup(group_id=str(i), trajectories=tuple(trajectories[i : i + GROUP]))
                for i in range(0, len(trajectories), GROUP)
            ]
            samples = asyncio.run(credit.assign(groups)).samples
            metrics = self._learner.update(samples)
            self._engine.load_weights(self._model.state_dict(), self._learner.updates)
            end = self._clock()
            _check(int(metrics["train/tokens"]), episodes, self._batch)
            spent.append((end - start, end - rolled_out))
        return spent

    def _trajectory(self, number: int, episode: Episode, played: Played) -> Trajectory:
        from turngym.types import Message, StopReason, TokenSpan, Trajectory, Turn

        size, at, turns = self._batch.action, 0, []
        action_ids = [
            i for i, sampled in zip(played.token_ids, played.action_mask, strict=True) if sampled
        ]
        for index, observation in enumerate(episode):
            at += len(observation)
            ids = tuple(played.token_ids[at : at + size])
            spans = (
                TokenSpan(token_ids=tuple(observation), sampled=False),
                TokenSpan(
                    token_ids=ids,
                    logprobs=tuple(played.logprobs[index * size : (index + 1) * size]),
                    sampled=True,
                    policy_version=self._engine.version,
                ),
            )
            at += size
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            last = index == len(episode) - 1
            turns.append(
                Turn(
                    observation=(Message(role="user", content="seen"),),
                    action=Message(role="assistant", content=text),
                    spans=spans,
                    reward=reward(action_ids) if last else 0.0,
                )
            )
        return Trajectory(
            env_id="bench",
            task_id=str(number // GROUP),
            env_seed=0,
            policy_seed=number,
            turns=tuple(turns),
            stop_reason=StopReason.TERMINATED,
        )


class TrlSide:
    """TRL told to do the same work.

    A prompt with one answer is sampled by TRL itself. For episodes of several turns TRL calls a
    function of the user's (``rollout_func``): here the loop around ``generate`` of part b.
    """

    def __init__(self, batch: Batch, model_dir: Path, clock: Clock, *, recompute: bool) -> None:
        from datasets import Dataset  # type: ignore[import-not-found]
        from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

        model, tokenizer = load_model_dir(model_dir)
        self._ends: list[float] = []
        self._rollouts: list[float] = []
        self._tokens: list[int] = []
        self._batch, self._clock = batch, clock
        rollouts, tokens = self._rollouts, self._tokens

        class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
            def _generate(self, prompts: list[Any]) -> Any:
                start = clock()
                generated = super()._generate(prompts)
                rollouts.append(clock() - start)
                tokens.append(_sampled_tokens(generated[1], generated[2]))
                return generated

        def rewards(completion_ids: list[list[int]], **columns: Any) -> list[float]:
            masks = columns.get("sampled") or [[True] * len(ids) for ids in completion_ids]
            return [
                reward([token for token, sampled in zip(ids, mask, strict=True) if sampled])
                for ids, mask in zip(completion_ids, masks, strict=True)
            ]

        config = GRPOConfig(
            output_dir=str(Path.cwd()),
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=PROMPTS * GROUP // ROWS,
            num_generations=GROUP,
            max_completion_length=batch.action,
            generation_kwargs={"min_new_tokens": batch.action},
            max_steps=UPDATES,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch",
            max_grad_norm=1.0,
            weight_decay=0.0,
            temperature=1.0,
            beta=0.0,
            epsilon=0.2,
            loss_type="grpo",
            num_iterations=1,
            gradient_checkpointing=recompute,
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            eval_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        one_turn = batch.turns == (1, 1)
        self._trainer = TimedTrainer(
            model=model,
            reward_funcs=rewards,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": _prompts(tokenizer, batch)}),
            processing_class=tokenizer,
            callbacks=[_watch(self._ends, clock)],
            rollout_func=None if one_turn else self._roll_out,
        )

    def _roll_out(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Play the episodes of one update as a user of TRL would."""
        episodes = self._batch.episodes(len(self._rollouts))
        model = trainer.accelerator.unwrap_model(trainer.model)
        played = play_with_generate(model, episodes, action=self._batch.action, with_logprobs=False)
        starts = [len(episode[0]) for episode in episodes]
        masks = [p.action_mask[at:] for p, at in zip(played, starts, strict=True)]
        return {
            "prompt_ids": [p.token_ids[:at] for p, at in zip(played, starts, strict=True)],
            "completion_ids": [p.token_ids[at:] for p, at in zip(played, starts, strict=True)],
            "logprobs": None,
            "env_mask": [[int(sampled) for sampled in mask] for mask in masks],
            "sampled": masks,
        }

    def run(self) -> list[tuple[float, float]]:
        """Return seconds of each update, with and without its rollout."""
        self._trainer.train()
        if len(self._ends) != UPDATES + 1 or len(self._rollouts) != UPDATES:
            raise RuntimeError(f"TRL: {len(self._ends)} marks, {len(self._rollouts)} rollouts")
        for number, count in enumerate(self._tokens):
            _check(count, self._batch.episodes(number), self._batch)
        updates = [b - a for a, b in zip(self._ends[:-1], self._ends[1:], strict=True)]
        return [
            (update, update - rollout)
            for update, rollout in zip(updates, self._rollouts, strict=True)
        ]


def _watch(ends: list[float], clock: Clock) -> Any:
    """Return a callback that notes when training begins and when each update ends."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            ends.append(clock())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ends.append(clock())

    return Watch()


def _prompts(tokenizer: Any, batch: Batch) -> list[str]:
    """Return the prompts of all updates as text of as many tokens as ours have."""
    prompts = []
    for number in range(UPDATES):
        for episode in batch.episodes(number)[::GROUP]:
            # One letter is one token for this tokenizer, and the dots keep them from merging.
            letters = [chr(ord("b") + token % 8) for token in episode[0]]
            text = "".join(letters)
            if len(tokenizer.encode(text)) != len(episode[0]):
                raise RuntimeError(f"prompt {text!r} has {len(tokenizer.encode(text))} tokens")
            prompts.append(text)
    return prompts


def _sampled_tokens(completion_ids: list[list[int]], masks: list[list[int]] | None) -> int:
    return sum(map(len, completion_ids)) if masks is None else sum(map(sum, masks))


def _check(sampled: int, episodes: Sequence[Episode], batch: Batch) -> None:
    wanted = batch.action * sum(map(len, episodes))
    if sampled != wanted:
        raise RuntimeError(f"{sampled} tokens were sampled, wanted {wanted}")


def _memory_mb(field: str) -> float:
    """Return resident memory now (``VmRSS``) or at its highest (``VmHWM``), in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/self/status has no {field}")


def main() -> None:
    """Run one side in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", choices=SIDES, required=True)
    parser.add_argument("--batch", choices=BATCHES, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    chosen = parser.parse_args()
    clock = time.process_time if chosen.clock == "cpu" else time.perf_counter
    torch.set_num_threads(1)
    batch = BATCHES[chosen.batch]
    side = (
        TurngymSide(batch, chosen.model, clock)
        if chosen.side == "turngym"
        else TrlSide(batch, chosen.model, clock, recompute=chosen.side != "TRL")
    )
    before = _memory_mb("VmRSS")
    spent = side.run()[1:]
    peak = _memory_mb("VmHWM")
    found = {
        "update_s": statistics.median(update for update, _ in spent),
        "without_rollout_s": statistics.median(rest for _, rest in spent),
        "peak_mb": peak,
        "growth_mb": peak - before,
    }
    chosen.output.write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
