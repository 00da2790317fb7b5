"""Spans of a run: which there are, what is inside what, and that none are there unasked."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import TINY_RUN
from turngym import tracing
from turngym.config import load_config
from turngym.errors import MissingExtraError, UnknownNameError
from turngym.tracing import episode_spans, is_tracing, traced, traced_run
from turngym.trainers.loop import train
from turngym.trainers.settings.train import TrainConfig


@pytest.mark.extra("opentelemetry.sdk")
def test_a_run_emits_spans_of_updates_and_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = in_memory(monkeypatch)
    sources = [tomllib.loads(TINY_RUN), "algo=grpo", "run.opentelemetry=true", "run.steps=1"]
    train(load_config(TrainConfig, sources), tmp_path / "run")
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    inside = {
        (span.name, by_id[span.parent.span_id].name if span.parent else None) for span in spans
    }
    assert {
        ("run", None),
        ("update", None),
        ("episode", None),
        ("validation", "run"),
        ("held-out tasks", "run"),
        ("rollout", "update"),
        ("credit", "update"),
        ("learn", "update"),
        ("publish weights", "update"),
        ("checkpoint", "update"),
        ("turn", "episode"),
        ("generate", "turn"),
        ("environment step", "turn"),
    } <= inside
    (run,) = (span for span in spans if span.name == "run")
    roots = [span for span in spans if span.name in ("update", "episode")]
    assert {link.context.span_id for span in roots for link in span.links} == {run.context.span_id}
    assert run.attributes["turngym.run.name"] == "run"
    for episode in (span for span in roots if span.name == "episode"):
        facts = episode.attributes
        own = [s for s in spans if s.context.trace_id == episode.context.trace_id]
        begun = sum(span.name == "turn" for span in own)
        assert begun - facts["turngym.turns"] in (
            0,
            facts["turngym.stop_reason"] == "truncated_context",
        )
        generated = [span.attributes for span in own if span.name == "generate"]
        tokens = sum(found.get("gen_ai.usage.output_tokens", 0) for found in generated)
        assert facts["gen_ai.usage.output_tokens"] == tokens  # the expert's are 0
        assert facts["turngym.env.id"] == "turngym/Maze-v0"
        assert facts["turngym.stop_reason"]
    assert not is_tracing()


def in_memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have spans kept in what is returned."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_provider", lambda: provider)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    return exporter


@pytest.mark.extra("opentelemetry.sdk")
def test_what_raises_is_a_span_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = in_memory(monkeypatch)

    @traced("learn")
    def fail() -> None:
        raise ValueError("not finite")

    with pytest.raises(ValueError, match="not finite"), traced_run({}):
        fail()
    found = {span.name: span.status.status_code.name for span in exporter.get_finished_spans()}
    assert found == {"learn": "ERROR", "run": "ERROR"}


def test_without_a_traced_run_nothing_is_made() -> None:
    def never() -> dict[str, str]:
        raise AssertionError("attributes are asked for")

    assert not is_tracing()
    assert episode_spans(never) is None
    assert traced("learn")(lambda: 3)() == 3


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'turngym\[otel\]'"):
        tracing.check_tracing()


@pytest.mark.extra("opentelemetry.sdk")
def test_an_unknown_exporter_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "consol")
    with pytest.raises(UnknownNameError, match="Did you mean 'console'"):
        tracing.check_tracing()
