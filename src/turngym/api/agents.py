"""Agents by name, function or class: what ``--agent`` and the Python API accept, as policies."""

from __future__ import annotations

import importlib
import inspect
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from turngym.agents.chat.prompting import OwnHistory, OwnPrompting
from turngym.agents.config import ChatAgentConfig, CompletionsAgentConfig, LocalAgentConfig
from turngym.agents.policy import Policy
from turngym.agents.scripted import ExpertPolicy, FunctionPolicy, NoopPolicy, RandomPolicy
from turngym.config import load_config, read_toml
from turngym.errors import CheckpointError, ConfigError, require_known, unknown_name
from turngym.plugins import import_attribute, importing_extra
from turngym.provenance import digest_of, source_digest
from turngym.rollouts.players import SELF, Versus

FORMS = (
    "expert | random | noop | human | openai:MODEL | anthropic:MODEL | completions:MODEL | "
    "hf:NAME_OR_PATH | run:FOLDER | module:NAME | FILE.py:NAME | FILE.toml; the models take "
    "'key=value' after a blank"
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
    "anthropic": (ChatAgentConfig, "model"),
    "completions": (CompletionsAgentConfig, "model"),
    "hf": (LocalAgentConfig, "path"),
}
"""Kinds of models: their settings, and which of them stands after the colon."""
MODEL_KINDS = (*_MODELS, "run")
"""What stands before the colon where the agent is a model."""


def make_policy(spec: str) -> Policy:
    """Return the policy that ``spec`` describes; ``FORMS`` lists how.

    Raises:
        ConfigError: It describes none, or what it needs is missing.
    """
    if spec in _SCRIPTED:
        return _SCRIPTED[spec]()
    if spec == HUMAN:
        raise ConfigError(f"agent {HUMAN!r}: plays at the command line alone: turngym eval, replay")
    if _first_word(spec).endswith(".toml"):
        path, *settings = _words(spec, spec)
        content = read_toml(Path(path))
        kind = str(content.get("type", "openai"))
        require_known("agent type", kind, _MODELS)
        return _built(spec, _MODELS[kind][0], [content, *settings])
    if spec == "oracle":  # renamed
        raise ConfigError("agent 'oracle': has a new name: expert")
    kind, colon, rest = spec.partition(":")
    if spec.endswith(".py"):
        raise ConfigError(f"agent {spec!r}: which function or class of it? Wanted {spec}:NAME")
    if not colon:
        raise unknown_name("agent", spec, [*_SCRIPTED, HUMAN], hint=f"Wanted {FORMS}.")
    if not rest:
        raise ConfigError(f"agent {spec!r}: nothing after the colon; wanted {FORMS}")
    if kind in _MODELS:
        name, *settings = _words(spec, rest)
        config, field = _MODELS[kind]
        return _built(spec, config, [{"type": kind, field: name}, *settings])
    if kind == "run":
        return _trained(spec, rest)
    found = import_attribute("agent", spec)
    try:
        return as_policy(found)
    except ConfigError as error:
        raise ConfigError(f"agent {spec!r}: {error}") from None


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


def _first_word(spec: str) -> str:
    """Return what stands before the settings; quotes keep its blanks."""
    with suppress(ValueError, IndexError):  # said by ``_words``, or of no model
        return shlex.split(spec)[0]
    return spec


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


def _trained(spec: str, rest: str) -> Policy:
    """Return the agent of ``run:FOLDER key=value ...``."""
    need_train_extra(f"agent {spec!r}")
    from turngym.trainers.runs.checkpoints import find_model
    from turngym.trainers.runs.policies import load_policy

    path, settings = _run_words(spec, rest)
    try:
        if not settings:
            return load_policy(path)
        model = find_model(path)
    except CheckpointError as error:  # of the user's choice, not of a run in progress
        raise ConfigError(f"agent {spec!r}: {error}") from error
    return _built(spec, LocalAgentConfig, [{"type": "hf", "path": str(model)}, *settings])


def _run_words(spec: str, rest: str) -> tuple[Path, list[str]]:
    """Return folder and settings of ``FOLDER key=value ...``; a folder may have blanks."""
    if (whole := Path(rest).expanduser()).exists():
        return whole, []
    folder, *settings = _words(spec, rest)
    return Path(folder).expanduser(), settings


CHANCE = "random"
"""The opponent where none is named."""


def against(policy: Policy, opponent: object) -> Policy:
    """Return ``policy`` as one player, where several play, and ``opponent`` as the others.

    Args:
        policy: Who is measured.
        opponent: As for ``as_policy``; ``"self"`` for the policy itself as every player.

    Raises:
        ConfigError: It is none of these.
    """
    if opponent == SELF:
        return policy
    try:
        return Versus(policy, as_policy(opponent))
    except ConfigError as error:
        raise ConfigError(f"opponent: {error}") from None


def as_policy(agent: object) -> Policy:
    """Return ``agent`` as a policy.

    Args:
        agent: A policy; a text as for ``make_policy``; a function of ``(observation, info)`` that
            returns a text; or a class with such a method ``act``, made anew for each episode.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(agent, str):
        return make_policy(agent)
    if inspect.isclass(agent):
        if callable(getattr(agent, "act", None)):
            return FunctionPolicy(agent)
    elif hasattr(agent, "start"):
        policy: Policy = agent
        return policy
    elif callable(agent):
        return FunctionPolicy(agent)
    found = f"a value of type {type(agent).__name__!r}"
    if inspect.isclass(agent):
        found = f"the class {agent.__name__!r}"
    raise ConfigError(
        "wanted a function of (observation, info) that returns a str, a class with such a method "
        f"act, or a Policy object; found {found}"
    )


def agent_digest(spec: str, policy: Policy) -> str | None:
    """Return the SHA-256 of an agent's files; None when it has none, or none can be found.

    Args:
        spec: As for ``make_policy``; names weights, settings in a file, or a function in a module.
        policy: What was made of it; a history or a prompt of the user's own is in a file, too.
    """
    parts = [getattr(policy, name, None) for name in ("history", "prompting")]
    own = [part.config.function for part in parts if isinstance(part, OwnHistory | OwnPrompting)]
    found = [_named_digest(spec), *map(source_digest, own)]
    return found[0] if len(found) == 1 else sha256(repr(found).encode()).hexdigest()


def _named_digest(spec: str) -> str | None:
    if (first := _first_word(spec)).endswith(".toml"):
        return digest_of(Path(first).expanduser())
    kind, _, rest = spec.partition(":")
    if kind in ("openai", "anthropic", "completions") or not rest:
        return None
    if kind == "run":
        return _checkpoint_digest(spec, _run_words(spec, rest)[0])
    return digest_of(Path(_first_word(rest)).expanduser()) if kind == "hf" else source_digest(spec)


def _checkpoint_digest(spec: str, path: Path) -> str | None:
    need_train_extra(f"agent {spec!r}")
    from turngym.trainers.runs.checkpoints import find_model

    try:
        return digest_of(find_model(path))
    except CheckpointError:  # reported when the policy is made
        return None


def need_train_extra(what: str) -> None:
    """Make sure that ``what`` can load and train models, without progress bars of their own.

    Raises:
        MissingExtraError: The extra ``train`` is not installed.
    """
    with importing_extra(what, "train"):
        for name in ("torch", "transformers", "safetensors"):
            importlib.import_module(name)
    from transformers.utils import logging

    logging.disable_progress_bar()  # one for each file that is read or written
