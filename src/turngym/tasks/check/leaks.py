"""Where an answer lies about: in the prompt, in files, in variables, in a history."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from turngym.tasks.check.subject import Played

_SAYS = r"(answer|solution|result|expected|correct|key|hint)\b.{0,20}"
_MIN_LINE, _SHORT_LINE, _LINES = 24, 8, 12
_NAMES = (
    "*answer*", "*solution*", "solve.sh", "*expected*", "*golden*", "*orac?e*", "*groundtruth*",
    "*ground_truth*",
)  # fmt: skip
"""Of files that are no code: projects have modules with such names."""
_SYSTEM = ("/proc", "/sys", "/usr", "/etc", "/var/lib", "/dev", "/lib", "/lib64", "/bin", "/sbin")
_EDIT = re.compile(r"^```edit .*\n((?:.*\n)*?)=======$", re.MULTILINE)
"""An edit up to its new text; what it looks for stands in the file that it changes."""
_VARIABLE = r"^[A-Z_]*(ANSWER|SOLUTION|EXPECTED|GOLD|FLAG|ORACLE|GROUND_TRUTH|SECRET)[A-Z_]*=."
LEFT = (
    "find . -type f -cnewer /tmp/.turngym-start -not -path './.git/*' -size -256k -size +2c | "
    'head -20 | while IFS= read -r f; do n=$(stat -c %s "$f"); echo "left $n $(sha256sum < "$f" | '
    "cut -d' ' -f1) $({ printf 'blob %s\\0' $n; cat \"$f\"; } | sha1sum | cut -d' ' -f1)\"; done"
)
"""Lists size, SHA-256 and name as a Git object of what was written since the start."""


def answer_in_prompt(prompt: str, truth: str) -> str:
    """Return where a prompt gives ``truth`` away; "" where it does not, or offers a choice."""
    word = rf"(?<!\w){re.escape(truth.strip())}(?!\w)"
    if not truth.strip():
        return ""
    if found := re.search(_SAYS + word, prompt, re.IGNORECASE):
        return found[0]
    found = re.search(word, prompt, re.IGNORECASE)
    if found is None or len(truth.strip()) < 4:
        return ""
    around = prompt[max(0, found.start() - 6) : found.end() + 6]
    listed = r"(,|\bor\b|/|;|\n\s*[-*•]|\b[A-H][.):]|\d[.)])"
    before = re.search(rf"{listed}\W*$", prompt[: found.start()])
    after = re.search(rf"^\W*{listed}|^\s*[,/;]", prompt[found.end() :])
    return "" if before or after else around


def in_prompt(prompt: str, script: str) -> str:
    """Return the first long line of an expert's script that a prompt holds, "" for none."""
    return next((line for line in _lines(script) if line in prompt), "")


def _lines(script: str, least: int = _MIN_LINE) -> list[str]:
    """Return the long lines of what an expert says to a shell; a command alone is ``bash ...``."""
    quoted = {line.strip() for old in _EDIT.findall(script) for line in old.splitlines()}
    lines = (line.strip().removeprefix("bash ").strip() for line in script.splitlines())
    return [line for line in lines if len(line) >= least and line[0] != "`" and line not in quoted]


def hunt(experts: Sequence[Played], left: Sequence[str]) -> str:
    """Return a script that lists where answers lie about in a fresh workspace.

    Args:
        experts: Episodes of the expert, whose script may lie about.
        left: What the expert leaves, as ``LEFT`` says it.
    """
    names = " -o ".join(f"-iname {shlex.quote(name)}" for name in _NAMES)
    system = " -o ".join(f"-path {place}" for place in _SYSTEM)
    files = f"find / \\( {system} \\) -prune -o -type f -readable"
    script = "\n".join(experts[0].actions) if experts else ""
    lines = map(shlex.quote, _lines(script, _SHORT_LINE)[:_LINES])
    found = [
        f"{files} \\( {names} \\) -not -name '*.py' -size -256k -printf 'file %p\\n' "
        "2>/dev/null | head -20",
        "for d in /tests /solution /verifier; do "
        '[ -n "$(ls -A $d 2>/dev/null)" ] && echo "file $d"; done',
        "(env; cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n') | "
        f"grep -E '{_VARIABLE}' | sed 's/=.*//; s/^/variable /' | sort -u",
    ]
    if _lines(script):  # all lines of it: code that mends code has some that stand elsewhere
        holding = " | ".join(f"xargs -0r grep -lZF -e {line} 2>/dev/null" for line in lines)
        found.append(
            f"{files} -size -256k -print0 2>/dev/null | {holding} | tr '\\0' '\\n' | "
            "grep -v '^/tmp/' | head -5 | sed 's/^/script /'"
        )
    for size, digest, blob in (line.split() for line in left):
        # A copy in plain sight may be what the task is about; one out of sight is a key.
        found.append(
            f"{files} -size {size}c -exec sha256sum {{}} + 2>/dev/null | grep {digest} | "
            f'cut -c67- | grep -E "/\\.[^/]+|^/" | grep -vE "^$PWD/[^.][^/]*(/[^.][^/]*)*$" | '
            "head -3 | sed 's/^/copy /'"
        )
        found.append(
            "git cat-file --batch-all-objects --batch-check 2>/dev/null | "
            f"grep -q {blob} && echo commit {blob}"
        )
    return "\n".join(["echo", *found, "exit 0"])


def read_hunt(text: str, prompt: str) -> list[str]:
    """Return what ``hunt`` found, without what the prompt itself names."""
    found = []
    for line in text.splitlines():
        kind, _, place = line.partition(" ")
        if kind not in ("file", "variable", "commit", "script", "copy") or not place.strip():
            continue
        name = place.rpartition("/")[2]
        if kind == "file" and name and name in prompt:
            continue  # it is part of the task
        if kind == "commit" and re.search(r"\b(git|commit|history|branch)\b", prompt, re.I):
            continue
        found.append(f"{kind} {place.strip()}")
    return found
