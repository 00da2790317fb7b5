"""Which models of ``transformers`` that see the local engine and the learner read right.

    python benchmarks/engine/seeing.py [--only qwen3_vl,gemma3] [--out FILE]

Of each one a small model with random weights plays three conversations of three turns at once, most
turns with a picture, no two of one size. The log-probs that the engine reports, and those that the
learner computes of the same tokens, together and alone, are compared with one forward pass of
``transformers`` over what the model's own processor makes of the whole text and all pictures. Then
other weights are loaded, the model is saved and loaded, and a step of imitation is taken, with
adapters and without.

It needs torchvision (``pip install turngym[vision]``), so it is no part of ``make proof``. That of
PyPI does not import beside a CPU build of torch: in an environment for this alone, cut what
``torchvision/__init__.py`` imports down to ``transforms`` and ``utils``, which need no operators.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
import math
import string
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t
from seeing_models import EYES, SEEING, TEXT
from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from turngym.agents.chat.agent import EngineModel
from turngym.agents.chat.prompting import ChatMessage
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import add_lora, load_model_dir, save_model_dir, seeded
from turngym.agents.engine.protocol import Sampling, vision_of
from turngym.agents.engine.vision import give_vision
from turngym.agents.rendering import Renderer
from turngym.agents.templates import prepare, takes_system
from turngym.errors import ConfigError
from turngym.trainers.update.forward import micro_batches, read_tokens, score
from turngym.types import Message

TURNS = (
    ("what do you see", "and now\n", "go on"),
    ("look", "look", "look"),
    ("left or right",) * 3,
)
SHOWN = ((True, False, True), (False, False, False), (True, True, True))
CHARACTERS = [*string.ascii_letters, *string.digits, *" \n.:?<>[]/-_"]
LETTERS = 62
SAME = ("engine", "scored", "learner", "alone", "loaded", "saved")
TRAINED = ("gradient", "adapters")


def tokenizer_of(own: dict[str, Any]) -> Any:
    """Return a tokenizer of single characters, with the control tokens of a model."""
    named = own["tokens"]
    ends = ("<|im_end|>", "<end_of_turn>", "<end_of_utterance>", "</s>", "<|END_OF_TURN_TOKEN|>")
    starts = (
        "<|im_start|>", "<start_of_turn>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "<bos>",
        "[/SYSTEM_PROMPT]", "<|assistant|>", "<|user|>", "<|system|>", "[gMASK]", "<sop>",
        "<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>",
    )  # fmt: skip
    special = [*ends, *starts, *own.get("more_tokens", "").split()]
    vocabulary = {one: number for number, one in enumerate([*CHARACTERS, "\n\n"])}
    bpe = Tokenizer(models.BPE(vocabulary, [("\n", "\n")], fuse_unk=False))
    bpe.decoder = decoders.Fuse()
    found = t.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>", bos_token="<bos>",
        extra_special_tokens={f"{name}_token": token for name, token in named.items()},
        chat_template=own["template"], clean_up_tokenization_spaces=False,
    )  # fmt: skip
    found.add_tokens(special, special_tokens=True)
    return found


def processor_of(own: dict[str, Any], tokenizer: Any) -> Any:
    """Return the processor of a model."""
    kind, settings = own["images"]
    image_processor = getattr(t, f"{kind}ImageProcessor")(**settings)
    kind, settings = own["processor"]
    settings = settings | {"image_processor": image_processor, "tokenizer": tokenizer}
    if "video" in own:
        films = getattr(t, f"{own['video']}VideoProcessor")
        settings["video_processor"] = films(**own.get("video_settings", {}))
    if "sounds" in own:
        settings["feature_extractor"] = getattr(t, f"{own['sounds']}AudioFeatureExtractor")()
    processor = getattr(t, f"{kind}Processor")(**settings)
    processor.chat_template = tokenizer.chat_template
    return processor


def token_ids_of(name: str, own: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Return what the shape of a model says of control tokens."""
    id_of = tokenizer.convert_tokens_to_ids
    ids = {f"{role}_token_id": id_of(token) for role, token in own["tokens"].items()}
    image = id_of(own.get("image_token", own["tokens"][own.get("image", "image")]))
    ids |= {"image_token_id": image, "image_token_index": image}
    for role in ("boi", "eoi", "video"):
        if f"{role}_token_id" in ids:
            ids[f"{role}_token_index"] = ids[f"{role}_token_id"]
    if name == "ovis2":
        ids["visual_indicator_token_ids"] = id_of(own["more_tokens"].split()[1:])
        ids["vocab_size"] = len(tokenizer)
    return ids


