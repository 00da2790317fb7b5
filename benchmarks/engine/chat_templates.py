"""Which chat templates of real models can be trained with: those that TRL and llama.cpp ship.

    python benchmarks/engine/chat_templates.py [--templates FOLDER] [--out FILE]

Of each one an episode of three turns is put together as it would be sampled, token after token, and
its text is compared with what the template itself makes of the whole conversation. Places for
thoughts apart, which templates take out of earlier answers, the two must be equal. The same with
tools: two calls, read back from their tokens, with their results, and an answer in words.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import unpack_archive
from typing import Any

from turngym.agents.call_forms import ID, FoundCall
from turngym.agents.engine.small_tokenizer import train_tokenizer
from turngym.agents.rendering import CLOSED, Renderer
from turngym.agents.templates import ChatRow, prepare, rendered
from turngym.agents.tool_calls import action_text, called_row, result_row
from turngym.environments.core.actions import function_tool
from turngym.errors import ConfigError
from turngym.trainers.update.imitation import render_turns
from turngym.types import Message, StopReason, Trajectory, Turn

RELEASES = {
    "trl==1.16.0": "trl/chat_templates",
    "llama-cpp-python==0.3.36": "*/vendor/llama.cpp/models/templates",
}
CONTROL = re.compile(r"<[|｜]?[^<>{}'\"\s]+[|｜]?>")
ENDS = ("<|observation|>", "<|tool_response>", "<|eom_id|>", "<|call|>", "<|calls|>")
"""What ends calls of some models besides the end of an answer, as their cards must say."""
MORE_CONTROL = ("[e~[", "]~b]", "<sep>", *ENDS)
THOUGHTS = re.compile(r"\s*(?:<think>\s*)?(?:</?think>)\s*|<\|channel>thought\n<channel\|>")
SAID: list[ChatRow] = [
    ("system", "Find the key."),
    ("user", "You see a door."),
    ("assistant", "open door"),
    ("user", "A key, naïve 🙂 and two\nlines."),
    ("assistant", "take key"),
    ("user", "It is yours."),
    ("assistant", "leave"),
    ("user", "Done."),
]
WALK = {"way": {"type": "string", "description": "Where to."}, "steps": {"type": "integer",
        "description": "How many."}}  # fmt: skip
TOOLS = [function_tool("go", "Walk.", WALK, ["way"])]
OTHER_ID = "callagain"
WALKS = [{"way": "north", "steps": 2}, {"way": 'a "b"\n<c> {d}', "steps": 1}]


def templates(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Return name and text of the templates in ``folder``, or of those that are shipped."""
    if folder is not None:
        return (yield from read(folder))
    for release, inside in RELEASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch]
            kind = [] if release.startswith("trl") else ["--no-binary", ":all:"]
            subprocess.run([*command, *kind, release], check=True)
            [file] = Path(scratch).iterdir()
            unpack_archive(file, scratch, "zip" if file.suffix == ".whl" else None)
            [found] = Path(scratch).glob(inside)
            yield from read(found)


def read(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.glob("*.jinja")):
        if not file.stem.endswith("_training"):  # TRL's own changes of the one before
            yield file.stem, file.read_text(encoding="utf-8")


def tokenizer(template: str) -> Any:
    """Return a small tokenizer that has the control tokens of ``template``."""
    made = train_tokenizer([one[1] for one in SAID] * 3, 300)
    found = set(CONTROL.findall(template)) | {one for one in MORE_CONTROL if one in template}
    made.add_tokens(sorted(found), special_tokens=True)
    made.bos_token = "<bos>"
    made.chat_template = template
    ends = [one for one in ENDS if one in found]
    prepare(made, ends=made.convert_tokens_to_ids(ends))
    return made


def played(made: Any) -> str:
    """Return the text of the episode as it is fed and sampled."""
    renderer = Renderer(made, tool_calls=False)
    messages = [Message(role=one[0], content=one[1]) for one in SAID]  # type: ignore[arg-type]
    ids = list(renderer.opening(messages[:2]))
    for place in range(2, len(messages), 2):
        ids += renderer.action(messages[place].content)
        ids += renderer.continuation(messages[place + 1 : place + 2], CLOSED)
    text: str = made.decode(ids)
    return text


