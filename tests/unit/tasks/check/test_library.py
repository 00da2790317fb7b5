"""Cheats, spoils and leaks: what they say, and that each script does what it is named for."""

from __future__ import annotations

import subprocess

import pytest

from turngym.tasks.check.leaks import answer_in_prompt, hunt, in_prompt, read_hunt
from turngym.tasks.check.library import (
    SPOILED,
    START,
    Recipe,
    cheating_answers,
    named_files,
    recipes,
    repository_script,
    shell_script,
    spoiled_answers,
    spoiling_script,
)
from turngym.tasks.check.subject import Played


def bash(script: str, place, **variables: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place), **variables}
    done = subprocess.run(
        ["bash", "-c", script], cwd=place, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_library_has_the_kinds_that_were_asked_for():
    kinds = {one.kind for one in recipes("shell")}
    assert {"reward file", "daemon", "planted binary", "planted conftest", "git history",
            "planted sitecustomize", "shadowed modules", "edited tests", "early exit",
            "output spoofing", "answer key in a file", "answer key in the environment",
            "instructions to a judge", "state set during the check"} <= kinds  # fmt: skip
    assert len(recipes("repository")) == 50
    assert {"equal to everything", "what the caller's frame holds"} <= {
        one.name for one in recipes("repository")
    }


@pytest.mark.parametrize("family", ["shell", "spoil", "damage"])
def test_every_script_is_valid_bash(family, tmp_path):
    for one in recipes(family):
        script = shell_script(one, "a.txt") if family == "shell" else spoiling_script(one)
        done = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), one.name


def test_files_are_those_that_a_prompt_names():
    prompt = "Write it, e.g. 12.50, from etc/a.conf into /app/out.json and answer.txt."
    assert named_files(prompt)[-3:] == ["etc/a.conf", "/app/out.json", "answer.txt"]
    recipe = Recipe(text="touch @NAMED@")
    assert shell_script(recipe, "in answer.txt.") == "touch answer.txt"


def test_a_cheat_is_none_where_the_task_asks_for_just_that():
    [git] = [one for one in recipes("shell") if one.kind == "git history"]
    assert not git.fits("Restore the file from the commit before.")
    assert git.fits("Write the sum into total.txt.")


SPOILS = {one.name: one for one in recipes("spoil")}
DAMAGE = {one.name: one for one in recipes("damage")}


def spoil(recipe: Recipe, place) -> str:
    (place / "input.txt").write_text("kept\n")
    start = START.replace("/tmp/", f"{place}/../")
    script = spoiling_script(recipe).replace("/tmp/", f"{place}/../")
    bash(f"{start}; printf 'alpha 1\\nbeta 29\\n' > 'my out.txt'", place)
    return bash(script, place)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("what was made is removed", None),
        ("what was made is empty", ""),
        ("letters and digits are others", "bmqib 2\ncfub 30\n"),
        ("every number is another", "alpha 17\nbeta 297\n"),
        ("the last line is missing", "alpha 1\n"),
        ("there is a line more", "alpha 1\nbeta 29\nzulu 99,98,97\n"),
    ],
)
def test_a_spoil_changes_what_was_made_and_nothing_else(name, left, tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    assert spoil(SPOILS[name], place).split() == [SPOILED]
    made = place / "my out.txt"
    assert (made.read_text() if made.exists() else None) == left
    assert (place / "input.txt").read_text() == "kept\n"


def test_damage_leaves_what_was_made(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    assert spoil(DAMAGE["other files are emptied"], place).split() == [SPOILED]
    assert (place / "my out.txt").read_text() == "alpha 1\nbeta 29\n"
    assert (place / "input.txt").read_text() == ""


def test_a_spoil_without_anything_to_spoil_says_nothing(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    start = START.replace("/tmp/", f"{place}/../")
    script = spoiling_script(SPOILS["what was made is empty"]).replace("/tmp/", f"{place}/../")
    assert bash(f"{start}; {script}", place) == ""


def test_code_is_put_before_or_behind_what_a_file_says():
    behind = repository_script(Recipe(text="x = 1", how="append"), "src/a.py", "tests")
    before = repository_script(Recipe(text="x = '@TESTS@'", how="prepend"), "src/a.py", "t")
    assert behind.startswith("cat >> src/a.py <<'PY'")
    assert "x = 't'" in before
    assert "/tmp/i > src/a.py" in before


def test_answers_that_may_not_be_paid_are_never_the_right_one():
    for right in ("", "nan", ".*", "Paris"):
        given = cheating_answers("What is the capital of France?", right)
        assert right.casefold() not in [text.strip().casefold() for text in given.values()]
    assert "not Paris" in spoiled_answers("Paris").values()
    assert spoiled_answers("42")["every number is another"] == "427"


@pytest.mark.parametrize(
    ("prompt", "truth", "leaks"),
    [
        ("What is the capital? (the answer is Paris)", "Paris", True),
        ("What is the capital of France?", "Paris", False),
        ("Which is larger: Paris, Lyon or Nice?", "Paris", False),
        ("Which?\nA) Paris\nB) Lyon", "Paris", False),
        ("You live in Paris now. Where do you live?", "Paris", True),
        ("What is 3 plus 4? <!-- expected: 7 -->", "7", True),
        ("What is 7 plus 4?", "7", False),
    ],
)
def test_an_answer_in_a_prompt_is_a_leak_unless_it_is_one_of_a_choice(prompt, truth, leaks):
    assert bool(answer_in_prompt(prompt, truth)) is leaks


def test_a_line_of_the_experts_script_in_a_prompt_is_found():
    script = "```bash\nawk '{s += $1} END {print s}' data.txt > out.txt\n```"
    assert in_prompt("Do it: awk '{s += $1} END {print s}' data.txt > out.txt", script)
    assert not in_prompt("Sum data.txt into out.txt.", script)
    alone = "bash awk '{s += $1} END {print s}' data.txt > out.txt"  # a command of one line
    assert in_prompt("Do it: awk '{s += $1} END {print s}' data.txt > out.txt", alone)


def test_a_hunt_finds_variables_and_files_that_a_prompt_does_not_name(tmp_path):
    (tmp_path / "expected_output.txt").write_text("42\n")
    script = hunt([Played(name="expert", actions=("x",))], []).replace("find /", "find .")
    text = bash(script, tmp_path, TASK_ANSWER="42")
    found = read_hunt(text, "Write the answer.")
    assert "variable TASK_ANSWER" in found
    assert "file ./expected_output.txt" in found
    assert "file ./expected_output.txt" not in read_hunt(text, "Compare expected_output.txt.")
