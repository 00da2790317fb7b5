"""What ``--agent`` means: from a few words to a policy."""

from __future__ import annotations

import inspect
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from turngym.agents.config import ChatAgentConfig, CompletionsAgentConfig, LocalAgentConfig
from turngym.agents.functions import FunctionPolicy
from turngym.agents.policy import Policy
from turngym.agents.scripted import ExpertPolicy, InlinePolicy, NoopPolicy, RandomPolicy
from turngym.cli.keyboard import EndOfInput, ask
from turngym.cli.needs import need_train_extra
from turngym.cli.output import say
from turngym.config import load_config
from turngym.errors import CheckpointError, ConfigError, unknown_name
from turngym.plugins import import_attribute

FORMS = (
    "expert | random | noop | human | openai:MODEL | completions:MODEL | hf:NAME_OR_PATH | "
    "run:FOLDER | module:function | FILE.py:function | FILE.toml; the models take 'key=value' "
    "after a blank"
)
HUMAN = "human"

_SCRIPTED: Mapping[str, Callable[[], Policy]] = {
    "expert": ExpertPolicy,
    "random": RandomPolicy,
    "noop": NoopPolicy,
}
_MODELS: Mapping[str, tuple[type[ChatAgentConfig | CompletionsAgentConfig | LocalAgentConfig], str]]
_MODELS = {
    "openai": (ChatAgentConfig, "model"),
    "completions": (CompletionsAgentConfig, "model"),
    "hf": (LocalAgentConfig, "path"),
}
"""Kinds of models: their settings, and which of them stands after the colon."""


def make_policy(spec: str) -> Policy:
    """Return the policy that ``spec`` describes; ``FORMS`` lists how.

    Raises:
        ConfigError: It describes none, or what it needs is missing.
    """
    if spec in _SCRIPTED:
        return _SCRIPTED[spec]()
    if spec == HUMAN:
        return InlinePolicy(_ask_person)
    if spec.split(" ")[0].endswith(".toml"):
        return _from_file(spec)
    if spec == "oracle":
        raise ConfigError("agent 'oracle': has a new name: expert")
    kind, colon, rest = spec.partition(":")
    if not colon:
        raise unknown_name("agent", spec, [*_SCRIPTED, HUMAN], hint=f"Wanted {FORMS}.")
    if not rest:
        raise ConfigError(f"agent {spec!r}: nothing after the colon; wanted {FORMS}")
    if kind in _MODELS:
        return _model(spec, kind, rest)
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


def _model(spec: str, kind: str, rest: str) -> Policy:
    """Return the agent of ``kind:NAME key=value ...``."""
    name, *settings = _words(spec, rest)
    config, field = _MODELS[kind]
    return _built(spec, config, [{"type": kind, field: name}, *settings])


def _from_file(spec: str) -> Policy:
    """Return the agent of ``FILE.toml key=value ...``."""
    path, *settings = _words(spec, spec)
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"agent {path!r}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"agent {path!r}: {error}") from error
    kind = content.get("type", "openai")
    if kind not in _MODELS:
        raise unknown_name("agent type", str(kind), _MODELS)
    return _built(spec, _MODELS[kind][0], [content, *settings])


def _built(
    spec: str,
    config_type: type[ChatAgentConfig | CompletionsAgentConfig | LocalAgentConfig],
    sources: list[str | Mapping[str, Any]],
) -> Policy:
    from turngym.agents.build import build_agent

    try:
        config = load_config(config_type, sources)
    except ConfigError as error:
        raise ConfigError(f"agent {spec!r}: {error}") from None
    if isinstance(config, LocalAgentConfig | CompletionsAgentConfig):
        need_train_extra(f"agent {spec!r}")
    if isinstance(config, LocalAgentConfig):
        path = config.path
        if path.startswith((".", "/", "~")) and not Path(path).expanduser().is_dir():
            raise ConfigError(f"agent {spec!r}: there is no such folder")
    return build_agent(config)


def _words(spec: str, text: str) -> list[str]:
    """Return the parts of ``NAME key=value ...``; quotes keep blanks together."""
    try:
        name, *settings = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"agent {spec!r}: {error}") from error
    for setting in settings:
        if "=" not in setting:
            raise ConfigError(f"agent {spec!r}: {setting!r}: wanted key=value")
    return [name, *settings]


def _trained(spec: str, path: Path) -> Policy:
    need_train_extra(f"agent {spec!r}")
    from turngym.trainers.runs.opening import load_policy

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
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(
            f"agent {spec!r}: wanted a function of (observation, info) that returns a str, "
            f"or a Policy object; found {_kind(found)}"
        )
    return FunctionPolicy(found)


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__!r}"
    return f"a value of type {type(value).__name__!r}"
