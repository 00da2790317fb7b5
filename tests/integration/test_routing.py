"""Experts that a server reports go with the tokens, through everything that keeps them."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.servers import engine_on_a_server
from helpers.trajectories import episode, turn
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.protocol import Generation, Sampling, spans_of
from turngym.agents.engine.vllm.children import command
from turngym.agents.engine.vllm.replica import Replica
from turngym.errors import PolicyFault
from turngym.records import from_json, to_json
from turngym.rollouts.scheduler.packing import pack_episode, unpack_episode
from turngym.trainers.samples import to_samples
from turngym.types import TokenSpan

SAMPLING = Sampling(max_new_tokens=8)


class Reports:
    """What a server of a mixture of experts adds: at each token its place and id, in two layers."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.starts: list[int | None] = []
        self.rows: slice | None = slice(None)
        self.abort_first = False
        self._generate = Replica._generate
        patch.setattr(Replica, "_generate", lambda *args: self.generate(*args))

    async def generate(self, replica: Replica, ids: Any, more: Any, *rest: Any) -> Any:
        params = dict(more["sampling_params"])
        start = params.pop("routed_experts_prompt_start", None)
        found = await self._generate(replica, ids, {**more, "sampling_params": params}, *rest)
        if "logprobs" not in params:  # the probe
            return found
        self.starts.append(start)
        [choice] = found["choices"]
        if self.abort_first:
            self.abort_first = False
            choice["token_ids"] = choice["token_ids"][:3]
            choice["logprobs"]["content"] = choice["logprobs"]["content"][:3]
            choice["weight_versions"] = [{**choice["weight_versions"][0], "end": 3}]
            choice["finish_reason"] = "abort"
        if start is not None and self.rows is not None:
            every = [*ids, *choice["token_ids"]][:-1]
            rows = np.array([[[n, token], [token, n]] for n, token in enumerate(every)])
            file = io.BytesIO()
            np.save(file, rows[start:][self.rows].astype(np.uint16))
            choice["routed_experts"] = base64.b64encode(file.getvalue()).decode()
        return found


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    return Reports(monkeypatch)


def check(ids: list[int], found: Any) -> None:
    """Make sure that each token has what was reported of the one before it."""
    assert found.shape == (len(ids), 2, 2)
    for place in range(1, len(ids)):
        assert found[place].tolist() == [[place - 1, ids[place - 1]], [ids[place - 1], place - 1]]


async def test_every_token_has_the_experts_on_the_way_to_it_through_turns_and_resuming(
    reports: Reports, tmp_path: Path
) -> None:
    async with engine_on_a_server(routing=True) as engine:
        session = engine.open(1)
        reports.abort_first = True  # as an update does: the rest is another request
        one = await session.generate([7, 3, 6], SAMPLING)
        two = await session.generate([4, 5], SAMPLING)
        ids = [7, 3, 6, *one.token_ids, 4, 5, *two.token_ids]
        first = 3 + len(one.token_ids)
        assert reports.starts == [0, 5, first - 1]

        resumed = engine.open(1)
        resumed.read([7, 3, 6, *one.token_ids], sampled=len(one.token_ids))
        again = await resumed.generate([4, 5], SAMPLING)
        assert reports.starts[3] == first - 1
        assert again.routing is not None
        assert two.routing is not None
        np.testing.assert_array_equal(again.routing[:3], two.routing[:3])

    spans = [spans_of((7, 3, 6), one), spans_of((4, 5), two)]
    played = episode([replace(turn(), spans=these) for these in spans])
    for kept in (
        played,
        from_json(to_json(played)),
        unpack_episode(pack_episode(played)),
    ):
        assert kept == played
        count = len(one.token_ids) + len(two.token_ids)
        [sample] = to_samples(kept, np.zeros(count), index=0)
        assert sample.token_ids.tolist() == ids
        check(ids, sample.routing)
    context = played.turns[0].as_context()
    assert context.spans[1].routing == played.turns[0].spans[1].routing


async def test_nothing_is_asked_and_no_record_is_larger_without_the_setting(
    reports: Reports,
) -> None:
    async with engine_on_a_server() as engine:
        found = await engine.open(1).generate([7, 3, 6], SAMPLING)
    assert reports.starts == [None]
    assert found.routing is None
    spans = spans_of((7, 3, 6), found)
    assert all(span.routing is None for span in spans)
    played = episode([replace(turn(), spans=spans)])
    assert "routing" not in to_json(played)
    assert b"experts" not in pack_episode(played).turns[0]
    strange = replace(played, ground_truth="\ud800")  # what UTF-8 cannot hold
    assert "routing" not in to_json(strange)
    assert from_json(to_json(strange)).turns == played.turns


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, r"reports no experts; start it by 'turngym serve engine \.\.\. --routing'"),
        (slice(1, None), r"of shape \(\d+, 2, 2\), wanted \[\d+, layers, experts of a token\]"),
    ],
)
async def test_a_server_that_reports_none_or_too_few_is_one_clear_error(
    reports: Reports, rows: slice | None, message: str
) -> None:
    reports.rows = rows
    async with engine_on_a_server(routing=True) as engine:
        with pytest.raises(PolicyFault, match=f"engine.routing: http.* {message}"):
            await engine.open(1).generate([7, 3, 6], SAMPLING)
        assert engine.metrics()["engine/ejected"] == 0


def test_experts_of_another_number_of_tokens_are_refused() -> None:
    made = Generation(
        token_ids=(1,), logprobs=(0.0,), versions=(0,), finish="end", routing=np.ones((2, 2, 2))
    )
    [prompt, _] = spans_of((5,), made)
    assert prompt.routing is not None
    assert prompt.routing.num_bytes == 4
    with pytest.raises(ValueError, match="has 4 bytes: wanted one or two for each of 3 tokens x 2"):
        TokenSpan(token_ids=(1, 2, 3), sampled=False, routing=prompt.routing)


def test_a_server_of_ours_is_started_so_that_it_reports(tmp_path: Path) -> None:
    for routing in (False, True):
        config = VllmEngineConfig(type="vllm", gpus=1, routing=routing)
        line, more = command(config, tmp_path, context=64, port=1, folder=tmp_path)
        assert ("--enable-return-routed-experts" in line) is routing
        assert (more.get("VLLM_USE_V2_MODEL_RUNNER") == "1") is routing
    for wrong in ({"gpus": 0}, {"gpus": 1, "server": "turngym"}):
        with pytest.raises(ValueError, match="reported by vLLM on a GPU alone: wanted server="):
            VllmEngineConfig(type="vllm", routing=True, **wrong)
