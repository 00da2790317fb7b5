"""Which chat templates of real models can be trained with: those that come with a release of TRL.

    python benchmarks/engine/chat_templates.py [--templates FOLDER] [--out FILE]

Of each one an episode of three turns is put together as it would be sampled, token after token, and
its text is compared with what the template itself makes of the whole conversation. Places for
thoughts apart, which templates take out of earlier answers, the two must be equal.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turngym.agents.engine.models import train_tokenizer
from turngym.agents.rendering import Renderer
from turngym.agents.templates import prepare, rendered
from turngym.errors import ConfigError
from turngym.types import Message

RELEASE = "trl==1.16.0"
CONTROL = re.compile(r"<[|｜]?[^<>{}'\"\s]+[|｜]?>")
THOUGHTS = re.compile(r"\s*<think>\s*(?:</think>)?\s*")
SAID = [
    ("system", "Find the key."),
    ("user", "You see a door."),
    ("assistant", "open door"),
    ("user", "A key, naïve 🙂 and two\nlines."),
    ("assistant", "take key"),
    ("user", "It is yours."),
    ("assistant", "leave"),
    ("user", "Done."),
]


def templates(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Return name and text of the templates in ``folder``, or of those that TRL ships."""
    with tempfile.TemporaryDirectory() as scratch:
        if folder is None:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch]
            subprocess.run([*command, RELEASE], check=True)
            [wheel] = Path(scratch).glob("*.whl")
            zipfile.ZipFile(wheel).extractall(scratch)
            folder = Path(scratch) / "trl" / "chat_templates"
        for file in sorted(folder.glob("*.jinja")):
            if not file.stem.endswith("_training"):  # TRL's own changes of the one before
                yield file.stem, file.read_text(encoding="utf-8")


def tokenizer(template: str) -> Any:
    """Return a small tokenizer that has the control tokens of ``template``."""
    made = train_tokenizer([text for _, text in SAID] * 3, 300)
    made.add_tokens(sorted(set(CONTROL.findall(template))), special_tokens=True)
    made.bos_token = "<bos>"
    made.chat_template = template
    prepare(made)
    return made


def played(made: Any) -> str:
    """Return the text of the episode as it is fed and sampled."""
    renderer = Renderer(made)
    messages = [Message(role=role, content=text) for role, text in SAID]  # type: ignore[arg-type]
    ids = list(renderer.opening(messages[:2]))
    for place in range(2, len(messages), 2):
        ids += renderer.action(messages[place].content)
        ids += renderer.continuation(messages[place + 1 : place + 2], hit_eos=True)
    text: str = made.decode(ids)
    return text


def verdict(template: str) -> dict[str, Any]:
    """Return whether ``template`` can be used, and how the episode differs from its own."""
    made = tokenizer(template)
    try:
        text = played(made)
    except ConfigError as error:
        return {"trains": False, "reason": str(error)}
    said = SAID
    try:
        own = rendered(made, said, generate=True)
    except ConfigError:
        said = [("user", f"{SAID[0][1]}\n\n{SAID[1][1]}"), *SAID[2:]]
        own = rendered(made, said, generate=True)
    return {
        "trains": True,
        "end": made.eos_token,
        "system": said is SAID,
        "same": text == own,
        "same_but_thoughts": without_thoughts(text) == without_thoughts(own),
    }


def without_thoughts(text: str) -> str:
    """Return ``text`` without places for thoughts, and without blanks before answers."""
    text = THOUGHTS.sub("", text)
    for role, answer in SAID:
        if role == "assistant":
            text = re.sub(rf"\s*{answer}", answer, text)
    return text


def said_of(one: dict[str, Any]) -> str:
    """Return the verdict as the rest of a line."""
    if not one["trains"]:
        return f"refused: {one['reason']}"
    same = "equal" if one["same"] else "equal but for thoughts"
    return f"{one['end']:24} {same if one['same_but_thoughts'] else 'DIFFERENT'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--templates", type=Path, help="Folder of .jinja files; TRL's by default.")
    parser.add_argument("--out", type=Path, help="JSON file to write.")
    arguments = parser.parse_args()
    found = {name: verdict(text) for name, text in templates(arguments.templates)}
    for name, one in found.items():
        print(f"{name:24} {said_of(one)}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if any(one["trains"] and not one["same_but_thoughts"] for one in found.values()):
        raise SystemExit("an episode differs from what its template makes of it")


if __name__ == "__main__":
    main()
