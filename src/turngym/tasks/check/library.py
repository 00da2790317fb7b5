"""Cheats and spoils as data, and the scripts that play them in a shell.

A cheat must score nothing, a spoiled solution must lose. ``cheats.toml`` holds those that fit any
task of a family, ``repository.toml`` those on the tests of a Python project.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Literal

Family = Literal["shell", "repository", "answer", "page", "spoil", "damage"]
NOTHING_TO_DO = "nothing to do"
SPOILED = "spoiled"
START = (
    "cd . && touch /tmp/.turngym-start && "
    "find . -type f -not -path './.git/*' -print0 | sort -z > /tmp/.turngym-before; sleep 0.02"
)
"""Notes what a workspace holds, so that scripts can see what was changed since."""

_SPOILING = r"""
changed() { find . -type f -cnewer /tmp/.turngym-start -not -path './.git/*' -print0; }
here() { find . -type f -not -path './.git/*' -print0 | sort -z; }
gone() { here | comm -z -13 - /tmp/.turngym-before; }
kept() { changed | sort -z > /tmp/.turngym-changed; here | comm -z -23 - /tmp/.turngym-changed; }
data() { changed | while read -r -d '' f; do case $f in
  *.txt|*.csv|*.tsv|*.jsonl|*.md|*.out|*.lst) [ -x "$f" ] || printf '%s\0' "$f";; esac; done; }
each() { from=$1; shift; n=0; while read -r -d '' f; do "$@" "$f" && n=1; done < <($from)
  [ $n = 0 ] || echo spoiled; }
"""
_FILE = re.compile(r"(?<![\w/.-])/?(?:[\w-]+/)*[\w-]+\.[A-Za-z]\w{0,4}(?![\w/])")
_MAX_NUMBER = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to be paid without the work, or to spoil the work."""

    text: str
    name: str = ""
    kind: str = ""
    how: Literal["shell", "append", "prepend"] = "shell"
    skip: str = ""
    """A pattern; a task whose prompt holds it asks for just this."""

    def fits(self, prompt: str) -> bool:
        """Say whether it would be a cheat on the task with this prompt."""
        return not (self.skip and re.search(self.skip, prompt, re.IGNORECASE))


@cache
def recipes(family: Family) -> tuple[Recipe, ...]:
    """Return the cheats of a family, in the order of their file."""
    name = "repository" if family == "repository" else "cheats"
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["cheat" if family == "repository" else family]
    return tuple(Recipe(**{"name": row["text"], **row}) for row in rows)


def named_files(prompt: str) -> list[str]:
    """Return the files that a prompt names, in order."""
    return list(dict.fromkeys(one for one in _FILE.findall(prompt) if not one[0].isdigit()))


def shell_script(cheat: Recipe, prompt: str) -> str:
    """Return the script of a cheat of the family ``shell``."""
    return cheat.text.replace("@NAMED@", " ".join(map(shlex.quote, named_files(prompt))))


def spoiling_script(spoil: Recipe) -> str:
    """Return the script that spoils what was done since ``START``; it prints ``SPOILED``."""
    return f"{_SPOILING}\n{spoil.text}\nexit 0"


def repository_script(cheat: Recipe, file: str, tests: str, known: str = "") -> str:
    """Return the script of a cheat on a Python project.

    Args:
        cheat: One of the family ``repository``.
        file: Which file it is put into.
        tests: Folder of the tests.
        known: Names of the tests that can be seen, with blanks between.
    """
    text = cheat.text.replace("@KNOWN@", known).replace("@TESTS@", tests)
    text = text.replace("@FILE@", file).replace("@FOLDER@", file.rpartition("/")[0] or ".")
    if cheat.how == "append":
        return f"cat >> {file} <<'PY'\n\n{text}\nPY"
    if cheat.how == "prepend":
        return f"cat - {file} > /tmp/i <<'PY'\n{text}\nPY\ncat /tmp/i > {file}"
    return text


def cheating_answers(prompt: str, right: str) -> dict[str, str]:
    """Return answers that may not be paid, by name; none of them is ``right``."""
    words = list(dict.fromkeys(re.findall(r"\w+", f"{prompt} {right}")))
    filled: Mapping[str, str] = {
        "@PROMPT@": prompt,
        "@NUMBERS@": " ".join(map(str, range(_MAX_NUMBER))),
        "@WORDS@": " ".join(words),
    }
    found = {one.name: filled.get(one.text, one.text) for one in recipes("answer")}
    return {name: text for name, text in found.items() if plain_answer(text) != plain_answer(right)}


def spoiled_answers(right: str) -> dict[str, str]:
    """Return answers near the ``right`` one that are wrong, by name."""
    found = {
        "letters and digits are others": right.translate(_OTHERS),
        "every number is another": re.sub(r"\d+", lambda m: f"{m[0]}7", right),
        "its negation": f"not {right}",
        "it and another": f"{right} or none",
        "hidden among others": f"zulu {right} zulu",
    }
    return {name: text for name, text in found.items() if plain_answer(text) != plain_answer(right)}


def plain_answer(text: str) -> str:
    """Return an answer without letter case and blanks at its ends."""
    return " ".join(text.split()).casefold()


_OTHERS = str.maketrans(
    ascii_lowercase + ascii_uppercase + digits,
    ascii_lowercase[1:] + "a" + ascii_uppercase[1:] + "A" + digits[1:] + "0",
)
