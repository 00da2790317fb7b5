"""Models on disk, without the progress bars that ``transformers`` draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngym.agents.engine.models import load_model_dir, save_model_dir
from turngym.trainers.update.lora import full_state, is_adapted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def write_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Write a folder that ``read_model`` and other programs read; adapters are merged in."""
    with _quiet():
        if not is_adapted(model):
            save_model_dir(model, tokenizer, path)
            return
        plain: Any = model.get_base_model()
        plain.save_pretrained(str(path), state_dict=full_state(model))
        tokenizer.save_pretrained(str(path))


def read_model(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the fp32 model and the tokenizer of a folder or of a name on the model hub.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    with _quiet():
        return load_model_dir(path)


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()
