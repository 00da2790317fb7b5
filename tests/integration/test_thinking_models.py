"""A model with the chat template of one that thinks is trained, evaluated and served."""

import json
import tomllib
from pathlib import Path
from typing import Any

import turngym
from helpers.cli import TINY_RUN
from helpers.models import TEXTS, model
from turngym.agents.engine.models import save_model_dir
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.records import read_trajectories
from turngym.trainers.runs.checkpoints import find_model

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1] }}<|done|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
EMPTY = "<think>\n\n</think>\n\n"


def test_the_template_of_a_run_goes_with_its_model(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS * 3, 280)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|done|>"]})
    save_model_dir(model(), tokenizer, tmp_path / "model")
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    settings = tomllib.loads(TINY_RUN)
    settings["model"] = {
        "type": "pretrained",
        "path": str(tmp_path / "model"),
        "context": 256,
        "chat_template": str(tmp_path / "chat.jinja"),
        "chat_template_kwargs": {"enable_thinking": False},
    }
    out = tmp_path / "run"
    assert turngym.train(settings, "algo=grpo", out=out).updates == 2
    files = sorted((out / "trajectories").glob("[!e]*.jsonl"))  # the expert has no tokens
    turns = [turn for file in files for one in read_trajectories(file) for turn in one.turns]
    assert turns
    for turn in turns:
        prompt, answer = (span.token_ids for span in turn.spans)
        assert tokenizer.decode(prompt).endswith(f"<|assistant|>\n{EMPTY}")
        assert turn.action.content == tokenizer.decode(answer, skip_special_tokens=True)
    (tmp_path / "chat.jinja").unlink()
    assert turngym.train(settings, "algo=grpo", "run.steps=3", out=out).updates == 3
    [one] = turngym.rollout("text/maze", f"hf:{find_model(out)} temperature=1", episodes=1)
    read: Any = one.turns[0].spans[0].token_ids
    assert tokenizer.decode(read).endswith(EMPTY)
    assert json.loads((out / "config.json").read_text())["config"]["model"]["chat_template_kwargs"]
