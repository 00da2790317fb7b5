"""The judge of an exported task: stands in its ``tests/``, and imports nothing but the library.

It compares the workspace that the agent left, ``/logs/artifacts/workspace.tar``, with ``task.json``
and with the workspace as it began, runs the probe on a fresh copy, and writes the reward. What it
cannot judge ends it without a reward, which is no 0.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

Files = dict[str, bytes]
HERE = Path(__file__).parent
WORKSPACE = Path("/workspace")
LOGS = Path("/logs")


def main() -> None:
    """Judge, say why, and write the reward."""
    task = json.loads((HERE / "task.json").read_text(encoding="utf-8"))
    clear()
    for path, text in task["files"].items():
        (WORKSPACE / path).parent.mkdir(parents=True, exist_ok=True)
        (WORKSPACE / path).write_bytes(text.encode())
    if task["prepare"]:
        subprocess.run(["bash", "-c", task["prepare"]], cwd=WORKSPACE, check=True, timeout=300)
    before = regular_files()
    unpack()
    amiss = what_is_amiss(task, before, regular_files())
    if not amiss and task["probe"]:
        amiss = probe(task)
    sys.stdout.write(f"{amiss or 'as wanted'}\n")
    (LOGS / "verifier").mkdir(parents=True, exist_ok=True)
    (LOGS / "verifier/reward.txt").write_text("0\n" if amiss else "1\n", encoding="utf-8")


def clear() -> None:
    """Leave an empty workspace."""
    WORKSPACE.mkdir(exist_ok=True)
    for path in WORKSPACE.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def unpack() -> None:
    """Put what the agent left into the workspace."""
    clear()
    with tarfile.open(LOGS / "artifacts/workspace.tar") as archive:
        # Chosen here: Pythons before 3.11.4 know no filters.
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        archive.extractall(WORKSPACE, [member for member in archive if is_kept(member)])


def is_kept(member: tarfile.TarInfo) -> bool:
    """Say whether a member of the archive is no device, and does not lead out."""
    is_plain = member.isreg() or member.isdir() or member.issym() or member.islnk()
    names = [member.name, member.linkname] if member.islnk() else [member.name]
    return is_plain and not any(n.startswith("/") or ".." in Path(n).parts for n in names)


def regular_files() -> Files:
    """Return the regular files of the workspace by their paths in it."""
    return {
        path.relative_to(WORKSPACE).as_posix(): path.read_bytes()
        for path in sorted(WORKSPACE.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def what_is_amiss(task: dict, before: Files, found: Files) -> str:  # type: ignore[type-arg]  # JSON
    """Return which file is not as wanted, or should not have changed; "" where none is."""
    wanted = task["wanted"]
    for path, text in wanted.items():
        data = found.get(path)
        if (data is None) != (text is None) or (data is not None and lines(data) != lines(text)):
            return f"{path} is not as wanted"
    for path in sorted({*before, *found}):
        is_free = path in wanted or path.startswith(tuple(task["free"]))
        if not is_free and before.get(path) != found.get(path):
            return f"{path} should not have changed"
    return ""


def lines(text: bytes | str) -> list[str]:
    """Return a text's lines, blanks at their ends and at the end of the text aside."""
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return [line.rstrip() for line in text.rstrip().splitlines()]


def probe(task: dict) -> str:  # type: ignore[type-arg]  # JSON
    """Run the probe in the workspace; return what is amiss."""
    try:
        ran = subprocess.run(
            ["bash", "-c", task["probe"]], cwd=WORKSPACE, capture_output=True, timeout=60,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "what was asked for takes too long"
    output = ran.stdout.decode("utf-8", "replace").strip()
    return "" if output == task["expected"].strip() else "what was asked for does not work"


if __name__ == "__main__":
    main()
