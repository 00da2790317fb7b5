"""Processors of models that see, each with its own way to read a picture, used by ``Vision``."""

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from transformers import (
    AutoModelForImageTextToText,
    LlavaConfig,
    LlavaProcessor,
    SiglipImageProcessorPil,
)

from turngym.agents.engine.models import IMAGE, SMALL_VISION_TEMPLATE, seeded, train_tokenizer
from turngym.agents.engine.vision import give_vision, vision_of
from turngym.agents.rendering import Renderer
from turngym.agents.templates import written_picture
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


def noise(seed: int) -> np.ndarray:
    size = SIZES[seed % len(SIZES)]
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


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
    later = renderer.continuation([shown, shown], hit_eos=True)
    assert vision.as_read(later) == tokenizer.encode(f"{text}{text}<|assistant|>")
