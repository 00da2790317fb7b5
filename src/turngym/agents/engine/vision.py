"""How a model sees: pictures in a conversation's token ids, and as its forward pass reads them.

In token ids a picture is minus its number in a ``PictureFolder``, once for each place that the
model has for it. So ids say all that was seen: what holds, sends, compares or scores token ids
needs to know nothing of pictures, and only the forward pass looks them up.
"""

from __future__ import annotations

import copy
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turngym.agents.templates import NEXT, VISION, probed, rendered, with_pictures, written_picture
from turngym.errors import ConfigError
from turngym.pictures import PictureFolder, Pixels, data_url
from turngym.plugins import import_extra, importing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Ids = NDArray[np.int32] | NDArray[np.int64]
_TYPES = "token_type_ids"
"""How the names end under which a forward pass asks which tokens are of a picture."""
_PLAIN = frozenset({"input_ids", "attention_mask"})


@dataclass(frozen=True, slots=True)
class _Place:
    """What the processor makes of what the chat template writes for a picture of one size."""

    ids: tuple[int, ...]
    count: int
    """How many of them stand for the picture."""
    text: str | None
    """Of which an encoding makes these ids; None where there is none."""
    types: dict[str, dict[int, int]]
    """By the name under which a forward pass asks for them, of ids that are not of text."""


