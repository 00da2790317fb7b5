"""From settings to an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from turngym.agents.chat.composed import ChatAgent
from turngym.agents.chat.conversation import ChatModel
from turngym.agents.chat.history import FullHistory, History, SummaryHistory, WindowHistory
from turngym.agents.chat.prompting import PlainPrompting, Prompting, ReActPrompting
from turngym.agents.chat.reflection import Reflection
from turngym.agents.config import (
    AgentConfig,
    ChatAgentConfig,
    CompletionsAgentConfig,
    HistoryConfig,
    LocalAgentConfig,
    PartsConfig,
    SummaryHistoryConfig,
    WindowHistoryConfig,
)
from turngym.agents.engine.protocol import Sampling
from turngym.agents.policy import Policy
from turngym.agents.remote.chat import RemoteChat
from turngym.agents.remote.config import CompletionsConfig
from turngym.errors import ConfigError

if TYPE_CHECKING:
    from turngym.agents.local import EngineModel


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
    return ChatAgent(
        _model(config),
        prompting=_prompting(config),
        history=_history(config.history),
        reflection=Reflection(config.reflection) if config.reflection else None,
        native_tools=isinstance(config, ChatAgentConfig) and config.tool_calls,
        turn_timeout_s=None if isinstance(config, LocalAgentConfig) else 2 * config.turn_timeout_s,
    )


def _as_trained(config: LocalAgentConfig) -> LocalAgentConfig:
    """Return ``config`` with what the model's folder says of its training, where it is not set."""
    file = Path(_path(config.path)) / TRAINED_AS
    if not file.is_file():
        return config
    try:
        found = json.loads(file.read_bytes())
        trained = {name: found[name] for name in ("instructions", "max_new_tokens", "context")}
        checked = LocalAgentConfig.model_validate({"type": "hf", "path": config.path, **trained})
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file}: is damaged; restore it, or delete it to use defaults"
        ) from error
    unset = {name for name in trained if name not in config.model_fields_set}
    return config.model_copy(update={name: getattr(checked, name) for name in unset})


def _model(config: AgentConfig) -> ChatModel:
    if isinstance(config, ChatAgentConfig):
        return RemoteChat(config)
    if isinstance(config, CompletionsAgentConfig):
        return _completions(config)
    return local_model(config)


def local_model(config: LocalAgentConfig) -> EngineModel:
    """Return a model of ``transformers`` on the local engine.

    Raises:
        ConfigError: It cannot be loaded.
    """
    from turngym.agents.engine.local import LocalEngine
    from turngym.agents.engine.models import load_model_dir
    from turngym.agents.local import EngineModel
    from turngym.agents.rendering import Renderer

    model, tokenizer = load_model_dir(_path(config.path))
    longest = int(getattr(model.config, "max_position_embeddings", config.context))
    engine = LocalEngine(model, tokenizer, context=min(longest, config.context))
    sampling = Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens,
        stop=config.stop,
    )
    return EngineModel(engine, Renderer(tokenizer), sampling=sampling)


def _completions(config: CompletionsConfig) -> ChatModel:
    from turngym.agents.engine.models import load_tokenizer
    from turngym.agents.local import EngineModel
    from turngym.agents.remote.completions import CompletionsEngine
    from turngym.agents.rendering import Renderer

    engine = CompletionsEngine(config)
    sampling = Sampling(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_p=config.top_p or 1.0,
        max_new_tokens=config.max_new_tokens,
        stop=config.stop,
    )
    tokenizer = load_tokenizer(_path(config.tokenizer))
    return EngineModel(engine, Renderer(tokenizer), sampling=sampling)


def _path(path: str) -> Path | str:
    return Path(path).expanduser() if path.startswith("~") else path


def _prompting(config: PartsConfig) -> Prompting:
    plain = PlainPrompting(
        system=config.system,
        show_legal_actions=config.show_legal_actions,
        instructions=config.instructions,
    )
    if config.prompt == "react":
        return ReActPrompting(plain=plain)
    return plain


def _history(config: HistoryConfig) -> History:
    if isinstance(config, WindowHistoryConfig):
        return WindowHistory(config.turns, config.keep)
    if isinstance(config, SummaryHistoryConfig):
        return SummaryHistory(config.max_tokens, config.keep)
    return FullHistory()