def built(name: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return a model of random weights, its tokenizer and its processor."""
    own = SEEING[name]
    tokenizer = tokenizer_of(own)
    processor = processor_of(own, tokenizer)
    prepare(tokenizer)
    untied = {"tie_word_embeddings": False}
    ends = ("eos_token_id", "pad_token_id", "bos_token_id")
    text = {end: getattr(tokenizer, end) for end in ends} | {"vocab_size": len(tokenizer)}
    config = t.AutoConfig.for_model(
        own.get("model", name),
        text_config=TEXT | untied | text | own["text"],
        vision_config=EYES | own["eyes"],
        **(untied | token_ids_of(name, own, tokenizer) | own.get("config", {})),
    )
    with seeded(seed), torch.no_grad():
        model = t.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        # As they come all tokens are about as likely, whatever was read.
        for weight_name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(6.0)
            if "newline" in weight_name or not weight.any():
                weight.normal_(std=0.3)
    return model, tokenizer, processor


def noise(seed: int) -> Any:
    """Return a picture whose size depends on ``seed``, too."""
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (24 + 13 * (seed % 4), 30 + 17 * (seed % 3), 3), np.uint8)


Talk = tuple[list[int], list[bool], list[float], list[dict[str, Any]], list[Any]]


def only_letters(engine: LocalEngine, tokenizer: Any) -> Tensor:
    """Let ``engine`` sample nothing that does not come back from its text; return that, [V]."""
    decoder: Any = engine._decoder
    extend, banned = decoder.extend, torch.arange(len(tokenizer)) >= LETTERS
    banned[tokenizer.eos_token_id] = False

    def extended(rows: Any, tokens: Any) -> Tensor:
        logits: Tensor = extend(rows, tokens)
        return logits.masked_fill(banned, -math.inf)

    decoder.extend = extended
    return banned


async def conversation(model: EngineModel[Any], which: int, shown: Any) -> Talk:
    """Return a conversation: ids, which were sampled, their log-probs, messages and pictures."""
    renderer = model.renderer
    talk, ids, mask, logprobs = model.open(which), list[int](), list[bool](), list[float]()
    rows, pictures = [], []
    for turn, (said, sees) in enumerate(zip(TURNS[which], shown[which], strict=True)):
        new, parts = [], [{"type": "text", "text": said}]
        if turn == 0 and which == 0 and takes_system(renderer.tokenizer):
            new = [ChatMessage(message=Message(role="system", content="be brief"))]
            rows.append({"role": "system", "content": [{"type": "text", "text": "be brief"}]})
        if sees:
            pictures.append(noise(10 * which + turn))
            parts.insert(0 if renderer.vision._comes_first else 1, {"type": "image"})
        image = pictures[-1] if sees else None
        new.append(ChatMessage(message=Message(role="user", content=said), image=image))
        answer = await talk.complete(new)
        rows.append({"role": "user", "content": parts})
        text = [{"type": "text", "text": answer.message.content}]
        rows.append({"role": "assistant", "content": text})
        for span in answer.spans:
            ids += span.token_ids
            mask += [span.sampled] * len(span.token_ids)
            logprobs += span.logprobs
    talk.close()
    return ids, mask, logprobs, rows, pictures


def played(engine: LocalEngine, tokenizer: Any, shown: Any) -> list[Talk]:
    """Return three conversations at once, whose answers come back from their text."""
    model = EngineModel(engine, Renderer(tokenizer), sampling=Sampling(max_new_tokens=7))

    async def all_of_them() -> list[Talk]:
        return await asyncio.gather(*(conversation(model, which, shown) for which in range(3)))

    return asyncio.run(all_of_them())


def expected(model: Any, processor: Any, talk: Talk) -> tuple[list[int], Tensor]:
    """Return ids [L] and logits [L - 1, V] of what the model's own processor makes of a talk."""
    ids, _, _, rows, pictures = talk
    text = processor.tokenizer.apply_chat_template(rows, tokenize=False)
    text += processor.tokenizer.eos_token  # which a template may leave to the next message
    begins = Renderer(processor.tokenizer).answer_begins  # which a model has to say itself
    for row in rows:
        if row["role"] == "assistant":
            answer = row["content"][0]["text"]
            text = text.replace(begins + answer, answer)
    inputs = processor(
        text=[text], images=[pictures] if pictures else None, return_tensors="pt",
        add_special_tokens=False,
    )  # fmt: skip
    shape = inputs["input_ids"].shape
    cut = {k: v[:, : len(ids)] if v.shape == shape else v for k, v in inputs.items()}
    cut = {k: v.float() if v.is_floating_point() else v for k, v in cut.items()}
    with torch.no_grad():
        logits: Tensor = model(**cut).logits[0, :-1].float()
    return cut["input_ids"][0].tolist(), logits


def logprobs_of(logits: Tensor, ids: list[int], mask: Any) -> Any:
    """Return the log-probs of those of ``ids`` [L] that were sampled."""
    read = torch.tensor(ids)[1:, None]
    return logits.log_softmax(-1).gather(-1, read)[:, 0].numpy()[mask[1:]]


def apart(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def measured(name: str) -> dict[str, Any]:
    """Return the decoder of one model, and how far off engine and learner are at most."""
    model, tokenizer, processor = built(name)
    give_vision(model, processor)
    engine = LocalEngine(model, tokenizer, context=1024)
    banned = only_letters(engine, tokenizer)
    talks = played(engine, tokenizer, SEEING[name].get("shown", SHOWN))
    found: dict[str, Any] = {"decoder": type(engine._decoder).__name__}
    vision = vision_of(tokenizer)
    assert vision is not None
    ids = [np.array(talk[0]) for talk in talks]
    masks = [np.array(talk[1]) for talk in talks]
    together = score(model, ids, masks, max_tokens=8192)
    again = asyncio.run(engine.score([one.tolist() for one in ids]))
    keys = ("engine", "learner", "alone", "scored")  # each how far off
    found |= dict.fromkeys(keys, 0.0) | {"spread": 0.0, "ids": True, "pictures": []}
    for number, talk in enumerate(talks):
        mask = masks[number]
        read, logits = expected(model, processor, talk)
        found["ids"] &= vision.as_read(talk[0]) == read
        found["pictures"] += [len(vision.tokens(vision.pictures.keep(one))) for one in talk[4]]
        if len(read) != mask.size:
            continue
        true = logprobs_of(logits, read, mask)
        [alone] = score(model, [ids[number]], [mask], max_tokens=1)
        three = together[number][mask], alone[mask], again[number][mask[1:]]
        for key, values in zip(keys[1:], three, strict=True):
            found[key] = max(found[key], apart(values, true))
        of_letters = logprobs_of(logits.masked_fill(banned, -math.inf), read, mask)
        found["engine"] = max(found["engine"], apart(talk[2], of_letters))
        found["spread"] = max(found["spread"], float(true.std()))
    return found | others(name, model, tokenizer, engine, (ids, masks))


def others(name: str, model: Any, tokenizer: Any, engine: Any, batch: Any) -> dict[str, Any]:
    """Return what other pictures and weights change, what is saved, and what is trained."""
    ids, masks = batch
    vision = vision_of(tokenizer)
    assert vision is not None
    before = score(model, ids, masks, max_tokens=8192)
    seen = ids[0].copy()
    first = seen[seen < 0][0]
    pixels = vision.pictures.pixels(-int(first))
    seen[seen == first] = -vision.pictures.keep(255 - pixels)
    found = {"picture": apart(score(model, [seen], masks[:1], max_tokens=1)[0], before[0])}
    other, _, its = built(name, seed=1)
    its.tokenizer = tokenizer
    give_vision(other, its)
    engine.load_weights(other.state_dict(), 1)
    after = asyncio.run(engine.score([one.tolist() for one in ids]))
    true = score(other, ids, masks, max_tokens=8192)
    of_new = (apart(a[mask[1:]], b[mask]) for a, b, mask in zip(after, true, masks, strict=True))
    found["loaded"] = max(of_new)
    with tempfile.TemporaryDirectory() as folder:
        save_model_dir(model, tokenizer, folder)
        saved, saved_tokenizer = load_model_dir(folder, images=True)
    vision_again = vision_of(saved_tokenizer)
    assert vision_again is not None
    for number in {-int(token) for one in ids for token in one[one < 0]}:
        assert vision_again.pictures.keep(vision.pictures.pixels(number)) == number
    scored = score(saved, ids, masks, max_tokens=8192)
    found["saved"] = max(apart(a, b) for a, b in zip(scored, before, strict=True))
    found["gradient"] = gradient(model, ids, masks, lambda name: not is_text(model, name))
    adapted = add_lora(copy.deepcopy(model), 2, seed=0)
    found["adapters"] = gradient(adapted, ids, masks, lambda name: "lora_B" in name)
    return found


def is_text(model: Any, name: str) -> bool:
    weight = dict(model.named_parameters())[name]
    own = [*model.get_decoder().parameters(), *model.get_output_embeddings().parameters()]
    return any(weight is one for one in own)


def gradient(model: Any, ids: Any, masks: Any, wanted: Callable[[str], bool]) -> float:
    """Return the share of ``wanted`` weights that imitating what was sampled changes."""
    loss: Any = torch.zeros(())
    for batch in micro_batches(ids, masks, max_tokens=8192, device=torch.device("cpu")):
        loss = loss - read_tokens(model, batch)[0].sum()
    loss.backward()
    reached = [
        weight.grad is not None and bool(weight.grad.any())
        for name, weight in model.named_parameters()
        if wanted(name)
    ]
    return sum(reached) / len(reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="Names with commas; all by default.")
    parser.add_argument("--out", type=Path, help="JSON lines to write.")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"transformers {t.__version__}, torch {torch.__version__}")
    found: dict[str, Any] = {}
    for name in SEEING:
        if arguments.only and name not in arguments.only.split(","):
            continue
        try:
            one = found[name] = measured(name)
        except ConfigError as error:
            found[name] = {"refused": str(error)}
            print(f"{name:16} refused: {error}", flush=True)
            continue
        numbers = (f"{key} {one[key]:.1e}" for key in ("spread", "picture", *SAME, *TRAINED))
        print(f"{name:16} {one['decoder']:14} ids={one['ids']}", *numbers, one["pictures"])
    if arguments.out is not None:
        lines = [json.dumps({"model": name, **one}) + "\n" for name, one in found.items()]
        arguments.out.write_text("".join(lines))
    if wrong := [name for name, one in found.items() if not is_right(one, SEEING[name])]:
        raise SystemExit(f"not what transformers computes: {', '.join(wrong)}")


def is_right(one: dict[str, Any], own: dict[str, Any]) -> bool:
    """Return whether a model is read right, or refused as it has to be."""
    if "refused" in one or "refused" in own:
        return "refused" in one and "refused" in own
    moved = all(one[key] > 1e-4 for key in ("picture", *TRAINED))
    return one["ids"] and moved and all(one[key] < 1e-5 for key in SAME)


if __name__ == "__main__":
    main()
