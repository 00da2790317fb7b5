"""Token fidelity: what is stored of a conversation is what was served, whatever the template does.

1,000 random conversations go through servers of the naive kind: at every call they render all
messages anew with a hostile chat template. The recorder sees messages and reported ids alone. Run
with ``-s`` to see the share of conversations that re-encoding text would have got wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from helpers.models import CHATML, tokenizer
from turngym.agents.engine.protocol import Generation
from turngym.rollouts.gateway.episodes import EpisodeRecorder
from turngym.types import Message, StopReason, Trajectory

CONVERSATIONS = int(os.environ.get("TURNGYM_FIDELITY", "1000"))

_HEAD = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
_TAIL = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TEMPLATES = {
    "plain": CHATML,
    # Thinking before the last user message is dropped, as reasoning models do.
    "drops thinking": _HEAD
    + "{% if message['role'] == 'assistant' and '</think>' in message['content'] %}"
    "{{ message['content'].split('</think>')[-1] }}{% else %}{{ message['content'] }}{% endif %}"
    "{{ '<|im_end|>\\n' }}" + _TAIL,
    # Texts are trimmed.
    "trims": _HEAD + "{{ message['content'] | trim }}{{ '<|im_end|>\\n' }}" + _TAIL,
    # No control tokens at all, so that tokens merge over the borders of messages.
    "merges at borders": "{% for message in messages %}{{ message['role'] + ': ' "
    "+ message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
    # Neighbouring tool messages are wrapped as one user message.
    "wraps tools": "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{% if loop.first or messages[loop.index0 - 1]['role'] != "
    "'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}{{ '<tool>' + message['content'] + '</tool>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\\n' }}"
    "{% endif %}{% else %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endif %}" + _TAIL,
    # Only the last messages are shown.
    "forgets": "{% for message in messages[-5:] %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}" + _TAIL,
}
WORDS = ["key", "north", " east", "go", "go ", "\n", "door.", "é", "🙂", "<tool>", "  ", "exits"]


@cache
def coder() -> Any:
    return tokenizer("chatml")


@dataclass
class Served:
    """One call as the server knows it."""

    prompt: tuple[int, ...]
    drawn: tuple[int, ...]
    logprobs: tuple[float, ...]


class NaiveServer:
    """Renders everything anew, draws any tokens, and keeps its own record."""

    def __init__(self, template: str, rng: np.random.Generator) -> None:
        self._template = template
        self._rng = rng
        self.record: list[Served] = []

    def encode(self, messages: list[Message]) -> tuple[int, ...]:
        rows = [{"role": m.role, "content": m.content} for m in messages]
        text = coder().apply_chat_template(
            rows, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )
        return tuple(coder().encode(text, add_special_tokens=False))

    def answer(self, messages: list[Message]) -> Message:
        prompt = self.encode(messages)
        drawn = self._draw()
        logprobs = tuple(float(-value) for value in self._rng.exponential(1.0, len(drawn)))
        self.record.append(Served(prompt, drawn, logprobs))
        text = coder().decode(list(drawn), skip_special_tokens=True)
        return Message(role="assistant", content=text)

    def _draw(self) -> tuple[int, ...]:
        """Return tokens that a model may draw: often not the ones an encoder would choose."""
        rng = self._rng
        if rng.random() < 0.3:
            text = "<think>" + _text(rng) + "</think>" + _text(rng)
            ids = coder().encode(text, add_special_tokens=False)
        else:
            ids = coder().encode(_text(rng), add_special_tokens=False)
        if rng.random() < 0.5:  # letter by letter, a valid spelling of the same text
            text = coder().decode(ids)
            ids = [i for letter in text for i in coder().encode(letter, add_special_tokens=False)]
        if rng.random() < 0.2:
            ids = [*ids, *(int(i) for i in rng.integers(10, 260, 3))]
        end = [coder().eos_token_id] if rng.random() < 0.8 else []
        return (*ids, *end)


def _text(rng: np.random.Generator) -> str:
    return "".join(rng.choice(WORDS, size=int(rng.integers(1, 9))))


def converse(seed: int) -> tuple[Trajectory, NaiveServer, list[Message]]:
    """Hold one random conversation through a recorder."""
    rng = np.random.default_rng(seed)
    server = NaiveServer(list(TEMPLATES.values())[seed % len(TEMPLATES)], rng)
    recorder = EpisodeRecorder(env_id="drill", task_id=str(seed))
    messages = [Message(role="system", content=_text(rng))] if rng.random() < 0.7 else []
    for _ in range(int(rng.integers(2, 7))):
        roles = ["tool"] * int(rng.integers(1, 3)) if rng.random() < 0.4 and messages else ["user"]
        messages += [Message(role=role, content=_text(rng)) for role in roles]  # type: ignore[arg-type]
        answer = server.answer(messages)
        call = server.record[-1]
        drawn = Generation(
            token_ids=call.drawn,
            logprobs=call.logprobs,
            versions=(0,) * len(call.drawn),
            finish="end",
        )
        recorder.call(messages, answer, prompt_ids=call.prompt, generation=drawn, usage={})
        messages = [*messages, answer]
        if rng.random() < 0.1:  # an agent that rewrites what was said
            messages = [*messages[:-1], Message(role="assistant", content=_text(rng))]
    return recorder.end(StopReason.TERMINATED), server, messages


def segments(trajectory: Trajectory) -> list[list[int]]:
    """Return the turns of each segment."""
    found: list[list[int]] = []
    for number, turn in enumerate(trajectory.turns):
        if turn.starts_segment or not found:
            found.append([])
        found[-1].append(number)
    return found


def test_stored_ids_are_served_ids_and_every_divergence_is_found() -> None:
    wrong = missed = invented = calls = diverged = reencoded_wrong = 0
    for seed in range(CONVERSATIONS):
        trajectory, server, messages = converse(seed)
        record = server.record
        calls += len(record)
        for turns in segments(trajectory):
            stored = [i for t in turns for s in trajectory.turns[t].spans for i in s.token_ids]
            last = record[turns[-1]]
            wrong += stored != [*last.prompt, *last.drawn]
        for number, turn in enumerate(trajectory.turns):
            drawn = [span for span in turn.spans if span.sampled]
            ids = tuple(i for span in drawn for i in span.token_ids)
            logprobs = tuple(value for span in drawn for value in span.logprobs)
            wrong += ids != record[number].drawn or logprobs != record[number].logprobs
            if number:
                before = (*record[number - 1].prompt, *record[number - 1].drawn)
                goes_on = record[number].prompt[: len(before)] == before
                diverged += not goes_on
                missed += not goes_on and not turn.starts_segment
                invented += goes_on and turn.starts_segment
                assert turn.starts_segment == (turn.segment_reason is not None)
        last = record[-1]
        reencoded_wrong += server.encode(messages)[: len(last.prompt) + len(last.drawn)] != (
            *last.prompt,
            *last.drawn,
        )
    print(
        f"\n{CONVERSATIONS} conversations, {calls} calls: {wrong} stored otherwise than served; "
        f"{diverged} divergences, {missed} missed, {invented} invented; re-encoding the text would "
        f"have got {reencoded_wrong / CONVERSATIONS:.1%} of the conversations wrong"
    )
    assert (wrong, missed, invented) == (0, 0, 0)
    assert diverged > calls / 10
    assert reencoded_wrong > CONVERSATIONS / 4


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_takes_part(name: str) -> None:
    seed = list(TEMPLATES).index(name)
    trajectory, server, _ = converse(seed)
    assert server.record[0].prompt
    assert trajectory.num_sampled_tokens > 0
