"""From settings to an agent."""

from __future__ import annotations

import json
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TypeVar

from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.chat.prompting import (
    ChatModel,
    History,
    OwnPrompting,
    PlainPrompting,
    Prompting,
    ReActPrompting,
    Reflection,
)
from turngym.agents.config import (
    AgentConfig,
    CompletionsAgentConfig,
    CustomPrompt,
    HistoryConfig,
    LocalAgentConfig,
    PartsConfig,
)
from turngym.agents.engine.config import EngineConfig
from turngym.agents.engine.protocol import Sampling, TrainableEngine
from turngym.agents.policy import Policy
from turngym.agents.remote.chat import RemoteChat
from turngym.agents.remote.messages import RemoteMessages
from turngym.agents.remote.responses import RemoteResponses
from turngym.errors import ConfigError
from turngym.plugins import import_attribute

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from turngym.agents.engine.local import LocalEngine
    from turngym.agents.remote.chat import CompletionsEngine


ModelT = TypeVar("ModelT", bound=ChatModel)

_SPEAKS = {"chat": RemoteChat, "responses": RemoteResponses, "messages": RemoteMessages}
TRAINED_AS = "turngym.json"
"""In the folder of a model that was trained here: how it was prompted."""


def build_agent(config: AgentConfig) -> Policy:
    """Return the agent that ``config`` describes.

    Raises:
        ConfigError: A model cannot be loaded, or a key is missing.
        MissingExtraError: An extra is not installed.
    """
    if isinstance(config, LocalAgentConfig):
        config = _as_trained(config)
        return with_parts(local_model(config), config)
    if isinstance(config, CompletionsAgentConfig):
        return with_parts(_completions(config), config)
    return with_parts(_SPEAKS[config.api](config), config)


def with_parts(model: ModelT, parts: PartsConfig) -> ChatAgent[ModelT]:
    """Return an agent of ``model`` with the prompt, history and reflection of ``parts``."""
    return ChatAgent(
        model,
        prompting=prompting_of(parts),
        history=_history(parts.history),
        reflection=Reflection(parts.reflection) if parts.reflection else None,
    )


def _as_trained(config: LocalAgentConfig) -> LocalAgentConfig:
    """Return ``config`` with what the model's folder says of its training, where it is not set."""
    file = Path(_path(config.path)) / TRAINED_AS
    if not file.is_file():
        return config
    try:
        found = {**json.loads(file.read_bytes()), "type": "hf", "path": config.path}
        trained = LocalAgentConfig.model_validate(found)
        wanted = trained.model_fields_set.difference(config.model_fields_set)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{file}: is damaged; restore it, or delete it to use defaults"
        ) from error
    return config.model_copy(update={name: getattr(trained, name) for name in wanted})


def local_model(config: LocalAgentConfig) -> EngineModel[LocalEngine]:
    """Return a model of ``transformers`` on the local engine.

    Raises:
        ConfigError: It cannot be loaded.
    """
    from turngym.agents.engine.local import LocalEngine
    from turngym.agents.engine.models import load_model_dir, positions
    from turngym.agents.rendering import Renderer

    model, tokenizer = load_model_dir(_path(config.path), config, images=config.images)
    longest = positions(model) or config.context
    engine = LocalEngine(model, tokenizer, context=min(longest, config.context))
    sampling = Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens,
        stop=config.stop,
    )
    renderer = Renderer(tokenizer, tool_calls=config.tool_calls)
    return EngineModel(engine, renderer, sampling=sampling)


def check_engine(config: EngineConfig, *, context: int) -> list[str]:
    """Return what is found of the servers that ``config`` names, before anything starts.

    Args:
        config: Names what looks.
        context: Longest sequence in tokens.

    Raises:
        ConfigError: The engine cannot be had.
    """
    if config.preflight is None:
        return []
    found: list[str] = import_attribute("engine", config.preflight)(config, context=context)
    return found


def build_engine(
    config: EngineConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context: int,
    max_sessions: int,
) -> TrainableEngine:
    """Return the engine that a model is trained on.

    Args:
        config: Names the builder.
        model: Gives the first weights and the shape, without adapters.
        tokenizer: Of the model.
        context: Longest sequence in tokens.
        max_sessions: Most sessions open at once.

    Raises:
        ConfigError: The engine cannot be had, or does not record which weights sampled a token.
    """
    build = import_attribute("engine", config.builder)
    engine: TrainableEngine = build(
        config, model, tokenizer, context=context, max_sessions=max_sessions
    )
    if not engine.traits.exact_versions:
        raise ConfigError(f"engine {config.type!r} does not say which weights sampled a token")
    return engine


def _completions(config: CompletionsAgentConfig) -> EngineModel[CompletionsEngine]:
    from turngym.agents.engine.models import load_tokenizer
    from turngym.agents.remote.chat import CompletionsEngine
    from turngym.agents.rendering import Renderer

    engine = CompletionsEngine(config)
    sampling = Sampling(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_p=config.top_p or 1.0,
        max_new_tokens=config.max_new_tokens,
        stop=config.stop,
    )
    tokenizer = load_tokenizer(_path(config.tokenizer), config)
    renderer = Renderer(tokenizer, tool_calls=config.tool_calls)
    return EngineModel(engine, renderer, sampling=sampling)


def _path(path: str) -> Path | str:
    return Path(path).expanduser() if path.startswith("~") else path


def prompting_of(config: PartsConfig) -> Prompting:
    """Return the prompts that ``config`` describes.

    Raises:
        ConfigError: They are the user's own, and are not there or lack a method.
    """
    if isinstance(config.prompt, CustomPrompt):
        return OwnPrompting(config.prompt, config)
    kind = ReActPrompting if config.prompt == "react" else PlainPrompting
    return kind(
        system=config.system,
        show_legal_actions=config.show_legal_actions,
        instructions=config.instructions,
    )


def _history(config: HistoryConfig) -> History:
    history: History = resolve_name(config.builder)(**config.model_dump(exclude={"type"}))
    return history
