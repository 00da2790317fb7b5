"""Find words that CONTRIBUTING.md says we do not use: the second column of its table "Words"."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("src", "docs", "examples", "README.md", "CHANGELOG.md")
KINDS = (".py", ".md", ".toml")
PROPER = re.compile(
    # Names of others (OpenEnv's ids), of tasks and of menus.
    r"\.oracle_(max|containment)"
    r"|[Rr]ank fusion|Drift Beach|Line Numbers|ArenaState|rename[-_]as[-_]told|nobody@example"
    # What an environment says to the agent, in plain English.
    r"|[Yy]ou are told|told row and column|to be told when|neighbour told me|Push (all|every) box"
    # Settings that were renamed: the error gives the new name.
    r'|"(algo|warm_start)\.[^"]*":'
)
"""Phrases whose words mean what they mean everywhere."""
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
    """Return file, number and text of all lines that git knows, without what is exempt."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *PLACES], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = []
    for name in names:
        if name.endswith(KINDS) and (ROOT / name).exists():
            text = (ROOT / name).read_text(encoding="utf-8")
            found += [
                (name, i, PROPER.sub("", line))
                for i, line in enumerate(text.splitlines(), start=1)
                if not EXEMPT.search(line)
            ]
    return found


def main() -> int:
    """Print each line with a word that we do not use; return 1 when there is one."""
    every, failed = lines(), False
    for word, instead in banned().items():
        # Parts of identifiers count: ``_told`` and ``told_advantages`` are words of the house too.
        wanted = re.compile(rf"(?<![a-z]){word}(?![a-z])")
        hits = [hit for hit in every if wanted.search(hit[2])]
        failed |= bool(hits)
        for name, number, line in hits:
            print(f"{name}:{number}: {word!r}, say {instead}: {line.strip()[:80]}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
