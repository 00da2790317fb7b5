"""Find words that CONTRIBUTING.md says we do not use: the second column of its table "Words".

    python scripts/check_words.py

Words in ``STILL`` are on their way out: their lines may only become fewer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("src", "docs", "examples", "README.md", "CHANGELOG.md")
KINDS = (".py", ".md", ".toml")
STILL: dict[str, int] = {
    "drawn": 23,
    "draws": 14,
    "told": 32,
    "tells": 10,
    "taken up": 1,
    "take up": 1,
    "give up": 1,
    "in the same breath": 1,
    "oracle": 2,
    "singleton": 1,
    "fusion": 2,
    "Push": 2,
    "Drift": 1,
    "Feed": 2,
    "Arena": 5,
    "seal": 22,
    "sealed": 15,
    "Line": 1,
    "Said": 1,
    "whoever": 17,
    "nobody": 32,
}
EXEMPT = re.compile(r"renamed|new name|<!--|```")
"""Lines that name an old word on purpose."""


def banned() -> dict[str, str]:
    """Return the words of the second column, each with what we say instead."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Words")[2].partition("\n## ")[0]
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for word in re.findall(r"`([^`]+)`", cells[1]) if len(cells) == 2 else ():
            found[word] = cells[0]
    return found


def lines() -> list[tuple[str, int, str]]:
    """Return the lines of all files that git knows, with their file and number."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *PLACES], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = []
    for name in names:
        if name.endswith(KINDS) and (ROOT / name).exists():
            text = (ROOT / name).read_text(encoding="utf-8")
            found += [(name, i, line) for i, line in enumerate(text.splitlines(), start=1)]
    return found


def main() -> int:
    """Print each line with a word that we do not use; return 1 when there is one too many."""
    every, failed = lines(), False
    for word, instead in banned().items():
        # Parts of identifiers count: ``_told`` and ``told_advantages`` are words of the house too.
        wanted = re.compile(rf"(?<![a-z]){word}(?![a-z])")
        hits = [hit for hit in every if wanted.search(hit[2]) and not EXEMPT.search(hit[2])]
        if "--count" in sys.argv:
            print(f"{word:20} {len(hits)}")
        elif len(hits) > STILL.get(word, 0):
            failed = True
            shown = hits if word not in STILL else hits[:3]
            for name, number, line in shown:
                print(f"{name}:{number}: {word!r}, say {instead}: {line.strip()[:80]}")
            print(f"{word!r}: {len(hits)} lines, {STILL.get(word, 0)} allowed")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
