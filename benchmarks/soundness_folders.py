"""Harbor folders, sound and with one planted defect each; ``soundness.py`` checks them too.

A folder is a base, written as a mapping of paths to texts; a defect replaces some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Files = dict[str, str]
_DIGEST = "a" * 64
_CONFIG = """schema_version = "1.4"
artifacts = ["/app/{out}"]

[task]
name = "corpus/{name}"
description = "{goal}"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 60.0
environment_mode = "separate"
network_mode = "no-network"

[environment]
network_mode = "no-network"
"""
_IMAGE = f"FROM python@sha256:{_DIGEST}\nWORKDIR /app\n"
_TEST = """#!/bin/bash
mkdir -p /logs/verifier
want=$({want})
reward=0
[ "$(cat /app/{out} 2>/dev/null)" = "$want" ] && reward=1
echo $reward > /logs/verifier/reward.txt
"""
_NUMBERS = "17\n4\n250\n33\n8\n91\n"
_WORDS = "pear\napple\nfig\nquince\nplum\napple\n"


@dataclass(frozen=True, slots=True)
class Base:
    """What is asked, what is there, and how it is done."""

    name: str
    goal: str
    out: str
    data: str
    solve: str
    want: str


BASES = (
    Base("sum", "Write the sum of the numbers in /app/data.txt into /app/total.txt.", "total.txt",
         _NUMBERS, "awk '{s += $1} END {print s}' /app/data.txt > /app/total.txt", "echo 403"),
    Base("largest", "Write the largest number of /app/data.txt into /app/largest.txt.",
         "largest.txt", _NUMBERS, "sort -n /app/data.txt | tail -1 > /app/largest.txt", "echo 250"),
    Base("sorted", "Write the words of /app/data.txt into /app/words.txt, each once, sorted.",
         "words.txt", _WORDS, "sort -u /app/data.txt > /app/words.txt",
         "printf 'apple\\nfig\\npear\\nplum\\nquince\\n'"),
    Base("count", "Write how many lines of /app/data.txt hold the letter p into /app/count.txt.",
         "count.txt", _WORDS, "grep -c p /app/data.txt > /app/count.txt", "echo 4"),
    Base("reversed", "Write the lines of /app/data.txt in reverse order into /app/back.txt.",
         "back.txt", _WORDS, "tac /app/data.txt > /app/back.txt",
         "printf 'apple\\nplum\\nquince\\nfig\\napple\\npear\\n'"),
    Base("capital", "Write /app/data.txt in capital letters into /app/loud.txt.", "loud.txt",
         _WORDS, "tr a-z A-Z < /app/data.txt > /app/loud.txt",
         "printf 'PEAR\\nAPPLE\\nFIG\\nQUINCE\\nPLUM\\nAPPLE\\n'"),
)  # fmt: skip


def files_of(base: Base) -> Files:
    """Return the folder of a sound task."""
    return {
        "task.toml": _CONFIG.format(name=base.name, goal=base.goal, out=base.out),
        "instruction.md": f"{base.goal}\n",
        "environment/Dockerfile": f"{_IMAGE}COPY data.txt /app/data.txt\n",
        "environment/data.txt": base.data,
        "tests/Dockerfile": f"FROM python@sha256:{_DIGEST}\nCOPY test.sh /tests/test.sh\n",
        "tests/test.sh": _TEST.format(want=base.want, out=base.out),
        "solution/solve.sh": f"#!/bin/bash\n{base.solve}\n",
    }


def _with(name: str, old: str, new: str) -> Callable[[Files], Files]:
    """Return the defect that replaces ``old`` in a file; the whole file where it is ""."""

    def change(files: Files) -> Files:
        text = files.get(name, "")
        assert old in text, (name, old)
        return {**files, name: text.replace(old, new, 1) if old else new}

    return change


def _without(name: str) -> Callable[[Files], Files]:
    return lambda files: {path: text for path, text in files.items() if path != name}


def _compose(line: str) -> Callable[[Files], Files]:
    service = f"services:\n  main:\n    image: x@sha256:{_DIGEST}\n    {line}\n"
    return lambda files: {**files, "environment/docker-compose.yaml": service}


_PAID = "echo 1 > /logs/verifier/reward.txt\n"
FORM: Mapping[str, Callable[[Files], Files]] = {
    "configuration is no TOML": _with("task.toml", "[task]", "[task"),
    "a limit is a word": _with("task.toml", "timeout_sec = 60.0", 'timeout_sec = "long"'),
    "a key is misspelt": _with("task.toml", "timeout_sec", "timeout_secs"),
    "no instruction": _without("instruction.md"),
    "an empty instruction": _with("instruction.md", "", "<!-- to be written -->\n"),
    "no solution": _without("solution/solve.sh"),
    "artifacts overlap": _with("task.toml", 'artifacts = ["', 'artifacts = ["/app", "'),
    "an artifact is a log": _with(
        "task.toml", 'artifacts = ["', 'artifacts = ["/logs/verifier", "'),
    "a privileged service": _compose("privileged: true"),
    "a mount of the host for writing": _compose("volumes:\n      - ./data.txt:/app/data.txt"),
    "a mount from outside": _compose("volumes:\n      - ../../../etc:/host:ro"),
    "a version is open": _with(
        "environment/Dockerfile", "WORKDIR", "RUN pip install numpy\nWORKDIR"),
    "judge installs": _with("tests/test.sh", "want=", "apt-get install -y curl\nwant="),
    "judge loads from the network": _with(
        "tests/test.sh", "want=", "curl -s https://example.org/key > /tmp/key\nwant="),
    "tests are in the image": _with(
        "environment/Dockerfile", "WORKDIR", "COPY tests /tests\nWORKDIR"),
    "a path is not named": _with("instruction.md", "", "Do what has to be done with the data.\n"),
}  # fmt: skip
"""Defects that reading shows."""
PLAY: Mapping[str, Callable[[Files], Files]] = {
    "judge always pays": _with("tests/test.sh", "want=", f"{_PAID}exit 0\nwant="),
    "judge pays for a file": lambda files: {
        **files, "tests/test.sh": files["tests/test.sh"].replace('= "$want"', '!= ""')},
    "judge believes a reward file": _with("tests/test.sh", "want=", "[ -s /app/reward.txt ] && "
                                          f"{{ {_PAID.strip()}; exit 0; }}\nwant="),
    "judge writes nothing": _with("tests/test.sh", "> /logs/verifier/reward.txt", "> /dev/null"),
    "solution does nothing": _with("solution/solve.sh", "", "#!/bin/bash\ntrue\n"),
    "answer lies in the image": lambda files: {
        **_with("environment/Dockerfile", "WORKDIR", "COPY key.txt /opt/answer\nWORKDIR")(files),
        "environment/key.txt": "250\n"},
}  # fmt: skip
"""Defects that only playing shows."""


def folders() -> dict[str, tuple[Base, str]]:
    """Return base and defect of each folder by name; "" for a sound one."""
    found: dict[str, tuple[Base, str]] = {f"folder-{base.name}": (base, "") for base in BASES}
    for number, defect in enumerate((*FORM, *PLAY)):
        base = BASES[number % 2]
        found[f"folder-{base.name}--{defect}"] = (base, defect)
    return found


def write(name: str, place: Path) -> Path:
    """Write a folder below ``place``; return it."""
    base, defect = folders()[name]
    files = files_of(base)
    if defect:
        files = {**FORM, **PLAY}[defect](files)
    folder = place / name.replace(" ", "_")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755 if path.endswith(".sh") else 0o644)
    return folder
