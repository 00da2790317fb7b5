"""A gateway in front of our policy server, with the server's own record beside what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turngym.agents.config import EndpointConfig
from turngym.agents.remote.endpoint import Endpoint
from turngym.agents.serving.answers import Answer
from turngym.agents.serving.http import serving
from turngym.agents.serving.policy_server import PolicyServer
from turngym.rollouts.gateway.app import Gateway, Tokens
from turngym.rollouts.gateway.episodes import Episodes, OpenEnv
from turngym.types import Trajectory

CONTROL = "control-key-of-the-test"


@dataclass
class Bench:
    """What a test needs of a running gateway."""

    url: str
    episodes: Episodes
    served: list[Answer] = field(default_factory=list)
    """The upstream server's own record."""


@asynccontextmanager
async def gateway(
    upstream: str,
    out: Path | None = None,
    *,
    tokens: Tokens = "auto",
    env: OpenEnv | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Run a gateway in front of any server."""
    config = EndpointConfig(model="tiny", base_url=upstream, retry_wait_s=0.01, max_retries=2)
    endpoint = Endpoint(config)
    episodes = Episodes(out=out, scrubber=endpoint.scrubber, open_env=env)
    app = Gateway(
        endpoint,
        episodes,
        control_key=CONTROL,
        tokens=tokens,
        serves_tools=env is not None,
        **settings,
    ).app()
    async with serving(app) as url:
        yield Bench(url=url, episodes=episodes)


@asynccontextmanager
async def bench(
    engine: Any,
    renderer: Any,
    out: Path | None = None,
    *,
    tokens: Tokens = "yes",
    env: OpenEnv | None = None,
    **server: Any,
) -> AsyncIterator[Bench]:
    """Run a gateway in front of our own policy server."""
    served: list[Answer] = []
    policy = PolicyServer(engine, renderer, name="tiny", on_answer=served.append, **server)
    async with (
        serving(policy.app()) as upstream,
        gateway(f"{upstream}/v1", out, tokens=tokens, env=env) as found,
    ):
        found.served = served
        yield found


def segments_match(trajectory: Trajectory, served: list[Answer]) -> None:
    """Assert that the trajectory holds, call by call, exactly what the server served."""
    assert len(trajectory.turns) == len(served) > 0
    stored: list[int] = []
    for number, (turn, answer) in enumerate(zip(trajectory.turns, served, strict=True)):
        if turn.starts_segment or number == 0:
            stored = []
        stored += [i for span in turn.spans for i in span.token_ids]
        assert stored == [*answer.prompt_ids, *answer.generation.token_ids]
        drawn = [span for span in turn.spans if span.sampled]
        assert [i for span in drawn for i in span.token_ids] == list(answer.generation.token_ids)
        assert [x for span in drawn for x in span.logprobs] == list(answer.generation.logprobs)
