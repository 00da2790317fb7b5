"""The local engine: many episodes decoded at once, each with its own cache, seed and stop rule.

Requests of all episodes share one decode loop. It runs inline in the event loop, one decode step at
a time, and lets every episode that can speak do so before the next step, so a run with inline
environments is a pure function of its seeds. Weights are swapped between two steps; every token
carries the version that drew it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from turngym.agents.engine.decoder import CachedDecoder, Decoder, make_decoder
from turngym.agents.engine.protocol import Generation as Generation
from turngym.agents.engine.protocol import OnToken
from turngym.agents.engine.protocol import Sampling as Sampling
from turngym.agents.policy import ContextOverflow
from turngym.errors import ConfigError, PolicyFault

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made."""

    decode_steps: int = 0
    sampled_tokens: int = 0
    read_tokens: int = 0
    """Prompt and observation tokens that were computed."""
    reused_tokens: int = 0
    """Tokens of earlier turns that a kept cache spared from being computed again."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    session: EngineSession
    feed: list[int]
    sampling: Sampling
    future: asyncio.Future[Generation]
    limit: int
    on_token: OnToken | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class LocalEngine:
    """Generates for many sessions at once on the CPU.

    Args:
        model: A causal language model; the engine works on its own copy of the weights.
        tokenizer: Its end token ends an action; it also decodes for stop texts.
        context: Longest conversation in tokens; None for what the model was made for.
        max_sessions: Most sessions open at once; each holds cache memory.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int | None = None,
        max_sessions: int = 1024,
    ) -> None:
        longest = int(getattr(model.config, "max_position_embeddings", 2048))
        self.context = longest if context is None else context
        self.version = 0
        self.stats = EngineStats()
        self._decoder: Decoder = make_decoder(model, context=self.context)
        self._tokenizer = tokenizer
        self._end_id = int(tokenizer.eos_token_id)
        self._max_sessions = max_sessions
        self._open_sessions = 0
        self._waiting: list[_Request] = []
        self._active: list[_Request] = []
        self._staged: tuple[Mapping[str, Tensor], int] | None = None
        self._loop_task: asyncio.Task[None] | None = None

    def open(self, seed: int) -> EngineSession:
        """Return a fresh session whose draws depend on ``seed`` and on nothing else.

        Raises:
            ConfigError: ``max_sessions`` are open.
        """
        if self._open_sessions >= self._max_sessions:
            raise ConfigError(
                f"engine: {self._max_sessions} sessions are open; lower the concurrency or raise "
                "max_sessions"
            )
        self._open_sessions += 1
        return EngineSession(self, self._decoder.open_row(), seed)

    @property
    def free_sessions(self) -> int:
        """Sessions that can be opened now."""
        return self._max_sessions - self._open_sessions

    def load_weights(self, state: Mapping[str, Tensor], version: int) -> None:
        """Swap the weights before the next decode step.

        Open sessions keep their cache: what they read stays computed with the old weights.

        Args:
            state: State dict of the model the engine was made from.
            version: Recorded with every token that the new weights draw.
        """
        self._staged = (state, version)
        if not self._active:
            self._swap()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Return each sequence's own log-probs at temperature 1, shape [L - 1], from token 1 on.

        Raises:
            ConfigError: The model's architecture has no scoring decoder.
        """
        if not isinstance(self._decoder, CachedDecoder):
            raise ConfigError("engine: score needs a Llama- or Qwen-shaped model")
        return [scored.numpy() for scored in self._decoder.score(sequences)]

    async def _generate(
        self,
        session: EngineSession,
        new_ids: Sequence[int],
        sampling: Sampling,
        on_token: OnToken | None,
    ) -> Generation:
        feed = [*session.unread, *new_ids]
        room = self.context - session.length - len(feed)
        if not feed:
            raise ConfigError("engine: generate needs at least one new token")
        if room < 1:
            raise ContextOverflow(
                f"conversation of {session.length + len(feed)} tokens, context of {self.context}"
            )
        loop = asyncio.get_running_loop()
        request = _Request(
            session=session,
            feed=feed,
            sampling=sampling,
            future=loop.create_future(),
            limit=min(sampling.max_new_tokens, room),
            on_token=on_token,
        )
        self._waiting.append(request)
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = loop.create_task(self._serve())
        return await request.future

    async def _serve(self) -> None:
        """Decode until nobody waits any more."""
        try:
            while self._waiting or self._active:
                await asyncio.sleep(0)  # whoever has an answer speaks again before the next step
                self._drop_abandoned()
                self._swap()
                self._read_waiting()
                self._decode()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            self._fail(PolicyFault(f"engine: {type(error).__name__}: {error}"))

    def _fail(self, error: PolicyFault) -> None:
        for request in [*self._waiting, *self._active]:
            if not request.future.done():
                request.future.set_exception(error)
        self._waiting.clear()
        self._active.clear()

    def _drop_abandoned(self) -> None:
        self._waiting = [r for r in self._waiting if not r.future.done() and not r.session.closed]
        self._active = [r for r in self._active if not r.future.done() and not r.session.closed]

    def _swap(self) -> None:
        if self._staged is not None:
            state, self.version = self._staged
            self._staged = None
            self._decoder.load_weights(state)

    def _read_waiting(self) -> None:
        """Read new prompts once as many wait as are being decoded, so that batches stay full."""
        if not self._waiting or len(self._waiting) < len(self._active):
            return
        batch, self._waiting = self._waiting, []
        for request in batch:
            self.stats.reused_tokens += request.session.length
            self.stats.read_tokens += len(request.feed)
        self._active += batch
        self._advance(batch, [request.feed for request in batch])
        self._drop_abandoned()

    def _decode(self) -> None:
        """Draw one more token for every active request."""
        if self._active:
            self._advance(self._active, [r.session.unread for r in self._active])
            self._drop_abandoned()

    def _advance(self, batch: list[_Request], tokens: list[list[int]]) -> None:
        """Feed ``tokens``, draw the next one for each request and finish those that end."""
        logits = self._decoder.extend([r.session.row for r in batch], tokens)
        drawn, logprobs = _draw(logits, batch)
        self.stats.decode_steps += 1
        self.stats.sampled_tokens += len(batch)
        for request, fed, token, logprob in zip(batch, tokens, drawn, logprobs, strict=True):
            session = request.session
            session.length += len(fed)
            session.unread = [token]
            session.draws += 1
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            if request.on_token is not None:
                request.on_token(token, logprob, self.version)
            finish = self._finish(request)
            if finish is not None and not request.future.done():
                request.future.set_result(
                    Generation(
                        token_ids=tuple(request.token_ids),
                        logprobs=tuple(request.logprobs),
                        versions=tuple(request.versions),
                        finish=finish,
                    )
                )

    def _finish(self, request: _Request) -> str | None:
        if request.token_ids[-1] == self._end_id:
            return "end"
        if request.sampling.stop:
            text = self._tokenizer.decode(request.token_ids)
            if any(stop in text for stop in request.sampling.stop):
                return "stop"
        return "length" if len(request.token_ids) >= request.limit else None


class EngineSession:
    """One episode's place in the engine: its cache row and its stream of random numbers."""

    def __init__(self, engine: LocalEngine, row: int, seed: int) -> None:
        self._engine = engine
        self.row = row
        self.seed = seed
        self.length = 0
        """Tokens in the cache."""
        self.unread: list[int] = []
        """Tokens that the model has not read yet: the last drawn one, and what was taken over."""
        self.draws = 0
        self.closed = False

    async def generate(
        self, new_ids: Sequence[int], sampling: Sampling, *, on_token: OnToken | None = None
    ) -> Generation:
        """Read ``new_ids`` after what was read and drawn so far, and draw an action.

        Args:
            new_ids: At least one token, unless the last action was cut and is to go on.
            sampling: How to draw.
            on_token: Told of each token as it is drawn; must not raise or wait.

        Raises:
            ContextOverflow: There is no room for even one more token.
            PolicyFault: The engine broke.
        """
        if self.closed:
            raise PolicyFault("engine: the session is closed")
        return await self._engine._generate(self, new_ids, sampling, on_token)

    def read(self, token_ids: Sequence[int], *, draws: int) -> None:
        """Take over tokens of an earlier turn, which are read with the next prompt.

        Args:
            token_ids: The tokens, prompt and action.
            draws: How many of them this session's random numbers drew.
        """
        self.unread.extend(token_ids)
        self.draws += draws

    def close(self) -> None:
        """Free the cache row. Safe to call twice."""
        if not self.closed:
            self.closed = True
            self._engine._decoder.close_row(self.row)
            self._engine._open_sessions -= 1


