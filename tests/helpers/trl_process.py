"""One update of TRL's own GRPO trainer over an environment of ours; prints what it logged.

Run by the python that TRL is installed for. The model is random but for the form of a tool call,
which it is shown first: what number it guesses is a matter of chance.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM

from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.api.trl import trl_environment, trl_rows

ENV = "text/guessnumber"
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip


def call(number: int) -> str:
    said = json.dumps({"name": "guess", "arguments": {"number": number}})
    return f"<tool_call>\n{said}\n</tool_call><|im_end|>"


def tokenizer() -> Any:
    template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    made = train_tokenizer([call(n) for n in range(100)] + [template], 600)
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    made.eos_token, made.pad_token = "<|im_end|>", "<|endoftext|>"
    made.chat_template = template
    return made


def show_the_form(model: Any, tokens: Any, prompt: list[int], numbers: range) -> None:
    """Train on calls with any of these numbers until a call is what the model says."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    calls = [tokens(call(n), add_special_tokens=False)["input_ids"] for n in numbers]
    longest = max(map(len, calls))
    ids = torch.tensor([prompt + one + [0] * (longest - len(one)) for one in calls])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    for row, one in enumerate(calls):
        labels[row, len(prompt) + len(one) :] = -100
    for _ in range(120):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    tokens, rows, tools = tokenizer(), trl_rows(ENV, 1), trl_environment(ENV)
    config = Qwen3Config(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=4096,
        pad_token_id=tokens.pad_token_id, eos_token_id=tokens.eos_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    environment = tools()
    seen = environment.reset(**rows[0])
    message = {"role": "user", "content": rows[0]["prompt"][0]["content"] + seen}
    prompt = tokens.apply_chat_template(
        [message], tools=[environment.guess], add_generation_prompt=True, return_dict=False
    )
    low, high = map(int, re.findall(r"\d+", seen)[-2:])
    show_the_form(model, tokens, prompt, range(low, high + 1))
    before = {name: value.clone() for name, value in model.named_parameters()}
    trainer = trl.GRPOTrainer(
        model, train_dataset=Dataset.from_list(rows), processing_class=tokens,
        environment_factory=tools, args=trl.GRPOConfig(
            output_dir=sys.argv[1], max_steps=4, num_generations=16, report_to=[],
            logging_steps=1, per_device_train_batch_size=16, max_completion_length=400,
            use_cpu=True, save_strategy="no", max_tool_calling_iterations=6, learning_rate=1e-3,
            bf16=False, beta=0.0, activation_checkpointing=False,
        ),
    )  # fmt: skip
    trainer.train()
    changed = [n for n, value in model.named_parameters() if not torch.equal(before[n], value)]
    rows_logged = [row for row in trainer.state.log_history if "reward" in row]
    print(json.dumps({"log": rows_logged, "changed": len(changed), "of": len(before)}))


if __name__ == "__main__":
    main()
