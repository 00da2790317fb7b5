from itertools import product

import pytest

from helpers.models import TEMPLATES, tokenizer
from turngym.agents.rendering import AnswerEnd, Renderer, fill
from turngym.agents.templates import says_as_is, slots_of
from turngym.types import Message

LOOP = "{% for message in messages %}BODY{% endfor %}"
CONTENTS = (
    "go north",
    "two\nlines {{ 7 }} {% if %}",
    "  blanks around ",
    "",
    "<think>no</think> so",
    "<tool_response>",
    "<|im_end|> user",
    "naïve 🙂",
)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("{{ message['role'] + message['content'] }}", True),
        ("{{ message.role ~ (message.content | trim) }}", True),
        ("{% set text = '>' + message.content %}{{ text }}", True),
        ("{% if message.content %}{{ message.content }}{% endif %}", True),
        ("{% if messages[loop.index0 - 1].role == 'user' %}{{ message.content }}{% endif %}", True),
        ("{% for call in message.tool_calls %}{{ call | tojson }}{% endfor %}", True),
        ("{% for k, v in message.args.items() %}{{ k }}={{ v }}{% endfor %}", True),
        ("{{ {'role': message.role} | tojson }}{{ message.content }}", True),
        ("{% for k, v in message.items() %}{{ v | upper }}{% endfor %}", False),
        ("{% for k, v in [(1, message)] %}{{ v.content | upper }}{% endfor %}", False),
        ("{% set a, b = message.role, message.content %}{{ b | upper }}", False),
        ("{{ {'said': message.content} | tojson }}", False),
        ("{{ [message.content] }}", False),
        ("{{ message.content | upper }}", False),
        ("{{ message.content.split('</think>')[-1] }}", False),
        ("{% if 'x' in message.content %}y{% endif %}{{ message.content }}", False),
        ("{% if message.content == 'x' %}y{% endif %}{{ message.content }}", False),
        ("{% set text = message.content %}{% if text | length > 3 %}y{% endif %}", False),
        ("{{ message.content[:3] }}", False),
        ("{{ message.get('content') | upper }}", False),
        ("{{ message | tojson }}", False),
        ("{% set m = message %}{{ m }}", False),
        ("{% for key in message %}{{ message[key] }}{% endfor %}", False),
        ("{% for letter in message.content %}{{ letter }}-{% endfor %}", False),
        ("{{ strftime_now('%H:%M') }}{{ message.content }}", False),
        ("{% macro m(x) %}{{ x | upper }}{% endmacro %}{{ m(message.content) }}", False),
        ("{% if %}", False),
    ],
)
def test_only_what_is_certain_has_slots(body: str, wanted: bool) -> None:
    assert says_as_is(LOOP.replace("BODY", body)) is wanted


@pytest.mark.parametrize("template", TEMPLATES)
def test_slots_give_what_the_template_gives(template: str) -> None:
    renderer, slow = Renderer(tokenizer(template)), Renderer(tokenizer(template))
    slow._has_slots = False
    for is_closed, first, second in product((True, False), CONTENTS, CONTENTS):
        messages = [Message(role="user", content=first), Message(role="user", content=second)]
        for several in (messages[:1], messages):
            found = renderer.continuation_text(several, AnswerEnd(is_closed=is_closed))
            assert found == slow.continuation_text(several, AnswerEnd(is_closed=is_closed))


def test_a_mark_that_is_not_there_once_gives_no_slots() -> None:
    assert slots_of("a turngym-slot-0-of-a-message b", 1) == ("a ", " b")
    assert slots_of("a", 1) is None
    assert slots_of("turngym-slot-0-of-a-message" * 2, 1) is None
    assert fill(("<", ">"), ["x"]) == "<x>"
