"""What ``--agent`` means: from a few words to a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turngym.agents.base import Policy
from turngym.agents.scripted import FunctionPolicy, NoopPolicy, OraclePolicy, RandomPolicy
from turngym.cli.keyboard import EndOfInput, ask
from turngym.cli.needs import need_train_extra
from turngym.cli.output import say
from turngym.errors import CheckpointError, ConfigError, unknown_name
from turngym.imports import import_attribute

FORMS = "oracle | random | noop | human | hf:NAME_OR_PATH | run:FOLDER | module:function"
HUMAN = "human"

_SCRIPTED: Mapping[str, Callable[[], Policy]] = {
    "oracle": OraclePolicy,
    "random": RandomPolicy,
    "noop": NoopPolicy,
}
_MAX_CONTEXT = 4096
"""Longest conversation in tokens of a model that was made for longer ones."""
_MAX_NEW_TOKENS = 256


def make_policy(spec: str) -> Policy:
    """Return the policy that ``spec`` describes; ``FORMS`` lists how.

    Raises:
        ConfigError: It describes none, or what it needs is missing.
    """
    if spec in _SCRIPTED:
        return _SCRIPTED[spec]()
    if spec == HUMAN:
        return FunctionPolicy(_ask_person)
    kind, colon, rest = spec.partition(":")
    if not colon:
        raise unknown_name("agent", spec, [*_SCRIPTED, HUMAN], hint=f"Wanted {FORMS}.")
    if not rest:
        raise ConfigError(f"agent {spec!r}: nothing after the colon; wanted {FORMS}")
    if kind == "openai":
        raise ConfigError(
            f"agent {spec!r}: remote models come with the agents release and are not there yet; "
            "use hf:NAME_OR_PATH or module:function"
        )
    if kind == "hf":
        return _pretrained(spec, rest)
    if kind == "run":
        return _trained(spec, Path(rest))
    return _from_python(spec)


def _ask_person(observation: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    if "instructions" in info:  # the first turn of an episode
        say(f"\n{info['task_id']}: '?' lists actions, 'quit' stops.\n{info['instructions']}\n")
    say(observation["text"])
    try:
        return ask("", info)
    except EndOfInput:
        raise ConfigError("agent 'human': the input ended before the episodes did") from None


def _pretrained(spec: str, path: str) -> Policy:
    need_train_extra(f"agent {spec!r}")
    from turngym.agents.engine import LocalEngine, Sampling
    from turngym.agents.local import LocalPolicy
    from turngym.agents.models import load_model_dir
    from turngym.agents.rendering import Renderer

    if path.startswith((".", "/", "~")) and not Path(path).expanduser().is_dir():
        raise ConfigError(f"agent {spec!r}: there is no such folder")
    model, tokenizer = load_model_dir(Path(path).expanduser())
    longest = int(getattr(model.config, "max_position_embeddings", _MAX_CONTEXT))
    engine = LocalEngine(model, tokenizer, context=min(longest, _MAX_CONTEXT))
    sampling = Sampling(temperature=0.0, max_new_tokens=_MAX_NEW_TOKENS)
    return LocalPolicy(engine, Renderer(tokenizer), sampling=sampling)


def _trained(spec: str, path: Path) -> Policy:
    need_train_extra(f"agent {spec!r}")
    from turngym.trainers.opening import load_policy

    try:
        return load_policy(path.expanduser())
    except CheckpointError as error:  # of the user's choice, not of a run in progress
        raise ConfigError(f"agent {spec!r}: {error}") from error


def _from_python(spec: str) -> Policy:
    """Return the policy of ``module:function``, or a ``Policy`` that the module holds."""
    found = import_attribute("agent", spec)
    if hasattr(found, "start") and not inspect.isclass(found):
        policy: Policy = found
        return policy
    if not callable(found) or inspect.isclass(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(
            f"agent {spec!r}: wanted a plain function of (observation, info) that returns a str, "
            f"or a Policy object; found {_kind(found)}"
        )
    return FunctionPolicy(found)


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__!r}"
    if inspect.iscoroutinefunction(value):
        return f"the coroutine function {value.__name__!r}"
    return f"a value of type {type(value).__name__!r}"
