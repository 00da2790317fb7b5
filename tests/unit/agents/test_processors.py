"""Processors of models that see, each with its own way to read a picture, used by ``Vision``."""

import asyncio
import inspect
import pickle
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    BatchFeature,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    LlavaConfig,
    LlavaProcessor,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
)

from turngym.agents.engine.decoder import CachedDecoder, ReplayDecoder, make_decoder
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import IMAGE, seeded
from turngym.agents.engine.protocol import Sampling, vision_of
from turngym.agents.engine.small_tokenizer import SMALL_VISION_TEMPLATE, train_tokenizer
from turngym.agents.engine.vision import Vision, give_vision
from turngym.agents.rendering import CLOSED, Renderer
from turngym.agents.templates import written_picture
from turngym.errors import ConfigError
from turngym.trainers.update import compute
from turngym.trainers.update.forward import check_packing, score
from turngym.types import Message

TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1024,
}  # fmt: skip
EYES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
SIZES = ((30, 44), (60, 25), (20, 20))


def tokenizer_with(written: str = IMAGE, **named: str) -> Any:
    """Return a tokenizer with control tokens by name, whose template writes one for a picture."""
    texts = ["what do you see\n\n\n", "user\n\n\nuser\n\n"] * 9
    found = train_tokenizer(texts, 300, images=True)
    found.chat_template = SMALL_VISION_TEMPLATE.replace(IMAGE, written)
    tokens = [AddedToken(token, normalized=False, special=True) for token in named.values()]
    found.add_tokens(tokens, special_tokens=True)
    for name, token in named.items():
        setattr(found, f"{name}_token", token)
        setattr(found, f"{name}_token_id", found.convert_tokens_to_ids(token))
    return found


def built(config: Any) -> Any:
    with seeded(0):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if not weight.any():
                    weight.normal_(std=0.1)
                elif weight.dim() > 1:
                    weight.mul_(6.0)
    return model


class Sizing(LlavaProcessor):
    """Has its own size of pictures, whatever that of its image processor is."""

    def __call__(self, images: Any = None, text: Any = None, **settings: Any) -> Any:
        side = {"height": 16, "width": 16}
        return super().__call__(images=images, text=text, size=side, **settings)


class Numbering(LlavaProcessor):
    """Says before each picture which of the conversation's it is."""

    def __call__(self, images: Any = None, text: Any = None, **settings: Any) -> Any:
        said = []
        for one in text:
            pieces = one.split(IMAGE)
            numbered = [f"{piece}{number}{IMAGE}" for number, piece in enumerate(pieces[:-1])]
            said.append("".join([*numbered, pieces[-1]]))
        return super().__call__(images=images, text=said, **settings)