def played_with_tools(made: Any) -> tuple[str, list[ChatRow], str]:
    """Return the same of an episode with calls, its messages, and how calls are written.

    Raises:
        ConfigError: The template cannot be used for tools.
        ValueError: A call is not read back as it was written.
    """
    renderer = Renderer(made, tool_calls=True)
    assert renderer.tools is not None
    seen = [f"Room {n}, é.\n" for n in range(len(WALKS) + 1)]
    episode = Trajectory(
        env_id="", task_id="", env_seed=0, policy_seed=0, stop_reason=StopReason.TERMINATED,
        turns=tuple(
            Turn(
                observation=(Message(role="user", content=before),),
                action=Message(role="assistant", content=action_text("go", walk)),
            )
            for before, walk in zip(seen, WALKS, strict=False)
        ),
    )  # fmt: skip
    ids: list[int] = []
    said: list[ChatRow] = []
    for n, (prompt, action) in enumerate(render_turns(renderer, episode, None, TOOLS)):
        ids += [*prompt, *action]
        message, end = renderer.answer(action, TOOLS)
        if [call.arguments for call in message.tool_calls] != [WALKS[n]]:
            raise ValueError(f"{made.decode(action)!r} is read as {message.tool_calls}")
        call = FoundCall(name="go", arguments=WALKS[n], id=(ID, OTHER_ID)[n])
        said.append(result_row(call, seen[n]) if n else ("user", seen[n]))
        said.append(called_row([call], "", as_text=renderer.tools.as_text))
    ids += renderer.continuation([Message(role="tool", content=seen[-1])], end)
    ids += renderer.action("leave")
    ids += renderer.continuation([Message(role="user", content="Done.")], CLOSED)
    said += [result_row(call, seen[-1]), ("assistant", "leave"), ("user", "Done.")]
    text: str = made.decode(ids)
    return text, said, type(renderer.tools.reader.form).__name__.strip("_").lower()


def verdict(template: str) -> dict[str, Any]:
    """Return whether ``template`` can be used, and how episodes differ from its own."""
    try:
        made = tokenizer(template)
        text = played(made)
    except ConfigError as error:
        return {"trains": False, "reason": str(error)}
    own, place = whole(made, text)
    found = {"trains": True, "end": made.eos_token, "system": place, **compared(text, own)}
    try:
        text, said, form = played_with_tools(made)
    except ConfigError as error:
        return found | {"tools": str(error).partition("for tools: ")[2].partition(";")[0]}
    except ValueError as error:
        return found | {"tools": "misread", "reason": str(error)}
    own = rendered(made, said, generate=True, tools=TOOLS).replace(OTHER_ID, ID)
    return found | {"tools": form} | {f"tools_{k}": v for k, v in compared(text, own).items()}


def whole(made: Any, text: str) -> tuple[str, str]:
    """Return what the template makes of the conversation, and where the system message stands."""
    merged = [("user", f"{SAID[0][1]}\n\n{SAID[1][1]}"), *SAID[2:]]
    with suppress(ConfigError):
        own = rendered(made, SAID, generate=True)
        if without_thoughts(text) == without_thoughts(own):
            return own, "own"
    return rendered(made, merged, generate=True), "before the first question"


def compared(text: str, own: str) -> dict[str, bool]:
    same = without_thoughts(text) == without_thoughts(own)
    return {"same": text == own, "same_but_thoughts": same}


def without_thoughts(text: str) -> str:
    """Return ``text`` without places for thoughts, and without blanks before answers.

    The end token of gpt-oss is another one for the last answer than for those before.
    """
    text = THOUGHTS.sub("", text).replace("<|return|>", "<|end|>")
    for answer in ("open door", "take key", "leave", r"</?[\w:]*tool_call[^<>\s]*>"):
        text = re.sub(rf"\s*({answer})", r"\1", text)
    return text


def said_of(one: dict[str, Any]) -> str:
    """Return the verdict as the rest of a line."""
    if not one["trains"]:
        return f"refused: {one['reason']}"
    tools = f"{one['tools']}, {how(one, 'tools_')}" if "tools_same" in one else one["tools"]
    return f"{one['end']:24} {how(one)}; tools: {tools}"


def how(one: dict[str, Any], prefix: str = "") -> str:
    if one[f"{prefix}same"]:
        return "equal"
    return "equal but for thoughts" if one[f"{prefix}same_but_thoughts"] else "DIFFERENT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--templates", type=Path, help="Folder of .jinja files; by default those that are shipped."
    )
    parser.add_argument("--out", type=Path, help="JSON file to write.")
    arguments = parser.parse_args()
    found = {name: verdict(text) for name, text in templates(arguments.templates)}
    for name, one in found.items():
        print(f"{name:44} {said_of(one)}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    with_tools = [one for one in found.values() if "tools_same" in one]
    print(f"{len(found)} templates: {sum(one['trains'] for one in found.values())} train, "
          f"{len(with_tools)} of them with tools in their own way")  # fmt: skip
    if any("DIFFERENT" in said_of(one) or one.get("tools") == "misread" for one in found.values()):
        raise SystemExit("an episode differs from what its template makes of it")


if __name__ == "__main__":
    main()
