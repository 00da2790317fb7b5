"""Chat templates shaped like those of models that people train: thoughts, other end tokens."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from helpers.models import TEXTS, model
from turngym.agents.chat.agent import EngineModel
from turngym.agents.chat.prompting import ChatMessage
from turngym.agents.engine.config import ChatTemplateConfig
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.models import load_tokenizer, save_model_dir
from turngym.agents.engine.protocol import Sampling
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.rendering import AnswerEnd, Renderer
from turngym.agents.templates import prepare, rendered
from turngym.errors import ConfigError
from turngym.types import Message, after_thoughts

EACH = "{% for m in messages %}"
ASKED = "{% if add_generation_prompt %}"

# Earlier answers lose their thoughts, the last one gets a place for them even if it has none.
HYBRID = (
    EACH + "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
    + ASKED
    + "<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
# The thought is opened for the model; earlier answers have an empty one.
THINKER = (
    EACH + "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}" + ASKED + "<|im_start|>assistant\n<think>\n{% endif %}"
)
# Nothing closes an answer but the next message's role.
OPEN_ENDED = (
    EACH + "<|{{ m.role }}|>\n{{ m.content }}{% endfor %}" + ASKED + "<|assistant|>\n{% endif %}"
)
# Not the end of the sequence ends an answer; that comes once, at the end of everything.
CLOSED = (
    EACH + "<|{{ m.role }}|>\n{{ m.content }}<|done|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
# Its own names of roles, a begin token, and no system message.
TURNS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    + EACH
    + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    + ASKED
    + "<start_of_turn>model\n{% endif %}"
)
# A blank before each answer, which the model says itself.
BLANK = (
    "{{ bos_token }}" + EACH + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|done|>"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
# The model says itself to whom it speaks.
CHANNELS = (
    EACH + "<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|done|>"
    "{% endfor %}" + ASKED + "<|start|>assistant{% endif %}"
)
CONTROL = (
    "<|im_start|>", "<|im_end|>", "<|user|>", "<|done|>", "<|start|>", "<|channel|>",
    "<|message|>", "<start_of_turn>", "<end_of_turn>", "<bos>",
)  # fmt: skip


def tokenizer(template: str) -> Any:
    made = train_tokenizer(TEXTS * 3, 276)  # with what is added fewer than the model reads
    made.add_special_tokens({"additional_special_tokens": list(CONTROL), "bos_token": "<bos>"})
    made.add_tokens(["<think>", "</think>"])
    made.chat_template = template
    return made


def said(role: Any, text: str) -> Message:
    return Message(role=role, content=text)


def played(template: str, **kwargs: bool) -> tuple[str, str]:
    """Return the end token, and two turns as the model reads and says them."""
    made = tokenizer(template)
    prepare(made, ChatTemplateConfig(chat_template_kwargs=kwargs))
    renderer = Renderer(made)
    ids = [
        *renderer.opening([said("system", "be kind"), said("user", "see a")]),
        *renderer.action("go a"),
        *renderer.continuation([said("user", "see b")], AnswerEnd(is_closed=True)),
        *renderer.action("why</think>go b" if template == THINKER else "<think>why</think>go b"),
    ]
    text: str = made.decode(ids)
    return made.eos_token, text


@pytest.mark.parametrize(
    ("template", "kwargs", "end", "text"),
    [
        (
            HYBRID,
            {},
            "<|im_end|>",
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nsee a<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\ngo a<|im_end|>\n"
            "<|im_start|>user\nsee b<|im_end|>\n"
            "<|im_start|>assistant\n<think>why</think>go b<|im_end|>",
        ),
        (
            HYBRID,
            {"enable_thinking": False},
            "<|im_end|>",
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nsee a<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\ngo a<|im_end|>\n"
            "<|im_start|>user\nsee b<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n<think>why</think>go b<|im_end|>",
        ),
        (
            THINKER,
            {},
            "<|im_end|>",
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nsee a<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\ngo a<|im_end|>\n"
            "<|im_start|>user\nsee b<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nwhy</think>go b<|im_end|>",
        ),
        (
            OPEN_ENDED,
            {},
            "<|user|>",
            "<|system|>\nbe kind<|user|>\nsee a<|assistant|>\ngo a<|user|>\nsee b<|assistant|>\n"
            "<think>why</think>go b<|user|>",
        ),
        (
            CLOSED,
            {},
            "<|done|>",
            "<|system|>\nbe kind<|done|>\n<|user|>\nsee a<|done|>\n<|assistant|>\ngo a<|done|>\n"
            "<|user|>\nsee b<|done|>\n<|assistant|>\n<think>why</think>go b<|done|>",
        ),
        (
            TURNS,
            {},
            "<end_of_turn>",
            "<bos><start_of_turn>user\nbe kind\n\nsee a<end_of_turn>\n<start_of_turn>model\n"
            "go a<end_of_turn>\n<start_of_turn>user\nsee b<end_of_turn>\n<start_of_turn>model\n"
            "<think>why</think>go b<end_of_turn>",
        ),
        (
            BLANK,
            {},
            "<|done|>",
            "<bos>[INST] be kind\n\nsee a [/INST] go a<|done|>[INST] see b [/INST]"
            "<think>why</think>go b<|done|>",
        ),
    ],
)
def test_an_episode_keeps_what_was_said(
    template: str, kwargs: dict[str, bool], end: str, text: str
) -> None:
    assert played(template, **kwargs) == (end, text)


@pytest.mark.parametrize("template", [HYBRID, THINKER, OPEN_ENDED, CLOSED, TURNS])
def test_an_answer_that_was_cut_off_is_closed(template: str) -> None:
    made = tokenizer(template)
    prepare(made)
    renderer, new = Renderer(made), [said("user", "see b")]
    closed = made.decode(renderer.continuation(new, AnswerEnd(is_closed=True)))
    assert (
        made.decode(renderer.continuation(new, AnswerEnd(is_closed=False)))
        == made.eos_token + closed
    )


@pytest.mark.parametrize(("template", "opened"), [(THINKER, True), (HYBRID, False)])
def test_a_thought_that_the_template_opens_and_nothing_closes_is_no_action(
    template: str, opened: bool
) -> None:
    made = tokenizer(template)
    prepare(made)
    agent = EngineModel(LocalEngine(model(), made), Renderer(made), sampling=Sampling())
    seen = ChatMessage(message=said("user", "see a"))
    content = asyncio.run(agent.open(1).complete([seen])).message.content
    assert content.startswith("<think>") is opened
    assert (after_thoughts(content) == "") is opened


THINKS = "m.role == 'assistant' and m.reasoning_content"
# A header before each part of an answer, thoughts of the last answer alone, another end for it.
PARTS = (
    EACH + "{% if THINKS and loop.last %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.reasoning_content }}<|done|>{% endif %}<|start|>{{ m.role }}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|done|>"
    "{% endfor %}" + ASKED + "<|start|>assistant{% endif %}"
).replace("THINKS", THINKS)  # fmt: skip
# Thoughts between marks of the model's own.
MARKED = (
    EACH + "<|start|>{{ m.role }}\n{% if THINKS %}<|channel|>thought\n{{ m.reasoning_content }}\n"
    "<channel|>{% endif %}{{ m.content }}<|done|>\n{% endfor %}" + ASKED
    + "<|start|>assistant\n{% endif %}"
).replace("THINKS", THINKS)  # fmt: skip
# The same, and the prompt begins the thought.
PROMPTED = MARKED.replace("<|start|>assistant\n{% endif %}",
                          "<|start|>assistant\n<|channel|>thought\n{% endif %}")  # fmt: skip


@pytest.mark.parametrize(
    ("template", "plain", "thinking", "unclosed"),
    [
        (
            CHANNELS,
            "<|channel|>final<|message|>go a<|done|>",
            None,
            None,
        ),
        (
            PARTS,
            "<|channel|>final<|message|>go a<|done|>",
            "<|channel|>analysis<|message|>why<|done|><|start|>assistant<|channel|>final<|message|>"
            "go a<|done|>",
            "<|channel|>analysis<|message|>why",
        ),
        (
            MARKED,
            "go a<|done|>",
            "<|channel|>thought\nwhy\n<channel|>go a<|done|>",
            "<|channel|>thought\nwhy",
        ),
        (PROMPTED, None, "why\n<channel|>go a<|done|>", "why"),
    ],
)
def test_headers_and_thoughts_of_any_form_are_read_and_written(
    template: str, plain: str | None, thinking: str | None, unclosed: str | None
) -> None:
    made = tokenizer(template)
    made.add_special_tokens({"additional_special_tokens": ["<channel|>"]})
    prepare(made)
    renderer = Renderer(made)

    def read(text: str) -> str:
        ids = made.encode(text, add_special_tokens=False)
        message, end = renderer.answer(ids)
        assert end.is_closed is text.endswith("<|done|>")
        return message.content

    asked = made.decode(renderer.opening([said("user", "see a")]))
    for text, meant in ((plain, "go a"), (thinking, "<think>why</think>go a")):
        if text is not None:
            assert read(text) == meant
            assert made.decode(renderer.action(meant)) == text
    if unclosed is not None:
        assert read(unclosed) == "<think>why"
    after = renderer.continuation([said("user", "see b")], AnswerEnd(is_closed=True))
    answer = plain or thinking
    assert answer is not None
    rows: list[Any] = [("user", "see a"), ("assistant", "go a"), ("user", "see b")]
    if plain is not None:
        assert asked + answer + made.decode(after) == rendered(made, rows, generate=True)
    # A history that is opened anew has its thoughts where the template wants them.
    if thinking is not None:
        opened = renderer.opening([said("user", "a"), said("assistant", "<think>why</think>go a")])
        row: Any = ("assistant", "go a", {"reasoning_content": "why"})
        assert made.decode(opened) == rendered(made, [("user", "a"), row], generate=True)


def test_a_template_that_rewrites_is_refused() -> None:
    made = tokenizer(CHANNELS.replace("<|channel|>final", "<|channel|>{{ loop.index }}"))
    prepare(made)
    with pytest.raises(ConfigError, match=r"rewrites earlier messages: "):
        Renderer(made)


def test_a_template_that_fails_is_one_line() -> None:
    made = tokenizer("{{ raise_exception('no such thing') }}")
    with pytest.raises(ConfigError, match=r"fails on messages of roles \['user'\]: no such thing"):
        Renderer(made)


def test_a_saved_model_keeps_its_template_and_the_arguments(tmp_path: Path) -> None:
    made, file = tokenizer(CLOSED), tmp_path / "hybrid.jinja"
    file.write_text(HYBRID)
    wanted = ChatTemplateConfig(
        chat_template=str(file), chat_template_kwargs={"enable_thinking": False, "name": "it's"}
    )
    prepare(made, wanted)
    save_model_dir(model(), made, tmp_path / "model")
    for config in (
        None,
        wanted,
        ChatTemplateConfig(chat_template_kwargs=wanted.chat_template_kwargs),
    ):
        loaded = load_tokenizer(tmp_path / "model", config)
        assert loaded.chat_template == made.chat_template
        assert loaded.eos_token == "<|im_end|>"
    text = made.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<think>\n\n</think>\n\n")


def test_other_arguments_than_those_of_its_training_count(tmp_path: Path) -> None:
    made = tokenizer("\n" + HYBRID)
    prepare(made, ChatTemplateConfig(chat_template_kwargs={"enable_thinking": False}))
    save_model_dir(model(), made, tmp_path)
    asked = [{"role": "user", "content": "x"}]
    for thinks in (True, False, True):
        config = ChatTemplateConfig(chat_template_kwargs={"enable_thinking": thinks})
        found = load_tokenizer(tmp_path, config)
        text = found.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        assert text.startswith("\n<|im_start|>user")
        assert ("<think>" in text) is not thinks


def test_settings_that_cannot_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.jinja' cannot be read"):
        prepare(tokenizer(CLOSED), ChatTemplateConfig(chat_template=str(tmp_path / "gone.jinja")))
    with pytest.raises(ValueError, match="'no name' is no name of a variable"):
        ChatTemplateConfig(chat_template_kwargs={"no name": 1})