def llava(kind: type[LlavaProcessor], side: int = 16) -> tuple[Any, Any]:
    tokenizer = tokenizer_with()
    eyes = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, **EYES}
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    config = LlavaConfig(
        text_config={"model_type": "llama", **TEXT, **ends},
        vision_config=eyes,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    processor = kind(
        SiglipImageProcessorPil(size={"height": side, "width": side}), tokenizer, patch_size=8,
        vision_feature_select_strategy="full", image_token=IMAGE, num_additional_image_tokens=0,
    )  # fmt: skip
    return built(config), processor


@cache
def sizing() -> tuple[Any, Any]:
    """Return a model whose image processor alone would make pictures that it cannot read."""
    return llava(Sizing, side=24)


@cache
def gemma() -> tuple[Any, Any]:
    """Return a model whose pictures stand between blank lines and see themselves as a whole."""
    named = {"image": "<soft>", "boi": "<start_of_image>", "eoi": "<end_of_image>"}
    tokenizer = tokenizer_with("<start_of_image>", **named)
    role = "{{ '<|' + message['role'] + '|>"
    tokenizer.chat_template = tokenizer.chat_template.replace(f"{role}' }}}}", f"{role}\n' }}}}")
    images = Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    eyes = {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 7, **EYES}
    config = AutoConfig.for_model(
        "gemma3",
        text_config={**TEXT, **ends, "query_pre_attn_scalar": 16, "sliding_window": 16},
        vision_config=eyes,
        image_token_index=tokenizer.image_token_id,
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    return built(config), Gemma3Processor(images, tokenizer, image_seq_length=4)


class GridProcessor:
    """What ``Qwen2VLProcessor`` does with pictures; that one asks for torchvision."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.image_processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 8}
        )

    def __call__(self, *, images: Any, text: list[str], **settings: Any) -> Any:
        read = self.image_processor(images, return_tensors="pt")
        counts = iter((read["image_grid_thw"].prod(-1) // 4).tolist())
        texts = [re.sub(re.escape(IMAGE), lambda _: IMAGE * next(counts), one) for one in text]
        ids = self.tokenizer(texts, **settings)
        is_seen = ids["input_ids"] == self.tokenizer.convert_tokens_to_ids(IMAGE)
        return BatchFeature({**ids, **read, "mm_token_type_ids": is_seen.long()})


@cache
def grid() -> tuple[Any, Any]:
    """Return a model that gives each place of a picture a position of its height and width."""
    tokenizer = tokenizer_with(f"<see>{IMAGE}</see>", start="<see>", end="</see>")
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = AutoConfig.for_model(
        "qwen2_vl",
        text_config={**TEXT, **ends, "rope_parameters": rope},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2},
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_start_token_id=tokenizer.start_token_id,
    )
    return built(config), GridProcessor(tokenizer)


MODELS = {"sizing": sizing, "gemma": gemma, "grid": grid}


def seeing(name: str) -> tuple[Any, Any, Vision]:
    """Return a model, its processor and how it reads pictures."""
    model, processor = MODELS[name]()
    give_vision(model, processor)
    vision = vision_of(model)
    assert vision is not None
    return model, processor, vision


def noise(seed: int) -> np.ndarray:
    size = SIZES[seed % len(SIZES)]
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def asked(renderer: Renderer, pictures: list[np.ndarray]) -> tuple[list[int], str]:
    """Return the prompts of a conversation, one after another, and the text of all of them."""
    ids: list[int] = []
    rows: list[dict[str, Any]] = []
    for number, pixels in enumerate(pictures):
        said = Message(role="user", content="what do you see")
        shown = renderer.seen(said, pixels)
        if number == 0:
            ids += renderer.opening([shown])
        else:
            ids += [*renderer.action("go"), *renderer.continuation([shown], CLOSED)]
            rows.append({"role": "assistant", "content": "go"})
        parts = [{"type": "image"}, {"type": "text", "text": said.content}]
        rows.append({"role": "user", "content": parts})
    text = renderer.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
    return ids, text


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_is_read_as_the_processor_reads_its_whole_text(name: str):
    model, processor, vision = seeing(name)
    pictures = [noise(seed) for seed in range(3)]
    ids, text = asked(Renderer(processor.tokenizer), pictures)
    wanted = processor(
        images=[pictures], text=[text], add_special_tokens=False, return_tensors="pt"
    )
    assert vision.as_read(ids) == wanted["input_ids"][0].tolist()
    logprobs = model(**wanted).logits[0, :-1].log_softmax(-1)
    true = logprobs.gather(-1, wanted["input_ids"][0, 1:, None])[:, 0].detach().numpy()
    row = np.array(ids)
    mask = (row >= 0) & (np.arange(row.size) > 0)
    [alone] = score(model, [row], [mask], max_tokens=1)
    cut = int(np.flatnonzero(row == row[row < 0][-1])[0])  # before the last picture
    together, _ = score(model, [row, row[:cut]], [mask, mask[:cut]], max_tokens=4096)
    for found in (alone, together):
        np.testing.assert_allclose(found[mask], true[mask[1:]], atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_another_process_reads_pictures_in_the_same_way(name: str):
    model, _, vision = seeing(name)
    again = pickle.loads(pickle.dumps(vision))
    number = vision.pictures.keep(noise(2))
    assert again.tokens(number) == vision.tokens(number)
    ids = torch.tensor([[5, *vision.tokens(number), 6]])
    ours, its = (one.inputs(ids, model.base_model) for one in (vision, again))
    assert ours.keys() == its.keys()
    assert all(torch.equal(ours[key], its[key]) for key in ours)


@pytest.mark.parametrize("name", MODELS)
def test_an_engine_goes_on_from_pictures_of_different_sizes(name: str):
    model, processor, _ = seeing(name)
    renderer = Renderer(processor.tokenizer)
    engine = LocalEngine(model, processor.tokenizer, context=512)

    async def talk(seeds: range) -> tuple[list[int], list[bool], list[float]]:
        session = engine.open(seeds[0])
        ids, mask, logprobs = list[int](), list[bool](), list[float]()
        for turn, seed in enumerate(seeds):
            said = renderer.seen(Message(role="user", content="and now"), noise(seed))
            prompt = renderer.continuation([said], CLOSED) if turn else renderer.opening([said])
            answer = await session.generate(prompt, Sampling(max_new_tokens=3 + seeds[0]))
            ids += [*prompt, *answer.token_ids]
            mask += [False] * len(prompt) + [True] * len(answer.token_ids)
            logprobs += answer.logprobs
        return ids, mask, logprobs

    async def talks() -> Any:
        return await asyncio.gather(*(talk(range(at, at + 2)) for at in range(3)))

    for ids, mask, logprobs in asyncio.run(talks()):
        chosen = np.array(mask)
        [learned] = score(model, [np.array(ids)], [chosen], max_tokens=1)
        np.testing.assert_allclose(logprobs, learned[chosen], atol=4e-6)


def test_the_wire_has_what_shares_a_token_with_what_is_around_a_picture():
    _, processor, vision = seeing("gemma")
    ids, text = asked(Renderer(processor.tokenizer), [noise(0), noise(1)])
    image = processor.tokenizer.image_token_id
    expanded = "<start_of_image>" + "<soft>" * 4 + "<end_of_image>"
    whole = text.replace("<start_of_image>", f"\n\n{expanded}\n\n")
    assert vision.as_read(ids) == processor.tokenizer.encode(whole, add_special_tokens=False)
    assert processor.tokenizer.encode("\n\n\n")[0] in ids  # of which two are the picture's
    sent, parts = vision.on_the_wire(ids)
    assert image not in sent
    assert processor.tokenizer.decode(sent) == text
    assert len(parts) == 2


def packing(model: Any) -> None:
    packed = compute.Compute(torch.device("cpu"), packed=True)
    setattr(model.base_model, compute._KEPT, packed)
    try:
        check_packing(model)
    finally:
        delattr(model.base_model, compute._KEPT)


@pytest.mark.parametrize("name", MODELS)
def test_packed_sequences_keep_the_positions_of_their_pictures(name: str):
    packing(seeing(name)[0])


def test_packed_sequences_are_kept_apart_where_none_has_a_picture():
    model, _, _ = seeing("grid")
    ids = [np.arange(1, 7), np.arange(3, 8)]
    masks = [np.arange(one.size) > 0 for one in ids]
    apart = score(model, ids, masks, max_tokens=1)
    packed = compute.Compute(torch.device("cpu"), packed=True)
    setattr(model.base_model, compute._KEPT, packed)
    together = score(model, ids, masks, max_tokens=64)
    delattr(model.base_model, compute._KEPT)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_packing_that_mixes_up_pictures_is_refused(monkeypatch: pytest.MonkeyPatch):
    model, _, vision = seeing("grid")
    monkeypatch.setattr(vision, "packed_positions", lambda inputs, own_BT, body: own_BT)
    with pytest.raises(ConfigError, match=r"learner\.packing"):
        packing(model)


def test_a_processor_that_looks_at_the_other_pictures_is_refused():
    with pytest.raises(ConfigError, match="makes other tokens of a conversation with 2 picture"):
        give_vision(*llava(Numbering))


def test_a_model_that_counts_pictures_over_all_rows_is_refused(monkeypatch: pytest.MonkeyPatch):
    model, processor = grid()
    of_pictures = model.base_model.get_rope_index

    def counted(**asked: Any) -> Any:
        found, shift = of_pictures(**asked)
        return found + torch.arange(found.shape[1])[:, None], shift

    counted.__signature__ = inspect.signature(of_pictures)  # type: ignore[attr-defined]
    monkeypatch.setattr(model.base_model, "get_rope_index", counted)
    vision = Vision(processor, model.config.image_token_id)
    with pytest.raises(ConfigError, match="other positions where another row"):
        vision.check(model.base_model)


def test_a_model_whose_layers_get_more_than_vectors_is_read_by_its_own_forward_pass():
    model, processor = llava(LlavaProcessor)
    give_vision(model, processor)
    assert isinstance(make_decoder(model, context=64), CachedDecoder)

    def seen_later(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "visual_pos_masks": torch.ones(1)}

    model.get_decoder().register_forward_pre_hook(seen_later, with_kwargs=True)
    assert isinstance(make_decoder(model, context=64), ReplayDecoder)


class Marking(GridProcessor):
    """Marks the tokens around a picture, too, under another name."""

    def __call__(self, **settings: Any) -> Any:
        read = super().__call__(**settings)
        named = [self.tokenizer.convert_tokens_to_ids(one) for one in ("<see>", IMAGE, "</see>")]
        marked = torch.isin(read["input_ids"], torch.tensor(named)).long()
        return BatchFeature({**read, "layer_token_type_ids": marked * 2})


def test_tokens_around_a_picture_have_the_type_that_the_processor_gives_them():
    class Body(torch.nn.Module):
        def forward(
            self,
            input_ids: Any,
            pixel_values: Any,
            mm_token_type_ids: Any,
            layer_token_type_ids: Any,
        ) -> None: ...

    model, processor = grid()
    vision = Vision(Marking(processor.tokenizer), model.config.image_token_id)
    picture = vision.tokens(vision.pictures.keep(noise(0)))
    found = vision.inputs(torch.tensor([[5, *picture, 6], [*picture, 6, 7]]), Body())
    assert found.keys() == {
        "input_ids", "pixel_values", "mm_token_type_ids", "layer_token_type_ids"
    }  # fmt: skip
    places = len(picture) - 2
    assert found["mm_token_type_ids"].tolist() == [
        [0, 0, *[1] * places, 0, 0], [0, *[1] * places, 0, 0, 0]
    ]  # fmt: skip
    assert found["layer_token_type_ids"].tolist() == [
        [0, *[2] * len(picture), 0], [*[2] * len(picture), 0, 0]
    ]  # fmt: skip


SAID = "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"
PLAIN = (
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
)
SEEN = f"{{% for p in message['content'] if p['type'] == 'image' %}}{IMAGE}{{% endfor %}}"
BLANK = "{{ '' if message['content'][0]['type'] == 'image' else ' ' }}"


@pytest.mark.parametrize(
    ("before", "written"),
    [
        (SEEN + "{{ '\n' }}", ("\n", f"{IMAGE}\n", True)),  # LLaVA-OneVision
        (BLANK + SEEN, (" ", IMAGE, True)),  # SmolVLM
        (SEEN, ("", IMAGE, True)),
    ],
)
def test_a_picture_stands_where_the_template_has_it(before: str, written: tuple[str, str, bool]):
    model, processor = llava(LlavaProcessor)
    tokenizer = processor.tokenizer
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}" + before + PLAIN + ""
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    assert written_picture(tokenizer) == written
    give_vision(model, processor)
    vision = vision_of(model)
    assert vision is not None
    renderer = Renderer(tokenizer)
    shown = renderer.seen(Message(role="user", content="see"), noise(0))
    text = f"<|user|>{written[1].replace(IMAGE, IMAGE * 4)}see<|end|>"
    expected = tokenizer.encode(f"{text}<|assistant|>")
    assert vision.as_read(renderer.opening([shown])) == expected
    later = renderer.continuation([shown, shown], CLOSED)
    assert vision.as_read(later) == tokenizer.encode(f"{text}{text}<|assistant|>")
