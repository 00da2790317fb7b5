"""TRL's side of ``async_peer.py``: ``AsyncGRPOTrainer``, with what it needs on a CPU.

    async_trl.py --model DIR --output FILE --url URL --server PID --steps N --warm-up N \
        --kill-at N

Runs in TRL's environment beside a vLLM server that somebody started, and writes new weights to
``DIR/..``. Three parts of TRL want a GPU and have a stand-in here:

- its attention is FlashAttention 3 from the kernel hub, fixed in the trainer's constructor: here
  it is torch's own, on the same packed rows (``flash_attn_varlen_func``);
- it asks CUDA for the name of the GPU, for a metric that is not read here;
- its weights travel over NCCL: here they are a file that vLLM loads, through the constructor's
  ``weight_transfer``, in the calls and the order of TRL's own client (``Files``).

Episodes of several turns go through the hook that TRL's own OpenEnv worker uses (``Turns``). Its
default loop ends after one turn unless the model calls a tool, and encodes the conversation again
each turn, which random tokens do not survive; here the ids of earlier turns are kept.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what all parts share
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from async_work import (
    ACTION,
    GROUP,
    GROUPS,
    LEARNING_RATE,
    LONGEST,
    ROWS,
    STALENESS,
    TURNS,
    Measured,
    Order,
    kill_engine,
    observation,
    opening,
    order_of,
    score,
    server_counts,
)
from datasets import Dataset  # type: ignore[import-not-found]
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, TrainerCallback
from trl.experimental.async_grpo import (  # type: ignore[import-not-found]
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    packing,
)
from trl.experimental.async_grpo.async_rollout_worker import (  # type: ignore[import-not-found]
    AsyncRolloutWorker,
    TurnRecord,
    _AsyncRolloutLoop,
    _chain_to_sequences,
)
from trl.experimental.async_grpo.vllm_client import VLLMClient  # type: ignore[import-not-found]

KEPT = ("perf/fwd_bwd_s", "sample/dropped_stale_total", "sample/staleness_mean", "ratio", "kl")
"""What is kept of TRL's own metrics."""
END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"


class Turns(_AsyncRolloutLoop):  # type: ignore[misc]
    """Plays the episodes of ``async_work``; all else is TRL's."""

    async def _generate_one(
        self, prompt: Any, tool_dict: Any, tools: Any, group_id: int = 0
    ) -> tuple[Any, ...]:
        began, first = time.monotonic(), prompt[0]["content"]
        ids = self.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, return_dict=False
        )
        turns, said = [], []
        for number in range(TURNS):
            sampled, logprobs = await self._generate_one_turn(ids)
            turns.append(TurnRecord(list(ids), sampled, logprobs))
            text = self.tokenizer.decode(sampled, skip_special_tokens=True)
            said.append({"role": "assistant", "content": text})
            seen = f"{END}{USER}{observation(first, number + 1)}{END}{ASSISTANT}"
            ids = [*ids, *sampled, *self.tokenizer.encode(seen, add_special_tokens=False)]
        rows, tally = _chain_to_sequences(turns, uuid.uuid4().hex, self._fork_threshold_tokens)
        sampled_ids = [token for turn in turns for token in turn.output_ids]
        if len(sampled_ids) != TURNS * ACTION or len(rows) != 1 or len(rows[0].input_ids) > LONGEST:
            raise RuntimeError(f"{len(sampled_ids)} sampled tokens in {len(rows)} rows")
        self._push_rollout_metrics(
            turns=TURNS,
            sequences=1,
            completion_ids=sampled_ids,
            tally=tally,
            loop_exhausted=False,
            duration_s=time.monotonic() - began,
        )
        return said, sampled_ids, rows, 0, 0, None


class Worker(AsyncRolloutWorker):  # type: ignore[misc]
    """TRL's worker with ``Turns``."""

    _loop_cls = Turns


