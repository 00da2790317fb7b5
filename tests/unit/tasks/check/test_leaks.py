"""Where an expert's script lies about, and where a line of it only looks so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from turngym.tasks.check.leaks import hunt, in_prompt, read_hunt
from turngym.tasks.check.subject import Played

OLD, NEW = "    return sum(values) / len(values)", "    total = sum(values) or default"
EDIT = f"```edit mean.py\n{OLD}\n=======\n{NEW}\n    return total / max(1, len(values))\n```"


def found(folder: Path, script: str, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    command = hunt([Played(name="expert", actions=(script, "submit"))], [])
    command = command.replace("find / ", f"find {folder} ").replace("'^/tmp/'", "'^/nowhere/'")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return [one.rpartition("/")[2] for one in read_hunt(done.stdout, "") if "script" in one]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"{OLD}\n", []),  # what an edit looks for stands in the file
        (f"def other(values):\n{NEW}\n", []),  # a line of it stands elsewhere
        (f"# {NEW}\n#     return total / max(1, len(values))\n", ["notes.py"]),
    ],
)
def test_a_script_is_found_where_all_of_it_stands(tmp_path: Path, text: str, names: list[str]):
    assert found(tmp_path, EDIT, mean=f"{OLD}\n", notes=text) == names


def test_a_command_is_found_in_a_file_and_in_a_prompt(tmp_path: Path):
    command = "awk '{ s += $3 } END { print s }' data.txt > out.txt"
    assert found(tmp_path, f"```bash\n{command}\n```", key=f"{command}\n") == ["key.py"]
    assert in_prompt(f"For example: {command}", f"```bash\n{command}\n```") == command
    assert not in_prompt(OLD, EDIT)