def _draw(logits: Tensor, batch: Sequence[_Request]) -> tuple[list[int], list[float]]:
    """Draw one token per row by inverting the cumulative distribution at the row's own number."""
    temperatures = [r.sampling.temperature for r in batch]
    scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures])
    logprobs = (logits / scale[:, None]).log_softmax(-1)
    top_ps = [r.sampling.top_p for r in batch]
    if min(top_ps) < 1:
        logprobs = _truncate(logprobs, torch.tensor(top_ps))
    cumulative = logprobs.double().exp().cumsum(-1)
    seeds = np.array([r.session.seed for r in batch], dtype=np.uint64)
    counters = np.array([r.session.draws for r in batch], dtype=np.uint64)
    uniform = torch.from_numpy(_uniform(seeds, counters)) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, uniform[:, None])[:, 0].clamp(max=logits.shape[1] - 1)
    greedy = torch.tensor([t == 0 for t in temperatures])
    drawn = torch.where(greedy, logits.argmax(-1), drawn)
    chosen = logprobs.gather(-1, drawn[:, None])[:, 0].clamp(max=0.0)
    chosen = torch.where(greedy, torch.zeros_like(chosen), chosen)
    return drawn.tolist(), chosen.tolist()


def _truncate(logprobs: Tensor, top_ps: Tensor) -> Tensor:
    """Renormalise over the likeliest tokens that reach ``top_p`` together."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    ordered = ordered.masked_fill(before >= top_ps[:, None], float("-inf"))
    kept = torch.empty_like(ordered).scatter_(-1, order, ordered)
    return kept.log_softmax(-1)


def _uniform(seeds: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers in (0, 1) that depend on (seed, counter) alone.

    Source:
        The splitmix64 finaliser: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
        generators".
    """
    with np.errstate(over="ignore"):
        z = _mix(seeds) + (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = _mix(z)
    result: NDArray[np.float64] = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return result


def _mix(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
