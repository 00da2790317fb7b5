"""Calls read by the frame of a chat template, beside vLLM's parsers, which are written by hand.

    python benchmarks/engine/tool_calls_peer.py --vllm PYTHON

Of each template a call is written, and what models make of one: words before and behind, a thought,
two calls, blank lines, a cut, a wrapper that is not closed, an unknown tool. ``PYTHON`` is that of
an environment with vLLM; its parser for the model reads the same texts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

PARSERS = {
    "hermes": "Qwen-Qwen2.5-7B-Instruct",
    "qwen3_coder": "Qwen3-Coder",
    "llama3_json": "meta-llama-Llama-3.1-8B-Instruct",
    "glm47": "GLM-4.7-Flash",
    "gemma4": "gemma4",
    "lfm2": "lfm2_2_5",
    "granite4": "ibm-granite-granite-4.0",
    "seed_oss": "ByteDance-Seed-OSS",
    "deepseek_v32": "deepseek-ai-DeepSeek-V3.2",
}
"""vLLM's name of a parser, and the template of a model that it is for."""
WRITTEN: list[dict[str, Any]] = [
    {"path": "a.py", "text": "def f():\n    return 1", "count": 3},
    {"path": "p", "many": ["a", "b c"], "flag": True},
    {"path": 'a "b" <c> {d}'},
    {"path": "é 🙂", "text": "", "count": -1},
]


def tools() -> list[dict[str, Any]]:
    from turngym.environments.core.actions import function_tool

    kinds = {"path": "string", "text": "string", "count": "integer", "flag": "boolean"}
    given: dict[str, Any] = {
        name: {"type": kind, "description": name} for name, kind in kinds.items()
    }
    given["many"] = {"type": "array", "items": {"type": "string"}, "description": "many"}
    look = {"at": {"type": "string", "description": "at"}}
    return [
        function_tool("edit", "Edit.", given, ["path"]),
        function_tool("look", "Look.", look, []),
    ]


def made(folder: Path) -> dict[str, Any]:
    """Write tokenizers to ``folder``; return the texts and how they are read here, by parser."""
    from chat_templates import templates, tokenizer

    from turngym.agents.rendering import Renderer

    shipped, found = dict(templates(None)), {}
    for parser, name in PARSERS.items():
        one = tokenizer(shipped[name])
        one.save_pretrained(str(folder / parser))
        native = Renderer(one, tool_calls=True).tools
        assert native is not None
        plain, *others = [native.written("edit", arguments) for arguments in WRITTEN]
        look = native.written("look", {"at": "up"})
        texts = {
            "as written": plain,
            **{f"as written, {n}": text for n, text in enumerate(others, 2)},
            "words before": f"I will edit it.\n\n{plain}",
            "a thought before": f"<think>hmm</think>\n\n{plain}",
            "words behind": f"{plain}\nDone.",
            "two calls": f"{plain}\n{look}",
            "blank lines": plain.replace(">\n<", ">\n\n<"),
            "no call": "I am done.",
            "cut": plain[: len(plain) * 2 // 3],
            "not closed": plain.rstrip()[:-6],
            "an unknown tool": plain.replace("edit", "edits"),
        }
        read = {case: native.reader.read(text, tools()) for case, text in texts.items()}
        found[parser] = {
            case: {"text": texts[case], "calls": [[one.name, one.arguments] for one in got.calls]}
            for case, got in read.items()
        }
    return found


def read_by_vllm(folder: Path) -> dict[str, Any]:
    """Return how vLLM's parsers read the texts in ``folder``. Runs where vLLM is installed."""
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    asked = json.loads((folder / "texts.json").read_text())
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "x"}], tools=asked["tools"]
    )
    found: dict[str, Any] = {}
    for name, cases in asked["cases"].items():
        reads = ToolParserManager.get_tool_parser(name)
        parser = reads(AutoTokenizer.from_pretrained(str(folder / name)), request.tools)
        for case, one in cases.items():
            got = parser.extract_tool_calls(one["text"], request).tool_calls or []
            calls = [[call.function.name, json.loads(call.function.arguments)] for call in got]
            found.setdefault(name, {})[case] = calls
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vllm", type=Path, help="Python of an environment with vLLM.")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        (arguments.folder / "read.json").write_text(json.dumps(read_by_vllm(arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ours = made(folder)
        (folder / "texts.json").write_text(json.dumps({"tools": tools(), "cases": ours}))
        command = [str(arguments.vllm), __file__, "--folder", scratch]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        theirs = json.loads((folder / "read.json").read_text())
    same: Counter[str] = Counter()
    for name, cases in ours.items():
        for case, one in cases.items():
            same[name] += one["calls"] == theirs[name][case]
            if one["calls"] != theirs[name][case]:
                print(f"{name}, {case}:\n  here {one['calls']}\n  vLLM {theirs[name][case]}")
    for name, cases in ours.items():
        print(f"{name:14} {same[name]} of {len(cases)} texts are read alike")


if __name__ == "__main__":
    sys.exit(main())
