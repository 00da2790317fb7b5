"""A small byte-level BPE tokenizer, trained on the texts of an environment.

Its chat template spends one special token per role and one for the end of a message, because on
a model of half a million parameters the words of a longer template would be most of what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from turngym.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLE_TOKENS = {role: f"<|{role}|>" for role in ("system", "user", "assistant", "tool")}
SPECIAL_TOKENS = (PAD, END, *ROLE_TOKENS.values())

SMALL_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on ``texts``.

    Every text can be encoded: the alphabet holds all 256 bytes.

    Args:
        texts: What the environment and the agent say. The order does not matter much, the
            frequencies do.
        vocab_size: Entries in all, at least ``MIN_VOCAB_SIZE`` (the bytes and special tokens).

    Raises:
        ConfigError: ``vocab_size`` is too small.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(
            f"tokenizer: vocab_size must be at least {MIN_VOCAB_SIZE} (256 bytes and "
            f"{len(SPECIAL_TOKENS)} special tokens), got {vocab_size}"
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise missing_extra("a tokenizer", "train") from error

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
        additional_special_tokens=list(ROLE_TOKENS.values()),
        chat_template=SMALL_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
