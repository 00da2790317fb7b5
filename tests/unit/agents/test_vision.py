"""Models that see: pictures in token ids, in a forward pass and on the wire."""

import asyncio
import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.models import tokenizer as blind_tokenizer
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.chat.prompting import ChatMessage, PictureHistory
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.decoder import CachedDecoder, ReplayDecoder
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import (
    IMAGE,
    add_lora,
    build_tiny_model,
    load_model_dir,
    save_model_dir,
)
from turngym.agents.engine.protocol import Sampling, vision_of
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.engine.vision import Vision
from turngym.agents.policy import EpisodeContext
from turngym.agents.remote.wire import prompt_ids_of
from turngym.agents.rendering import Renderer
from turngym.agents.serving.answers import prompt_fields
from turngym.agents.templates import written_picture
from turngym.errors import ConfigError
from turngym.trainers.update.forward import BodyWithHead, micro_batches, score
from turngym.types import Message, TokenSpan, Turn

CONFIG = TinyModelConfig(
    hidden=32, layers=2, heads=2, context=256, image_size=16, patch_size=8
)  # 4 places a picture


def noise(seed: int, height: int = 20, width: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@cache
def seeing() -> tuple[Any, Any]:
    tokenizer = train_tokenizer(["what do you see", "go north"] * 3, 280, images=True)
    return build_tiny_model(CONFIG, tokenizer, seed=0), tokenizer


def vision() -> Vision:
    found = vision_of(seeing()[1])
    assert found is not None
    return found


def play(engine: LocalEngine, *episodes: list[np.ndarray]) -> list[list[TokenSpan]]:
    """Return the spans of episodes that are played at once, a picture a turn."""
    model = EngineModel(engine, Renderer(seeing()[1]), sampling=Sampling(max_new_tokens=6))

    async def one(seed: int, shown: list[np.ndarray]) -> list[TokenSpan]:
        conversation = model.open(seed)
        spans: list[TokenSpan] = []
        for image in shown:
            said = Message(role="user", content="what do you see")
            answer = await conversation.complete([ChatMessage(message=said, image=image)])
            spans += answer.spans
        conversation.close()
        return spans

    async def all_of_them() -> list[list[TokenSpan]]:
        return await asyncio.gather(*(one(seed, shown) for seed, shown in enumerate(episodes)))

    return asyncio.run(all_of_them())


def arrays(spans: list[TokenSpan]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.array([token for span in spans for token in span.token_ids])
    mask = np.array([span.sampled for span in spans for _ in span.token_ids])
    return ids, mask, np.array([p for span in spans for p in span.logprobs], dtype=np.float32)


@pytest.mark.parametrize("kind", [CachedDecoder, ReplayDecoder])
def test_what_is_sampled_after_pictures_has_the_log_probs_of_one_forward_pass(kind: Any):
    model, tokenizer = seeing()
    engine = LocalEngine(model, tokenizer, context=256)
    assert isinstance(engine._decoder, CachedDecoder)
    engine._decoder = kind(model, context=256)
    episodes = play(engine, [noise(0), noise(1)], [noise(2), noise(0), noise(3)], [noise(4)])
    found = [arrays(spans) for spans in episodes]
    ids, masks = [ids for ids, _, _ in found], [mask for _, mask, _ in found]
    assert [int((one < 0).sum()) for one in ids] == [8, 12, 4]
    together = score(model, ids, masks, max_tokens=4096)
    for one, mask, (_, _, logprobs), learned in zip(ids, masks, found, together, strict=True):
        np.testing.assert_allclose(logprobs, learned[mask], atol=2e-6)
        [apart] = score(model, [one], [mask], max_tokens=1)
        np.testing.assert_allclose(apart, learned, atol=2e-6)
        [scored] = asyncio.run(engine.score([one.tolist()]))
        np.testing.assert_allclose(scored[mask[1:]], logprobs, atol=2e-6)


def test_new_weights_reach_what_sees_as_well():
    model, tokenizer = seeing()
    other = build_tiny_model(CONFIG, tokenizer, seed=1)
    engine = LocalEngine(model, tokenizer, context=256)
    engine.load_weights(other.state_dict(), 1)
    ids, mask, logprobs = arrays(play(engine, [noise(0)])[0])
    [learned] = score(other, [ids], [mask], max_tokens=256)
    np.testing.assert_allclose(logprobs, learned[mask], atol=2e-6)


def test_conversations_that_differ_in_a_picture_alone_differ_in_their_tokens():
    black, white = (np.full((20, 30, 3), shade, dtype=np.uint8) for shade in (0, 255))
    engine = LocalEngine(*seeing(), context=256)
    found = [arrays(spans)[0] for spans in play(engine, [black]) + play(engine, [white])]
    first, second = (ids[ids < 0] for ids in found)
    assert set(first.tolist()).isdisjoint(second.tolist())
    model, (ids, mask, _) = seeing()[0], arrays(play(engine, [black])[0])
    other = np.where(ids < 0, second[0], ids)
    [as_black], [as_white] = (score(model, [one], [mask], max_tokens=256) for one in (ids, other))
    assert np.abs(as_black - as_white).max() > 1e-3


def test_a_page_cannot_show_a_picture():
    _, tokenizer = seeing()
    renderer, kept = Renderer(tokenizer), vision().pictures.keep(noise(7))
    for page in (IMAGE, f"\ue000guess:{kept}\ue000", "\ue000:1\ue000"):
        said = Message(role="user", content=f"see {page} here")
        assert min(renderer.opening([said])) >= 0
        shown = renderer.opening([renderer.seen(said, noise(7))])
        assert [token for token in shown if token < 0] == [-kept] * 4


def test_the_token_of_a_picture_is_not_one_where_the_model_says_it_itself():
    model, tokenizer = seeing()
    token = tokenizer.convert_tokens_to_ids(IMAGE)
    picture = vision().tokens(vision().pictures.keep(noise(0)))
    ids = np.array([5, *picture, token, 9])
    mask = np.arange(ids.size) >= ids.size - 1
    [found] = score(model, [ids], [mask], max_tokens=64)  # else features and places do not match
    assert np.isfinite(found).all()
    assert vision().as_read(ids) == [5, *[token] * 4, tokenizer.eos_token_id, 9]


def test_a_chat_answer_says_where_its_pictures_are_and_they_are_put_back():
    token = seeing()[1].convert_tokens_to_ids(IMAGE)
    numbers = [vision().pictures.keep(noise(seed)) for seed in (0, 0, 1)]
    pictures = [token for number in numbers for token in vision().tokens(number)]
    ids = [5, *pictures, token, 9]  # the last of which the model said itself
    plain, places = vision().without_numbers(ids), vision().places(ids)
    assert places == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert plain == [5, *[token] * 13, 9]
    assert prompt_ids_of(prompt_fields(plain, places), numbers) == ids
    assert prompt_fields([5, 9], vision().places([5, 9])) == {"prompt_token_ids": [5, 9]}


def test_the_wire_has_one_token_and_the_file_of_each_picture():
    token = seeing()[1].convert_tokens_to_ids(IMAGE)
    numbers = [vision().pictures.keep(noise(seed)) for seed in (0, 1)]
    one, other = map(vision().tokens, numbers)
    sent, parts = vision().on_the_wire([5, *one, 6, *other, *one])
    assert sent == [5, token, 6, token, token]
    assert [part["url"][:22] for part in parts] == ["data:image/png;base64,"] * 3
    assert parts[0] == parts[2] != parts[1]
    assert vision().on_the_wire([5, 6]) == ([5, 6], [])


@pytest.mark.parametrize("cut", range(12))
def test_a_picture_that_was_cut_at_the_beginning_is_left_out_whole(cut: int):
    picture = vision().tokens(vision().pictures.keep(noise(0)))
    ids = np.array([5, *picture, 6, *picture, 7])
    whole = {2: 5, 3: 5, 4: 5, 7: 10, 8: 10, 9: 10}.get(cut, cut)
    np.testing.assert_array_equal(vision().without_part(ids[cut:]), ids[whole:])


def test_a_critic_s_copy_of_the_body_sees():
    value = BodyWithHead(seeing()[0])
    torch.nn.init.ones_(value.weight)
    found = []
    for seed in (0, 1):
        ids = np.array([5, *vision().tokens(vision().pictures.keep(noise(seed))), 6, 7])
        mask = np.arange(ids.size) == ids.size - 1
        [batch] = micro_batches([ids], [mask], max_tokens=64, device=torch.device("cpu"))
        found.append(value(batch, is_behind=False).item())
    assert found[0] != pytest.approx(found[1], abs=1e-4)


def test_a_saved_model_sees_when_it_is_loaded_for_that(tmp_path: Path):
    model, tokenizer = seeing()
    save_model_dir(model, tokenizer, tmp_path)
    again, its = load_model_dir(tmp_path, images=True)
    ids = np.array([5, *vision().tokens(vision().pictures.keep(noise(0))), 6, 7])
    mask = np.arange(ids.size) >= ids.size - 2
    own = vision_of(its)
    assert own is not None
    assert own.pictures.keep(noise(0)) == -ids[1]
    np.testing.assert_array_equal(
        score(again, [ids], [mask], max_tokens=64)[0], score(model, [ids], [mask], max_tokens=64)[0]
    )
    with pytest.raises(ConfigError, match="no model that reads text alone; set images=true"):
        load_model_dir(tmp_path)


def test_adapters_are_on_what_reads_and_speaks_alone():
    model, _ = seeing()
    adapted = add_lora(copy.deepcopy(model), 2, seed=0)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".language_model." in name for name in trained)


PARTS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% for part in m['content'] %}"
    "{{ '<img>\\n' if part['type'] == 'image' else part['text'] }}{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_template(template: str) -> Any:
    found = copy.deepcopy(blind_tokenizer())
    found.chat_template = template
    return found