class Vision:
    """The processor of a model, and the pictures that it was shown.

    Each picture is read by itself, as if it was the only one.

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
        self._instead_of, self.written, self._comes_first = written_picture(tokenizer)
        self._image_token = image_token_id
        # The model may sample that token, too; read as a picture's it would be one place too many.
        self._instead = int(tokenizer.eos_token_id)
        # Padding is a state of a tokenizer, and that of others is used while this one pads.
        self._reader = copy.copy(processor)
        self._reader.tokenizer = copy.deepcopy(tokenizer)
        if self._reader.tokenizer.pad_token is None:
            self._reader.tokenizer.pad_token = tokenizer.eos_token
        self._reading = threading.RLock()
        self._places: dict[tuple[int, ...], _Place] = {}
        """By a picture's height and width."""
        secret = secrets.token_hex(8)  # so that no page can show a picture of its choice
        self._mark = f"\ue000{secret}:{{}}\ue000"
        self._marks = re.compile(f"\ue000{secret}:(\\d+)\ue000")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_reading"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _reading=threading.RLock())

    def shown(self, text: str, *numbers: int) -> str:
        """Return ``text`` with the marks of pictures where the chat template has them."""
        marks = "".join(map(self._mark.format, numbers))
        return marks + text if self._comes_first else text + marks

    def behind_mark(self, before: str, text: str) -> str:
        """Return ``text`` with ``before`` before it, but behind a mark that it begins with."""
        found = self._marks.match(text)
        end = found.end() if found and self._comes_first else 0
        return text[:end] + before + text[end:]

    def encode(self, text: str, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
        """Return the ids of a text with marks of pictures.

        Args:
            text: What a chat template wrote.
            encode: Returns the ids of a text without.
        """
        pieces = self._marks.split(text)  # every second is a number
        numbers = [int(piece) for piece in pieces[1::2]]
        for at in range(0, len(pieces) - 1, 2):
            pieces[at] = pieces[at].removesuffix(self._instead_of)
        found = [self._place(number) for number in numbers]
        texts = [place.text for place in found if place.text is not None]
        if len(texts) < len(found):  # as good as it can be: what is around is encoded by itself
            ids = list(encode(pieces[0]))
            for number, piece in zip(numbers, pieces[2::2], strict=True):
                ids += [*self.tokens(number), *encode(piece)]
            return tuple(ids)
        pieces[1::2] = texts
        seen = iter([-n for n, p in zip(numbers, found, strict=True) for _ in range(p.count)])
        whole = encode("".join(pieces))
        return tuple([next(seen) if token == self._image_token else token for token in whole])

    def tokens(self, number: int) -> tuple[int, ...]:
        """Return the tokens of a picture, with those around it."""
        ids = self._place(number).ids
        return tuple(-number if token == self._image_token else token for token in ids)

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
        rows = ids_BT.tolist()
        numbers = [-row[places[0]] for row in rows for places in self.places(row)]
        pictures = [[self.pictures.pixels(number)] for number in numbers]
        names = signature(body.forward).parameters
        types = self._place(numbers[0]).types
        read = self._read([self.written] * len(pictures), pictures)
        for name in {*read} & {*names} - _PLAIN:
            found[name] = read[name].to(ids_BT.device)
        for name in (name for name in names if name.endswith(_TYPES)):
            found[name] = torch.zeros_like(ids_BT)
            for token, kind in types.get(name, {self._image_token: 1}).items():
                found[name][found["input_ids"] == token] = kind
        return found

    def positions(
        self, inputs: Mapping[str, Tensor], mask_BT: Tensor, body: nn.Module
    ) -> tuple[Tensor, Tensor] | None:
        """Return positions of time, height and width of each token, for a ``body`` that has them.

        Args:
            inputs: What ``inputs`` returned for tokens.
            mask_BT: 1 where there is one, 0 where there is padding.
            body: A model that sees.

        Returns:
            The positions, shape [3, B, T], and how many more than tokens they are in each row,
            shape [B, 1]; or None where each is the place of its token.
        """
        of_pictures = getattr(body, "get_rope_index", None)
        if of_pictures is None or inputs.keys() <= _PLAIN:
            return None
        asked = {name: inputs[name] for name in {*inputs} & {*signature(of_pictures).parameters}}
        found: tuple[Tensor, Tensor] = of_pictures(**asked, attention_mask=mask_BT)
        return found

    def packed_positions(
        self, inputs: Mapping[str, Tensor], own_BT: Tensor, body: nn.Module
    ) -> Tensor:
        """Return the positions of sequences that lie end to end, as ``body`` wants them.

        Args:
            inputs: What ``inputs`` returned for them, as one row.
            own_BT: Place of each token in its sequence, shape [1, T].
            body: A model that sees.

        Returns:
            The same; or with those of time, height and width behind it, shape [4, 1, T].
        """
        if not hasattr(body, "get_rope_index"):
            return own_BT
        column = own_BT[0]
        at = (column == 0).cumsum(0) - 1, column  # of sequences one under another
        blank = own_BT.new_zeros(int(at[0][-1]) + 1, int(column.max()) + 1)
        of_text = [name for name in inputs if name in _PLAIN or name.endswith(_TYPES)]
        rows = {name: blank.index_put(at, inputs[name][0]) for name in of_text}
        found = self.positions({**inputs, **rows}, blank.index_put(at, column * 0 + 1), body)
        if found is None:
            return own_BT.expand(4, *own_BT.shape)
        return torch.cat([own_BT[None], found[0][:, at[0], at[1]][:, None]])

    def check(self, body: nn.Module) -> None:
        """Make sure that conversations with pictures are what the processor makes of their text.

        One may make something else of a picture where there are several (LLaVA-OneVision: fewer
        tokens). Here it reads each as if it was the only one.

        Raises:
            ConfigError: They are not.
        """
        numbers = self.samples()
        for shown in (numbers[:1], numbers[1:], numbers):
            wrong = self._difference(body, shown)
            if wrong and not (wrong == "places" and len(shown) > 1):
                name = type(self.processor).__name__
                raise ConfigError(
                    f"images: {name} makes other {wrong} of a conversation with {len(shown)} "
                    "picture(s) than of its turns one by one; set images=false"
                )

        if not self._rows_are_apart(body):
            raise ConfigError(
                f"images: {type(body).__name__} gives pictures other positions where another row "
                "of the batch has one, so batches could not be read; set images=false"
            )

    def _rows_are_apart(self, body: nn.Module) -> bool:
        """Return whether positions in a row are the same whatever another row holds."""
        rows = [torch.tensor(self.tokens(number)) for number in self.samples()]
        found = []
        for group in (rows, rows[1:]):
            ids_BT = nn.utils.rnn.pad_sequence(group, batch_first=True)
            seen = self.positions(self.inputs(ids_BT, body), torch.ones_like(ids_BT), body)
            if seen is None:
                return True
            found.append(seen[0][:, -1, : len(rows[1])])
        return torch.equal(*found)

    def samples(self) -> list[int]:
        """Return two pictures of noise, of different sizes."""
        random = np.random.default_rng(0)
        sizes = ((72, 130, 3), (104, 61, 3))
        return [self.pictures.sample(random.integers(0, 256, size, np.uint8)) for size in sizes]

    def _difference(self, body: nn.Module, numbers: Sequence[int]) -> str:
        """Return what is not as the processor has it for a conversation with pictures."""
        tokenizer = self.processor.tokenizer
        said = probed([self.shown(NEXT, number) for number in numbers])
        ids = self.encode(rendered(tokenizer, said, generate=True), self._encode)
        whole = with_pictures(tokenizer, len(numbers), comes_first=self._comes_first)
        wanted = self._read([whole], [[*map(self.pictures.pixels, numbers)]])
        found = self.inputs(torch.tensor([ids]), body)
        read = [inputs["input_ids"][0].tolist() for inputs in (wanted, found)]
        if read[0] != read[1]:
            without_counts = [[token for token, _ in groupby(one)] for one in read]
            return "places" if without_counts[0] == without_counts[1] else "tokens"
        names = signature(body.forward).parameters
        for name in {*wanted} & {*names} - _PLAIN:
            value = wanted[name]
            ours = found.get(name, value[:0])
            if not torch.equal(ours[ours != 0].to(value), value[value != 0]):  # but for padding
                return name
        return ""

    def without_part(self, ids_L: Ids) -> Ids:
        """Return ids [L] that were cut at their beginning, without a picture that was cut, too."""
        pictures = ids_L[ids_L < 0]
        if pictures.size == 0:
            return ids_L
        first = pictures[0]
        part = int((ids_L == first).sum()) % self._place(-int(first)).count
        return ids_L if part == 0 else ids_L[np.flatnonzero(ids_L == first)[part - 1] + 1 :]

    def on_the_wire(self, ids: Sequence[int]) -> tuple[list[int], list[dict[str, Any]]]:
        """Return ids as a server takes them, one written picture each, and the pictures as parts.

        Args:
            ids: Token ids.
        """
        written = self._encode(self.written)
        sent: list[int] = []
        parts: list[dict[str, Any]] = []
        at = 0
        while at < len(ids):
            if ids[at] >= 0:
                sent.append(self._instead if ids[at] == self._image_token else ids[at])
                at += 1
                continue
            number = -ids[at]
            whole, left = self.tokens(number), self._place(number).count
            before, after = whole.index(-number), whole[::-1].index(-number)
            while left:
                left -= ids[at] == -number
                at += 1
            sent = self._without(sent, whole[:before], at_end=True) + written
            parts.append(_part(self.pictures.pixels(number)))
            if after:
                rest = self._without(ids[at:], whole[-after:], at_end=False)
                ids, at = rest, 0
        return sent, parts

    def _without(self, ids: Sequence[int], cut: Sequence[int], *, at_end: bool) -> list[int]:
        """Return ``ids`` without those of ``cut`` at one end, or without their text."""
        size, ids, cut = len(cut), list(ids), list(cut)
        if size == 0 or (ids[-size:] if at_end else ids[:size]) == cut:
            return ids[: len(ids) - size] if at_end else ids[size:]
        decode = partial(self.processor.tokenizer.decode, skip_special_tokens=False)
        text = decode(cut)
        for size in range(1, min(len(ids), len(cut) + 1) + 1):  # blanks may share a token with text
            said = decode(ids[-size:] if at_end else ids[:size])
            if at_end and said.endswith(text):
                return ids[:-size] + self._encode(said.removesuffix(text))
            if not at_end and said.startswith(text):
                return self._encode(said.removeprefix(text)) + ids[size:]
        return ids

    def as_read(self, ids: Sequence[int]) -> list[int]:
        """Return ids as a server says it read them."""
        plain = (self._instead if token == self._image_token else token for token in ids)
        return self.without_numbers(plain)

    def without_numbers(self, ids: Iterable[int]) -> list[int]:
        """Return ``ids`` with the model's own token at the places of pictures."""
        return [self._image_token if token < 0 else token for token in ids]

    def places(self, ids: Sequence[int]) -> list[list[int]]:
        """Return where in ``ids`` each picture is, in their order."""
        seen = [at for at, token in enumerate(ids) if token < 0]
        found, start = list[list[int]](), 0
        while start < len(seen):
            count = self._place(-ids[seen[start]]).count
            found.append(seen[start : start + count])
            start += count
        return found

    def _place(self, number: int) -> _Place:
        pixels = self.pictures.pixels(number)
        if pixels.shape not in self._places:
            read = self._read([self.written], [[pixels]])
            ids = tuple(read["input_ids"][0].tolist())
            if self._image_token not in ids:
                name = type(self.processor).__name__
                raise ConfigError(f"images: {name} has no place for a picture in its tokens")
            types = {
                name: {
                    token: kind for token, kind in zip(ids, value[0].tolist(), strict=True) if kind
                }
                for name, value in read.items()
                if name.endswith(_TYPES)
            }
            text = self.processor.tokenizer.decode(ids, skip_special_tokens=False)
            same = tuple(self._encode(text)) == ids
            place = _Place(ids, ids.count(self._image_token), text if same else None, types)
            self._places[pixels.shape] = place
        return self._places[pixels.shape]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.processor.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _read(self, texts: list[str], pictures: list[list[Pixels]]) -> dict[str, Tensor]:
        """Return what the processor makes of texts with pictures."""
        image: Any = import_extra("PIL.Image", "pictures", "vision")
        settings = {"padding": True, "add_special_tokens": False, "return_tensors": "pt"}
        images = [[image.fromarray(pixels) for pixels in row] for row in pictures]
        with self._reading:
            read: dict[str, Tensor] = dict(self._reader(images=images, text=texts, **settings))
        return {k: v.float() if v.is_floating_point() else v for k, v in read.items()}


def _part(pixels: Pixels) -> dict[str, str]:
    return {"type": "image_url", "url": data_url(pixels)}


def give_vision(model: PreTrainedModel, processor: Any) -> None:
    """Let ``model`` and the tokenizer of ``processor`` know how pictures are read.

    Raises:
        ConfigError: The model or its chat template has no place for a picture.
    """
    token, name = getattr(model.config, "image_token_id", None), type(model).__name__
    if token is None:
        raise ConfigError(f"images: {name} has no token that stands for a picture")
    if model.base_model is model:
        raise ConfigError(f"images: {name} has no part that reads apart from its head")
    # Models of one tokenizer, a policy and its twin, look at the same pictures.
    vision = getattr(processor.tokenizer, VISION, None)
    if vision is None:
        vision = Vision(processor, int(token))
        vision.check(model.base_model)
    processor.chat_template = processor.tokenizer.chat_template
    for holder in (model.base_model, processor.tokenizer):
        setattr(holder, VISION, vision)


def scaling_processor(
    tokenizer: PreTrainedTokenizerBase, side: int, patch: int, *, token: str
) -> Any:
    """Return the processor of a small Llava model, which scales each picture to a square.

    Args:
        tokenizer: Of the model.
        side: Of the square, in pixels.
        patch: Side of what becomes one token, in pixels.
        token: Stands for it.

    Raises:
        MissingExtraError: What reads pictures is not installed.
    """
    with importing_extra("a model that sees", "vision"):
        from transformers import LlavaProcessor, SiglipImageProcessorPil

    return LlavaProcessor(
        image_processor=SiglipImageProcessorPil(size={"height": side, "width": side}),
        tokenizer=tokenizer,
        patch_size=patch,
        vision_feature_select_strategy="full",
        image_token=token,
        num_additional_image_tokens=0,
    )


class _Seen(Exception):
    """Carries what a language model would have read."""


class Eyes:
    """A copy of the part of a model that turns pictures into what its language model reads."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        language: Any = model.get_decoder()
        layers, language.layers = language.layers, torch.nn.ModuleList()  # which stay uncopied
        try:
            self._body: Any = copy.deepcopy(model.base_model).to(device).eval()
        finally:
            language.layers = layers
        self._vision: Vision = getattr(model.base_model, VISION)
        self._at = f"{model.base_model_prefix}."
        inner = next(n for n, module in model.base_model.named_modules() if module is language)
        self._body.get_submodule(inner).register_forward_pre_hook(_stop, with_kwargs=True)

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        """Copy new weights out of a state dict of the model."""
        own = {name.removeprefix(self._at): weight for name, weight in state.items()}
        self._body.load_state_dict(own, strict=False)

    def __call__(self, ids_BT: Tensor) -> Tensor:
        """Return the vectors of token ids, with those of the pictures among them, [B, T, H]."""
        vectors_BTH: Tensor = self._read(ids_BT)["inputs_embeds"]
        return vectors_BTH

    def see_it_all(self) -> bool:
        """Return whether vectors are all that the language model gets of a picture.

        Some add to its later layers what was seen, or let the places of a picture see each other.
        """
        picture = self._vision.tokens(self._vision.samples()[0])
        with torch.inference_mode():
            read = self._read(torch.tensor([picture], device=self._body.device))
        others = [value for name, value in read.items() if name != "inputs_embeds"]
        return not any(isinstance(value, (Tensor, Mapping)) for value in others)

    def _read(self, ids_BT: Tensor) -> Mapping[str, Any]:
        try:
            self._body(**self._vision.inputs(ids_BT, self._body), use_cache=False)
        except _Seen as seen:
            arguments: Mapping[str, Any] = seen.args[0]
            return arguments
        raise AssertionError


def _stop(language: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    raise _Seen(kwargs)
