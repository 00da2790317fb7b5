"""A model behind ``/completions`` that takes and returns token ids: an engine over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from turngym.agents.engine.protocol import Generation, OnToken, Sampling, Session
from turngym.agents.policy import ContextOverflow
from turngym.agents.remote.config import CompletionsConfig
from turngym.agents.remote.endpoint import Endpoint, HalfAnswer
from turngym.agents.remote.wire import ASK_COMPLETION_TOKENS, first_choice, generation_of
from turngym.errors import ConfigError
from turngym.seeding import derive_seed


class CompletionsEngine:
    """Samples tokens on a server (vLLM, ``turngym serve policy``); keeps each token as it was.

    The server keeps no state of ours: each call sends the ids of the whole conversation, which its
    prefix cache knows.
    """

    def __init__(self, config: CompletionsConfig) -> None:
        self.config = config
        self.endpoint = Endpoint(config)

    def open(self, seed: int) -> Session:
        """Return a session."""
        return _CompletionsSession(self, seed)


class _CompletionsSession:
    def __init__(self, engine: CompletionsEngine, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._ids: list[int] = []
        self._calls = 0
        self._open = False

    async def generate(
        self, new_ids: Sequence[int], sampling: Sampling, *, on_token: OnToken | None = None
    ) -> Generation:
        config, endpoint = self._engine.config, self._engine.endpoint
        if not self._open:
            self._open = True
            endpoint.enter()
        prompt = [*self._ids, *new_ids]
        room = config.context - len(prompt)
        if room < 1:
            raise ContextOverflow(f"conversation of {len(prompt)} tokens, context {config.context}")
        body = self._request(prompt, sampling, min(room, sampling.max_new_tokens))
        reply = await endpoint.post("/completions", body, check=_check)
        generation = generation_of(reply.body)
        if generation is None or not generation.token_ids:
            raise ConfigError(
                f"model {config.model!r} at {config.url}: the server returns no token ids with "
                "log-probs; vLLM and 'turngym serve policy' do. Use openai:MODEL for others"
            )
        self._ids = [*prompt, *generation.token_ids]
        generation.report(on_token)
        return generation

    def read(self, token_ids: Sequence[int], *, sampled: int) -> None:
        """Append the tokens of an earlier turn; the next request has the seed after its own."""
        self._ids.extend(token_ids)
        self._calls += 1

    def reseed(self, seed: int) -> None:
        """Begin another stream of seeds."""
        self._seed, self._calls = seed, 0

    def close(self) -> Awaitable[None] | None:
        """Leave the server."""
        if not self._open:
            return None
        self._open = False
        return self._engine.endpoint.leave()

    def _request(self, prompt: list[int], sampling: Sampling, limit: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._engine.config.model,
            "prompt": prompt,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **ASK_COMPLETION_TOKENS,
        }
        if sampling.temperature != 0:
            body["seed"] = derive_seed(self._seed, "call", self._calls) % 2**31
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        self._calls += 1
        return body | self._engine.config.extra


def _check(answer: Mapping[str, Any]) -> None:
    if first_choice(answer).get("finish_reason") is None:
        raise HalfAnswer("the answer broke off")
