"""How a model sees: pictures in a conversation's token ids, and as its forward pass reads them.

In token ids a picture is minus its number in a ``PictureFolder``, once for each place that the
model has for it. So ids say all that was seen: what holds, sends, compares or scores token ids
needs to know nothing of pictures, and only the forward pass looks them up.
"""

from __future__ import annotations

import inspect
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turngym.agents.templates import VISION, written_picture
from turngym.errors import ConfigError
from turngym.pictures import PictureFolder, Pixels, data_url

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Ids = NDArray[np.int32] | NDArray[np.int64]
_TYPES = ("mm_token_type_ids", "token_type_ids")
"""Names under which a forward pass asks which tokens are of a picture."""


class Vision:
    """The processor of a model, and the pictures that it was shown.

    Args:
        processor: Of the ``transformers`` library; its tokenizer has the chat template.
        image_token_id: What the forward pass wants at the places of a picture.

    Raises:
        ConfigError: The chat template has no place for a picture.
    """

    def __init__(self, processor: Any, image_token_id: int) -> None:
        self.processor = processor
        self.pictures = PictureFolder()
        tokenizer: PreTrainedTokenizerBase = processor.tokenizer
        instead_of, self.written, self._comes_first = written_picture(tokenizer)
        self._image_token = image_token_id
        # The model may sample that token, too; read as a picture's it would be one place too many.
        self._instead = int(tokenizer.eos_token_id)
        self._sizes: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Tokens of a picture by its height and width."""
        secret = secrets.token_hex(8)  # so that no page can show a picture of its choice
        self._mark = f"\ue000{secret}:{{}}\ue000"
        self._opens = re.compile(f"\ue000{secret}:\\d+\ue000")
        self.marks = re.compile(f"{re.escape(instead_of)}\ue000{secret}:(\\d+)\ue000")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def shown(self, text: str, number: int) -> str:
        """Return ``text`` with the mark of a picture where the chat template has it."""
        mark = self._mark.format(number)
        return mark + text if self._comes_first else text + mark

    def behind_mark(self, before: str, text: str) -> str:
        """Return ``text`` with ``before`` before it, but behind a mark that it begins with."""
        found = self._opens.match(text)
        end = found.end() if found and self._comes_first else 0
        return text[:end] + before + text[end:]

    def tokens(self, number: int) -> tuple[int, ...]:
        """Return the tokens of a picture, with those around it."""
        return tuple(-number if token == self._image_token else token for token in self._of(number))

    def inputs(self, ids_BT: Tensor, body: nn.Module) -> dict[str, Tensor]:
        """Return what the forward pass of ``body`` needs to read token ids with pictures in them.

        Args:
            ids_BT: Token ids.
            body: A model that sees, or its part without the head.
        """
        is_seen = ids_BT < 0
        plain = torch.where(ids_BT == self._image_token, self._instead, ids_BT)
        found = {"input_ids": torch.where(is_seen, self._image_token, plain)}
        if not bool(is_seen.any()):
            return found
        rows = [self._numbers(row) for row in ids_BT.tolist()]
        pictures = [[self.pictures.pixels(number) for number in row] for row in rows if row]
        names = inspect.signature(body.forward).parameters
        processed = self.processor.image_processor(images=pictures, return_tensors="pt")
        found |= {
            name: value.to(ids_BT.device) for name, value in processed.items() if name in names
        }
        return found | {name: is_seen.long() for name in _TYPES if name in names}

    def without_part(self, ids_L: Ids) -> Ids:
        """Return ids [L] that were cut at their beginning, without a picture that was cut, too."""
        pictures = ids_L[ids_L < 0]
        if pictures.size == 0:
            return ids_L
        first = pictures[0]
        places = self._of(-int(first)).count(self._image_token)
        part = int((ids_L == first).sum()) % places
        return ids_L if part == 0 else ids_L[np.flatnonzero(ids_L == first)[part - 1] + 1 :]

    def on_the_wire(self, ids: Sequence[int]) -> tuple[list[int], list[dict[str, Any]]]:
        """Return ids as a server takes them, one written picture each, and the pictures as parts.

        Args:
            ids: Token ids.
        """
        written = self.processor.tokenizer.encode(self.written, add_special_tokens=False)
        sent: list[int] = []
        parts: list[dict[str, Any]] = []
        at = 0
        while at < len(ids):
            if ids[at] >= 0:
                sent.append(self._instead if ids[at] == self._image_token else ids[at])
                at += 1
                continue
            number = -ids[at]
            whole = self.tokens(number)
            before = whole.index(-number)
            del sent[len(sent) - before :]
            sent += written
            parts.append(_part(self.pictures.pixels(number)))
            at += len(whole) - before
        return sent, parts

    def as_read(self, ids: Sequence[int]) -> list[int]:
        """Return ids as a server says it read them."""
        plain = (self._instead if token == self._image_token else token for token in ids)
        return [self._image_token if token < 0 else token for token in plain]

    def _numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the pictures in ``ids``, in their order."""
        places = [-token for token in ids if token < 0]
        found, at = list[int](), 0
        while at < len(places):
            found.append(places[at])
            at += self._of(places[at]).count(self._image_token)
        return found

    def _of(self, number: int) -> tuple[int, ...]:
        pixels = self.pictures.pixels(number)
        if pixels.shape not in self._sizes:
            read = self.processor(
                images=[pixels], text=self.written, add_special_tokens=False, return_tensors="pt"
            )
            self._sizes[pixels.shape] = tuple(read["input_ids"][0].tolist())
        return self._sizes[pixels.shape]


def _part(pixels: Pixels) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(pixels)}}


def give_vision(model: PreTrainedModel, processor: Any) -> None:
    """Let ``model`` and the tokenizer of ``processor`` know how pictures are read.

    Raises:
        ConfigError: The model or its chat template has no place for a picture.
    """
    token = getattr(model.config, "image_token_id", None)
    if token is None:
        raise ConfigError(f"images: {type(model).__name__} has no token that stands for a picture")
    # Models of one tokenizer, a policy and its twin, look at the same pictures.
    vision = vision_of(processor.tokenizer) or Vision(processor, int(token))
    for holder in (model.base_model, processor.tokenizer):
        setattr(holder, VISION, vision)


def vision_of(holder: Any) -> Vision | None:
    """Return how a model, a body or a tokenizer reads pictures; None where it sees none."""
    found: Vision | None = getattr(getattr(holder, "base_model", holder), VISION, None)
    return found
