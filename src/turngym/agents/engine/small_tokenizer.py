"""The tokenizer of the small model: trained on what its episodes say, with a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from turngym.agents.engine.models import BUILDING, IMAGE
from turngym.agents.tool_calls import call_in
from turngym.errors import ConfigError
from turngym.plugins import importing_extra
from turngym.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLE_TOKENS = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
SPECIAL_TOKENS = (PAD, END, *ROLE_TOKENS.values())

_CONTENT = "{{ message['content'] }}"
SMALL_CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|system|>' }}{% for tool in tools %}{% set f = tool.function %}"
    "{{ f.name }}({{ (f.parameters or {}).properties | join(', ') }}): {{ f.description }}\n"
    "{% endfor %}{{ '<|end|>' }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    + _CONTENT
    + "{% for call in message.tool_calls %}{% set f = call.function %}[{{ f.name }}("
    "{% for key, value in f.arguments.items() %}{{ ', ' if not loop.first }}{{ key }}="
    "{{ value | tojson if value is string else value }}{% endfor %})]{% endfor %}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Tools are shown in a line each, and called as Python would call them: ``[go(way="north")]``."""

SMALL_VISION_TEMPLATE = SMALL_CHAT_TEMPLATE.replace(
    _CONTENT,
    "{% if message['content'] is string %}" + _CONTENT + "{% else %}"
    "{% for part in message['content'] %}"
    f"{{{{ '{IMAGE}' if part['type'] == 'image' else part['text'] }}}}"
    "{% endfor %}{% endif %}",
)
"""The same, with places for pictures."""

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)


def small_action(action: Message) -> str:
    """Return an action as ``SMALL_CHAT_TEMPLATE`` has it, with its call."""
    said, call = call_in(action)
    if call is None:
        return said
    values = [
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
        for key, value in call.arguments.items()
    ]
    return f"{said}[{call.name}({', '.join(values)})]"


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, *, images: bool = False
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on ``texts``.

    Every text can be encoded: the alphabet holds all 256 bytes.

    Args:
        texts: What the environment and the agent say. The order does not matter much, the
            frequencies do.
        vocab_size: Entries in all, at least ``MIN_VOCAB_SIZE`` (the bytes and special tokens).
        images: Have a token for pictures, besides these entries.

    Raises:
        ConfigError: ``vocab_size`` is too small.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(
            f"tokenizer: vocab_size must be at least {MIN_VOCAB_SIZE} (256 bytes and "
            f"{len(SPECIAL_TOKENS)} special tokens), got {vocab_size}"
        )
    with importing_extra("a tokenizer", "train"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        with BUILDING:
            from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[*ROLE_TOKENS.values(), *[IMAGE] * images],
        chat_template=SMALL_VISION_TEMPLATE if images else SMALL_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
