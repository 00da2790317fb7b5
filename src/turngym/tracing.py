"""OpenTelemetry spans of a run. Off unless a run asks for them; then a hook is a look at a None.

    run          the whole run; held-out tasks, validation and what they publish and save are in it
    update       one for each update, a trace of its own: rollout, credit, learn, publish weights,
                 checkpoint
    episode      one for each try at an episode, a trace of its own: turns, in which the model
                 generates and the environment steps

Traces of updates and episodes link to the run's span. So a trace stays small however long a run
is, and a sampler takes whole episodes. ``OTEL_*`` variables decide what is sampled and where it
goes.

Source:
    OpenTelemetry's semantic conventions of generative AI name the attributes ``gen_ai.*``.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

from turngym.errors import unknown_name
from turngym.plugins import import_extra

logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Attributes = Mapping[str, str | float | bool | tuple[str, ...] | None]

_CLOSE_S = 10.0
"""Seconds that a run waits at its end until its last spans are exported."""
_GROUP = "opentelemetry_traces_exporter"
"""Entry points by which OpenTelemetry's packages name their exporters."""
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class _Tracing:
    """What is there while spans are emitted."""

    def __init__(self, provider: Any, attributes: Attributes) -> None:
        from opentelemetry import context, trace

        self.trace, self.context = trace, context
        self.tracer = provider.get_tracer("turngym")
        self.run = self.tracer.start_span("run", attributes=_given(attributes))

    def root(self, name: str, attributes: Attributes) -> Any:
        """Return the first span of a new trace, linked to the run's."""
        return self.tracer.start_span(
            name,
            context=self.context.Context(),
            links=[self.trace.Link(self.run.get_span_context())],
            attributes=_given(attributes),
        )


_active: _Tracing | None = None


def check_tracing() -> None:
    """Make sure that spans can be emitted.

    Raises:
        MissingExtraError: OpenTelemetry is not installed; the message holds the install line.
        ConfigError: ``OTEL_TRACES_EXPORTER`` names an exporter that is not there.
    """
    import_extra("opentelemetry.sdk.trace.export", "run.opentelemetry", "otel")
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        list(_exporters())  # the process has none of its own


@contextmanager
def traced_run(attributes: Attributes) -> Iterator[None]:
    """Emit spans inside the block, under one for the whole run, and export what is left at its end.

    A tracer provider that the process has already is used; otherwise there is one for the block.

    Args:
        attributes: Of the run's span.
    """
    global _active
    from opentelemetry import trace

    provider, own = trace.get_tracer_provider(), None
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = own = _provider()
    _active = tracing = _Tracing(provider, attributes)
    try:
        with trace.use_span(tracing.run, end_on_exit=True):
            yield
    finally:
        _active = None
        if own is not None:
            closing = threading.Thread(target=own.shutdown, daemon=True)
            closing.start()
            closing.join(_CLOSE_S)


def traced(name: str, *, root: bool = False) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that puts each call of a function or coroutine function into a span.

    Args:
        name: Of the span.
        root: Begin a trace of its own.
    """

    def decorate(function: FunctionT) -> FunctionT:
        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _span(name, root):
                return await function(*args, **kwargs)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _span(name, root):
                return function(*args, **kwargs)

        return cast(FunctionT, awaited if inspect.iscoroutinefunction(function) else called)

    return decorate


def _span(name: str, root: bool) -> Any:
    if _active is None:
        return nullcontext()
    if root:
        return _active.trace.use_span(_active.root(name, {}), end_on_exit=True)
    return _active.tracer.start_as_current_span(name)


def is_tracing() -> bool:
    """Return whether spans are emitted."""
    return _active is not None


def note(attributes: Attributes) -> None:
    """Add ``attributes`` to the span around; None values are left out."""
    if _active is not None:
        _active.trace.get_current_span().set_attributes(_given(attributes))


class EpisodeSpans:
    """The spans of one try at an episode. What a turn calls meanwhile becomes part of its span.

    Args:
        attributes: Of the episode.
    """

    def __init__(self, tracing: _Tracing, attributes: Attributes) -> None:
        self._tracing = tracing
        self._episode = tracing.root("episode", attributes)
        self._open: list[Any] = [self._episode]
        """Spans that have not ended, outermost first."""

    def begin_turn(self, number: int) -> None:
        """The policy is asked."""
        self._begin("turn", {"turngym.turn": number})

    def begin_step(self) -> None:
        """The environment is asked."""
        self._begin("environment step", {})

    def end_turn(self, attributes: Attributes) -> None:
        """The environment has answered."""
        while len(self._open) > 1:
            span = self._open.pop()
            span.set_attributes(_given(attributes))
            span.end()

    def end(self, attributes: Attributes, *, error: str | None = None) -> None:
        """The episode is over, perhaps by an ``error``."""
        self.end_turn({})
        if error is not None:
            status = self._tracing.trace.Status(self._tracing.trace.StatusCode.ERROR, error)
            self._episode.set_status(status)
        self._episode.set_attributes(_given(attributes))
        self._episode.end()

    def _begin(self, name: str, attributes: Attributes) -> None:
        tracing = self._tracing
        around = tracing.trace.set_span_in_context(self._open[-1])
        span = tracing.tracer.start_span(name, context=around, attributes=_given(attributes))
        self._open.append(span)
        # Of the episode's own task: no other sees it, and it ends with the task.
        tracing.context.attach(tracing.trace.set_span_in_context(span))


def episode_spans(attributes: Callable[[], Attributes]) -> EpisodeSpans | None:
    """Return the spans of an episode that begins in this task; None where there are none.

    Args:
        attributes: Returns those of the episode.
    """
    return None if _active is None else EpisodeSpans(_active, attributes())


def _given(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _provider() -> Any:
    """Return a provider as ``OTEL_*`` variables describe it."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = "OTEL_SERVICE_NAME" in os.environ
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": "turngym"})
    )
    for exporter in _exporters():
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    return provider


def _exporters() -> Iterator[Any]:
    """Yield the classes that ``OTEL_TRACES_EXPORTER`` names."""
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        wanted = name.strip()
        if wanted in ("", "none"):
            continue
        if wanted == "otlp":
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
            wanted = _PROTOCOLS.get(protocol, protocol)
        found = importlib.metadata.entry_points(group=_GROUP)
        if wanted not in found.names:
            if wanted == "otlp_proto_http":
                import_extra("opentelemetry.exporter.otlp.proto.http", "run.opentelemetry", "otel")
            raise unknown_name("OTEL_TRACES_EXPORTER", wanted, [*found.names, "otlp", "none"])
        yield found[wanted].load()