class Files:
    """New weights through a file, in place of NCCL.

    Args:
        client: Of the server.
        folder: Where the server reads weights.
    """

    def __init__(self, client: Any, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._count = 0

    def init_weight_transfer(self) -> None:
        """Show the server a file in the folder."""
        self._client.wait_for_server_ready()
        (self._folder / "seen").write_text("trl")
        self._client.init_weight_transfer_engine({"name": "seen", "text": "trl"})

    def pause(self) -> None:
        """Have running requests wait."""
        self._client.pause(timeout=300)

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Write the weights, and have the server load them."""
        self._count += 1
        name = f"trl-{self._count}.safetensors"
        save_file({name: value.contiguous() for name, value in iterator}, self._folder / name)
        self._client.start_weight_update(timeout=300)
        self._client.update_weights({"name": name})
        self._client.finish_weight_update()
        (self._folder / f"trl-{self._count - 1}.safetensors").unlink(missing_ok=True)

    def resume(self) -> None:
        """Let requests go on."""
        self._client.resume(timeout=300)

    def destroy(self) -> None:
        """Nothing is held open."""


@lru_cache(maxsize=1)
def _layout(*bounds: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where the queries and keys of each segment are, which exist, and what they see."""
    queries, keys = (torch.tensor(one) for one in bounds)
    num_q, num_k = queries.diff()[:, None], keys.diff()[:, None]
    q, k = torch.arange(int(num_q.max())), torch.arange(int(num_k.max()))
    is_query = q < num_q
    # The last query sees the last key, as in FlashAttention; rows that pad see one key, not none.
    sees = (k <= q[:, None] + (num_k - num_q)[..., None]) & (k < num_k)[:, None]
    sees[..., 0] |= ~is_query
    at_q = (queries[:-1, None] + q).clamp(max=int(queries[-1]) - 1)
    at_k = (keys[:-1, None] + k).clamp(max=int(keys[-1]) - 1)
    return at_q, at_k, is_query, sees[:, None]


class Attention:
    """Attention over segments that end at the last of their keys; in place of FlashAttention 3."""

    def __init__(self) -> None:
        self.forward_s = 0.0

    def flash_attn_varlen_func(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        *_: Any,
        softmax_scale: float | None = None,
        **__: Any,
    ) -> Tensor:
        """Return attention of ``query`` [N, H, D] over ``key``, ``value`` [K, H, D], all packed."""
        began = time.perf_counter()
        bounds = (tuple(cu_seqlens_q.tolist()), tuple(cu_seqlens_k.tolist()))
        at_q, at_k, is_query, sees = _layout(*bounds)
        found = torch.nn.functional.scaled_dot_product_attention(
            query[at_q].transpose(1, 2),
            key[at_k].transpose(1, 2),
            value[at_k].transpose(1, 2),
            attn_mask=sees,
            scale=softmax_scale,
        )
        packed = found.transpose(1, 2)[is_query]
        self.forward_s += time.perf_counter() - began
        return packed


class Watch(TrainerCallback):  # type: ignore[misc]
    """Notes when steps end, what TRL logs of them, and what the server counted; kills it."""

    def __init__(self, order: Order) -> None:
        self.ends: list[float] = []
        self.logs: list[dict[str, float]] = []
        self.counts: list[dict[str, float]] = []
        self._order = order

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Note the end of a step."""
        self.ends.append(time.perf_counter())
        done, order = state.global_step, self._order
        if done in (order.warm_up, order.steps) and not order.kill_at:
            self.counts.append(server_counts(order.url))
        print("step", done, time.time(), flush=True)
        if done == order.kill_at:
            threading.Timer((self.ends[-1] - self.ends[-2]) / 2, self._kill).start()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Keep what TRL logs of a step."""
        if "perf/fwd_bwd_s" in logs:
            self.logs.append(dict(logs))

    def _kill(self) -> None:
        print("killed", kill_engine(self._order.server), time.time(), flush=True)


def rewards(completions: list[Any], **_: Any) -> list[float]:
    """Return the reward of each episode."""
    return [score([one["content"] for one in episode]) for episode in completions]


def make_trainer(order: Order, watch: Watch) -> Any:
    """Return TRL's trainer, with its own worker, set to the work of ``async_work``."""
    config = AsyncGRPOConfig(
        output_dir=str(order.output.parent / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=GROUPS * GROUP // ROWS,
        token_budget=0,
        num_generations=GROUP,
        max_completion_length=ACTION,
        max_steps=order.steps,
        max_staleness=STALENESS,
        **({"queue_maxsize": order.queue} if order.queue else {}),
        learning_rate=LEARNING_RATE,
        optim="adamw_torch",
        max_grad_norm=1.0,
        weight_decay=0.0,
        vllm_server_base_url=order.url,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(str(order.model))
    tokenizer.response_schema = {"type": "object"}  # no reply is parsed
    prompts = [[{"role": "user", "content": opening(seed)}] for seed in range(4096)]
    dataset = Dataset.from_dict({"prompt": prompts})
    worker = Worker(
        model_name="policy",
        dataset=dataset,
        reward_funcs=[rewards],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=GROUP,
        max_inflight_tasks=GROUPS * GROUP * STALENESS,  # what TRL infers
        queue_maxsize=config.queue_maxsize,
        score_queue_maxsize=1 if order.queue else 16,  # 16 is TRL's
        vllm_server_url=order.url,
        max_tokens=ACTION,
        request_timeout=config.request_timeout,
    )
    return AsyncGRPOTrainer(
        model=str(order.model),
        reward_funcs=rewards,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[watch],
        rollout_worker=worker,
        weight_transfer=Files(VLLMClient(order.url), order.model.parent),
    )


def main() -> None:
    """Run, and write what was measured."""
    order = order_of()
    attention, watch = Attention(), Watch(order)
    packing._flash_attn = lambda: attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    torch.set_num_threads(1)
    make_trainer(order, watch).train()
    skipped = order.warm_up
    logs = watch.logs[skipped:]
    measured = Measured(
        side="TRL",
        step_s=[b - a for a, b in pairwise(watch.ends[skipped - 1 :])],
        waited_s=[row["perf/rollout_wait_s"] for row in logs],
        publish_s=[row["perf/weight_sync_s"] for row in logs],
        trained=[row["batch/trained_tokens_per_step"] for row in logs],
        more={
            "attention_s": attention.forward_s,
            **{name: [row.get(name) for row in logs] for name in KEPT},
        },
    )
    if len(watch.counts) == 2:
        measured.sampled, measured.prompted = (
            watch.counts[1][name] - watch.counts[0][name] for name in ("sampled", "prompted")
        )
    order.output.write_text(json.dumps(asdict(measured)), encoding="utf-8")


if __name__ == "__main__":
    main()