def test_templates_that_want_parts_get_them():
    renderer = Renderer(with_template(PARTS))
    text = renderer._text([Message(role="user", content="go north")], generate=True)
    assert text == "<|user|>go north<|end|><|assistant|>"
    assert written_picture(renderer.tokenizer) == ("", "<img>\n", True)


def test_a_picture_stands_behind_the_text_where_it_changes_what_is_at_the_beginning():
    before = "{% if m['content'][0]['type'] != 'image' %}<|start|>{% endif %}"
    template = PARTS.replace("<|{{ m['role'] }}|>", before + "<|{{ m['role'] }}|>")
    assert written_picture(with_template(template)) == ("", "<img>\n", False)


@pytest.mark.parametrize(
    "template",
    [
        PARTS.replace("'<img>\\n' if part['type'] == 'image' else part['text']", "part['text']"),
        PARTS.replace("<|end|>", "{{ m['content'] | length }}<|end|>"),
    ],
)
def test_templates_without_a_place_for_pictures_are_refused(template: str):
    with pytest.raises(ConfigError, match="has no place for a picture"):
        written_picture(with_template(template))


async def test_old_pictures_are_dropped_all_words_stay_and_a_resumed_episode_goes_on_the_same():
    engine = LocalEngine(*seeing(), context=256)
    model = EngineModel(engine, Renderer(seeing()[1]), sampling=Sampling(max_new_tokens=4))
    agent = ChatAgent(model, history=PictureHistory(2))
    context = EpisodeContext(
        env_id="lab/Screens-v0", task_id="screens/train/0", seed=3, instructions=""
    )
    seen = [{"text": f"screen {n}", "image": noise(n)} for n in range(6)]
    first, second = agent.start(context), agent.start(context)
    played = [await first.act(observation, {}) for observation in seen]
    assert [turn.starts_segment for turn in played] == [False, False, True, False, True, False]
    assert played[2].segment_reason == "pictures: 1 of 3 is kept"
    texts = [message.content for message in played[4].observation if message.role == "user"]
    assert texts == [f"screen {n}" for n in range(5)]
    for turn, observation in zip(played, seen, strict=True):
        shown = [token for span in turn.spans for token in span.token_ids if token < 0]
        assert shown == [-vision().pictures.keep(observation["image"])] * 4
    for turn, observation in zip(played[:5], seen, strict=False):
        fields = ("observation", "action", "spans", "starts_segment")
        second.replay(observation, {}, Turn(**{name: getattr(turn, name) for name in fields}))
    assert (await second.act(seen[5], {})).spans == played[5].spans
