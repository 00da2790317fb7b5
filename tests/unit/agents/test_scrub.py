import pytest

from turngym.agents.remote.wire import HIDDEN, Scrubber
from turngym.types import Message, ToolCall


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("my key is hunter2-hunter2 ok", f"my key is {HIDDEN} ok"),
        ("Authorization: Bearer abc.def-123456", f"Authorization: Bearer {HIDDEN}"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', f'{{"authorization": "Basic {HIDDEN}"}}'),
        ("x-api-key: 0123456789abcdef", f"x-api-key: {HIDDEN}"),
        ("sk-proj-abcdefgh1234", HIDDEN),
        ("see http://me:word@host/v1", f"see http://{HIDDEN}@host/v1"),
        ("a bearer of misfortune, basic mathematics", "a bearer of misfortune, basic mathematics"),
        ("a disk-cleaning task-1", "a disk-cleaning task-1"),
    ],
)
def test_secrets_are_hidden_and_words_are_left(text: str, clean: str) -> None:
    assert Scrubber(["hunter2-hunter2", "a"]).text(text) == clean


def test_a_message_without_secrets_is_the_same_object() -> None:
    message = Message(role="user", content="hello")
    assert Scrubber(["secret-one"]).message(message) is message


def test_arguments_of_tool_calls_are_scrubbed_too() -> None:
    call = ToolCall(name="get", arguments={"headers": ["k: secret-one"], "n": 3})
    message = Message(role="assistant", content="", tool_calls=(call,))
    clean = Scrubber(["secret-one"]).message(message)
    assert clean.tool_calls[0].arguments == {"headers": [f"k: {HIDDEN}"], "n": 3}
