"""Small tokenizers, models and policies, built from nothing in milliseconds."""

from __future__ import annotations

from functools import cache
from typing import Any

from turngym.agents.chat.agent import ChatAgent, EngineModel, EngineT
from turngym.agents.chat.prompting import PlainPrompting
from turngym.agents.engine.config import Architecture, TinyModelConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.rendering import Renderer

TEXTS = ("key north east. exits north west.", "go north", "go east", "got key. door south.")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HEADERS = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
TEMPLATES = {
    "small": (None, None, ()),
    "chatml": (CHATML, "<|im_end|>", ("<|im_start|>", "<|im_end|>")),
    "headers": (
        HEADERS,
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
}


@cache
def tokenizer(template: str = "small") -> Any:
    """Return a tokenizer of about 290 entries with the named chat template."""
    made = train_tokenizer(TEXTS * 3, 290)
    chat_template, end, special = TEMPLATES[template]
    if chat_template is not None:
        made.add_special_tokens({"additional_special_tokens": list(special)})
        made.eos_token = end
        made.chat_template = chat_template
    return made


@cache
def model(
    architecture: Architecture = "llama", *, kv_heads: int | None = None, context: int = 256
) -> Any:
    """Return a two-layer model with random weights; do not change it."""
    config = TinyModelConfig(
        architecture=architecture, hidden=32, layers=2, heads=2, kv_heads=kv_heads, context=context
    )
    return build_tiny_model(config, tokenizer(), seed=5)


def policy(*, context: int | None = None, **sampling: Any) -> ChatAgent[EngineModel[LocalEngine]]:
    """Return a policy of an untrained model; by default it draws up to 6 tokens a turn."""
    engine = LocalEngine(model(), tokenizer(), context=context)
    drawn = Sampling(**{"max_new_tokens": 6, **sampling})
    return policy_on(engine, Renderer(tokenizer()), sampling=drawn)


def policy_on(
    engine: EngineT, renderer: Renderer, *, sampling: Sampling, instructions: bool = False
) -> ChatAgent[EngineModel[EngineT]]:
    """Return a policy of an engine."""
    model = EngineModel(engine, renderer, sampling=sampling)
    return ChatAgent(model, prompting=PlainPrompting(instructions=instructions))


@cache
def seeing() -> Any:
    """Return a small model that sees, each picture at one place; do not change it."""
    config = TinyModelConfig(hidden=32, layers=2, heads=2, context=256, image_size=8)
    return build_tiny_model(config, train_tokenizer(TEXTS * 3, 290, images=True), seed=0)
