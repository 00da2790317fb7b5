"""Tokens and masks of each chat template, as they were when the golden files were made.

Refresh with ``UPDATE_GOLDEN=1 pytest tests/golden/test_chat_templates.py``; say why in the commit.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helpers.models import TEMPLATES, tokenizer
from turngym.agents.rendering import Renderer
from turngym.trainers.update.imitation import render_episode
from turngym.types import Message, StopReason, Trajectory, Turn

FOLDER = Path(__file__).parent / "templates"

EPISODE = Trajectory(
    env_id="text/maze",
    task_id="maze-easy/test/0",
    env_seed=0,
    policy_seed=0,
    turns=tuple(
        Turn(
            observation=(Message(role="user", content=seen),),
            action=Message(role="assistant", content=said),
        )
        for seen, said in [
            ("key north east. exits north west.", "go north"),
            ("  two\nlines, naïve 🙂 <|end|> <|im_end|>", "think first\ngo east"),
            ("got key. door south.", ""),
        ]
    ),
    stop_reason=StopReason.TERMINATED,
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_tokens_and_mask_are_unchanged(template: str) -> None:
    [rendered] = render_episode(Renderer(tokenizer(template)), EPISODE, "Find the key.")
    found: dict[str, Any] = {
        "text": tokenizer(template).decode(list(rendered.token_ids)),
        "token_ids": list(rendered.token_ids),
        "turn_ids": list(rendered.turn_ids),
    }
    path = FOLDER / f"{template}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    assert found == json.loads(path.read_text(encoding="utf-8"))
    assert [turn >= 0 for turn in rendered.turn_ids] == list(rendered.action_mask)
