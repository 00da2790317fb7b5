"""Each way to a task of one's own: what ``turngym new`` writes works; what is wrong is one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from helpers.cli import TINY_RUN
from turngym.cli.check import KINDS
from turngym.cli.main import main
from turngym.environments.web.chromium import NEED
from turngym.tasks.questions import read_questions

ROOT = Path(__file__).parents[2]
MOST_LINES = {"game": 30, "shell": 30, "questions": 10, "page": 30, "harbor": 0, "package": 15}
"""Of what a user writes, by what was promised; data and pages aside."""
PAGE = (ROOT / "docs/new_task.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
CHECKED = {text.split()[2] for text in SECTIONS if "\nturngym check task" in text}
"""Kinds whose check is a command of the page, with as many episodes or more."""
NEEDS = {
    "shell": ("bwrap",), "harbor": ("bwrap",), "package": ("bwrap",), "page": ("playwright", NEED),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.extra(*NEEDS[kind])] if kind in NEEDS else [])
        for kind in KINDS
    ],
)
def test_what_new_writes_is_sound_and_short(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, "try_one"]) == 0
    written = capsys.readouterr().out.split()
    own = {"package": ["pyproject.toml"], "harbor": [], "questions": ["try_one.toml"]}
    lines = sum(len(Path(p).read_text().splitlines()) for p in own.get(kind, ["try_one.py"]))
    assert lines <= MOST_LINES[kind]
    assert "test_try_one.py" in written
    target = KINDS[kind][0].format(name="try_one")
    if kind not in CHECKED:
        assert main(["check", "task", target, "--episodes", "1"]) == 0
        assert f"{target}: sound" in capsys.readouterr().out
    assert main(["eval", target, "--agent", "expert", "--episodes", "1", "--json"]) == 0
    ((_, found),) = json.loads(capsys.readouterr().out).items()
    assert (found["episodes"], found["solved"]) == (1, 1)
    assert main(["envs", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["options"]
    with pytest.raises(SystemExit, match="is there already"):
        raise SystemExit(_error(["new", kind, "try_one"], capsys))


@pytest.mark.extra("bwrap", "playwright", NEED)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.split()[2])
def test_each_command_of_the_page_works(
    folder: Path, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in section.splitlines():
        command = line.partition(" #")[0].split()
        assert command[0] == "turngym"
        assert main(command[1:]) == 0, line
        said = capsys.readouterr().out
        assert command[1:3] != ["check", "task"] or f"{command[3]}: sound" in said


@pytest.mark.extra("bwrap")
def test_the_shell_task_of_the_page_is_sound(folder: Path) -> None:
    block = BLOCKS[0]
    assert len(block.splitlines()) <= MOST_LINES["shell"]
    (folder / "double.py").write_text(block)
    assert main(["check", "task", "double.py", "--episodes", "2"]) == 0


SUM = """
def act(observation, info):
    if observation["text"] != "5":
        return '{"name": "add", "arguments": {"a": 2, "b": 3}}'
    return '{"name": "answer", "arguments": {"text": "5"}}'
"""


@pytest.mark.extra("mcp")
def test_the_tools_of_the_page_are_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, block in zip(("sums", "server"), BLOCKS[1:], strict=True):
        assert block.startswith(f'"""{name}.py:')
        (folder / f"{name}.py").write_text(block)
    (folder / "mine.py").write_text(SUM)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert main(["eval", "sums.py", "--agent", "mine.py:act", "--episodes", "1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["local/sums"]["solved"] == 1


@pytest.mark.extra("playwright", NEED)
@pytest.mark.parametrize(
    ("step", "says"),
    [
        ('"choose", "Item"', "KeyError: 'choose'"),
        ('"select", "Thing"', "nothing called 'Thing' is there"),
        ('"answer", "a\\nstop", "Item"', "TypeError"),
        ('"answer", "1\\nclick"), ("answer"', "cannot be said as an action"),
    ],
)
def test_an_expert_of_a_page_that_says_no_action_is_a_fault_of_the_task(
    step: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "page", "try_one"]) == 0
    text = (folder / "try_one.py").read_text()
    (folder / "try_one.py").write_text(text.replace('"select", "Item"', step))
    assert main(["eval", "try_one.py", "--agent", "expert", "--episodes", "1"]) == 1
    said = capsys.readouterr().err
    assert f"task try_one/test/0: expert, step ({step.split(',')[0]}".replace('"', "'") in said
    assert says in said


def test_the_table_of_the_page_says_how_many_lines_there_are(folder: Path) -> None:
    said = dict(re.findall(r"^\|[^|]*\| `(\w+)` \|.*\| (\d+) \|$", PAGE, re.MULTILINE))
    assert said.keys() == KINDS.keys()
    files = {"package": ["pyproject.toml"], "harbor": [], "questions": ["try_one.toml"]}
    for kind, number in said.items():
        assert main(["new", kind, "try_one", "--out", kind]) == 0
        own = files.get(kind, ["try_one.py"])
        assert sum(len(Path(kind, one).read_text().splitlines()) for one in own) == int(number)


def _error(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that a command says of the user's mistake."""
    assert main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line.removeprefix("error: ")


def test_the_test_that_new_writes_passes_and_fails_when_the_task_is_broken(folder: Path) -> None:
    assert main(["new", "game", "try_one"]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_try_one.py"]
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 0
    text = (folder / "try_one.py").read_text()
    (folder / "try_one.py").write_text(
        text.replace("reward=1.0, ", "").replace("= True", "= False")
    )
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 1


def elsewhere(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run turngym in another folder, with what is installed in ``installed``."""
    variables = {**os.environ, "PYTHONPATH": f"{installed}:{ROOT / 'src'}"}
    line = [sys.executable, "-m", "turngym", *command]
    return subprocess.run(line, cwd=installed.parent, env=variables, text=True, capture_output=True)


@pytest.mark.extra("bwrap")
def test_a_package_brings_its_tasks_to_every_program(folder: Path) -> None:
    assert main(["new", "package", "try_one"]) == 0
    points = re.search(
        r'\[project\.entry-points\."turngym\.tasks"\]\n"(.*)" = "(.*)"',
        (folder / "pyproject.toml").read_text(),
    )
    assert points is not None
    info = folder / "try_one-0.1.0.dist-info"  # as an installer leaves it
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: try_one\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[turngym.tasks]\n{points[1]} = {points[2]}\n")
    command = ["eval", "try_one/tryone", "--agent", "expert", "--episodes", "2", "--json"]
    done = elsewhere(folder, *command)
    assert json.loads(done.stdout)["try_one/tryone"]["solved"] == 2, done.stderr
    (folder / "try_one.py").write_text("1 / 0\n")
    done = elsewhere(folder, "doctor")
    assert "plug-in 'try_one/TryOne-v0' of try_one 0.1.0 is broken" in done.stdout + done.stderr


def test_train_takes_a_file_of_tasks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "questions", "try_one"]) == 0
    (folder / "tiny.toml").write_text(TINY_RUN)
    capsys.readouterr()
    assert main(["train", "tiny.toml", "env=try_one.toml", "--out", "first"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "has 3 tasks of split 'test', where 4 are needed" in line
    assert "evaluation.held_out_tasks" in line
    rows = [{"a": n, "b": 1, "sum": n + 1} for n in range(60)]
    (folder / "try_one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    many = ["env=try_one.toml", "env.num_train_tasks=99"]  # and not when the last one is played
    assert main(["train", "tiny.toml", *many, "--out", "many"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "tasks of split 'train', where 99 are needed" in line
    assert "lower env.num_train_tasks" in line
    assert main(["train", "tiny.toml", "env=try_one.toml", "--out", "run"]) == 0


SHELL = """
from turngym import FileProblem, ListedSet


class Task(FileProblem):
    prompt = {prompt!r}

    async def judge(self, world):
        {judge}

    def expert(self):
        return {expert}
"""
BROKEN = {
    "no prompt": ({"prompt": " "}, "task 'Task' asks for nothing; give it a prompt"),
    "no argument": (
        {"expert": "['x']\n\n    def __init__(self, number):\n        pass"},
        "Task cannot be made without arguments",
    ),
}


def _shell(prompt: str = "Do it.", judge: str = "return 0", expert: str = "['true']") -> str:
    return SHELL.format(prompt=prompt, judge=judge, expert=expert)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_problem_is_one_line(
    folder: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, says = BROKEN[case]
    (folder / "mine.py").write_text(_shell(**changes))
    line = _error(["eval", "mine.py", "--agent", "expert"], capsys)
    assert "mine.py" in line
    assert says in line


@pytest.mark.extra("bwrap")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"judge": "return 1 / 0"}, "task mine/test/0: judge: ZeroDivisionError: division by zero"),
        ({"judge": "return 3"}, "judge: ConfigError: judge result: score is 3.0"),
        ({"expert": "[]"}, "expert: TypeError: wanted a list of at least one action, got []"),
        ({"expert": "[1 / 0]"}, "expert: ZeroDivisionError"),
        (
            {"expert": "['true']\n\n    files = {'/usr/a': ''}"},
            "set_up: GuestError: [Errno 30] Read-only file system: '/usr/a'",
        ),
    ],
)
def test_a_judge_or_expert_that_raises_is_a_fault_with_file_and_line_and_never_a_zero(
    folder: Path, changes: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(_shell(**changes))
    main(["eval", "mine.py", "--agent", "expert", "--out", "run"])
    said = capsys.readouterr()
    rows = (folder / "run").rglob("*.jsonl")
    text = said.out + said.err + "".join(path.read_text() for path in rows)
    assert says in text
    if "division" in says:
        assert "(mine.py:9 in judge)" in text
    assert "error_env" in text


@pytest.mark.extra("bwrap")
def test_an_expert_that_does_not_solve_its_task_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(_shell())
    assert main(["check", "task", "mine.py"]) == 1
    assert "expert" in capsys.readouterr().out


def test_a_game_without_legal_actions_names_the_ways_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "game", "mine"]) == 0
    capsys.readouterr()
    line = _error(["eval", "mine.py", "--agent", "random"], capsys)
    assert "write its legal_actions; a warm start can imitate without noise" in line
    assert main(["eval", "mine.py", "--agent", "expert", "--episodes", "1"]) == 0


def test_a_page_that_cannot_be_written_is_refused_before_the_check(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _error(["check", "task", "text/maze", "--page", "/proc/none/report.html"], capsys)
    assert line.startswith("--page /proc/none: cannot be written to")


ROWS = '{"q": "One?", "a": "1", "k": "x"}\n{"q": "Two?", "a": "2", "k": "y"}\n'
QUESTIONS = 'questions = "q.jsonl"\nquestion = "q"\nanswer = "a"\n'


@pytest.mark.parametrize(
    ("settings", "rows", "says"),
    [
        ("", "", "holds no task"),
        ('scorer.type = "nope"\n', ROWS, "scorer"),
        ("colour = 1\n", ROWS, "colour"),
        ('id = "k"\n', ROWS.replace("y", "x"), "task 2 has the id 'x' of task 1"),
        ('id = "key"\n', ROWS, "unknown column 'key'"),
        ('scorer.type = "numeric"\n', ROWS.replace('"2"', '"two"'), "row 2: a: wanted a number"),
        ('scorer.type = "regex"\n', ROWS, "row 1: scorer 'regex' needs a right answer"),
        (
            'scorer.type = "regex"\nexpert = "k"\n',
            ROWS,
            "row 1: the expert's answer 'x' is not right by the scorer",
        ),
        (
            'scorer.type = "regex"\nexpert = "k"\n',
            ROWS.replace('"1"', '"("'),
            "no regular expression",
        ),
        (
            'scorer.type = "json_schema"\nexpert = "k"\n',
            ROWS.replace('"1"', '"{"'),
            "no JSON Schema",
        ),
        (
            'scorer.type = "json_schema"\nexpert = "k"\n',
            ROWS.replace('"1"', "5"),
            "no JSON Schema: 5 is not of type",
        ),
        (
            'scorer.type = "json_schema"\nexpert = "k"\n',
            '{"q": "One?", "a": {"$ref": "http://127.0.0.1:1/x"}, "k": 1}\n',
            "row 1: a: the schema has no 'http://127.0.0.1:1/x'; put it into its '$defs'",
        ),
        ("", ROWS + "{\n", "row 3: no JSON"),
        ("", ROWS + "[1]\n", "row 3: wanted an object"),
        ("", ROWS.replace('"2"', "null"), "row 2: column 'a' is empty"),
        ("", ROWS.replace('"2"', "[]"), "row 2: column 'a' is empty"),
        ("", ROWS.replace('"2"', "NaN"), "row 2: column 'a' is empty"),
        ("", ROWS.replace('"2"', '["2", null]'), "row 2: column 'a' is empty"),
        ("", ROWS.replace('"Two?"', "NaN"), "row 2: column 'q' is empty"),
        ("", ROWS.replace('"2"', '{"text": ["2"]}'), "row 2: column 'a': wanted a text, a number"),
        ("", ROWS.replace('"2"', '"\\ud800"'), "row 2: no JSON: 'utf-8' codec can't encode"),
        ('split = "k"\n', ROWS, "unknown split"),
        ("", None, "there is no such file"),
    ],
)
def test_a_wrong_data_file_is_one_line_that_names_row_and_column(
    folder: Path, settings: str, rows: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "q.toml").write_text(QUESTIONS + settings)
    if rows is not None:
        (folder / "q.jsonl").write_text(rows)
    line = _error(["eval", "q.toml", "--agent", "expert"], capsys)
    assert says in line
    assert "q." in line


@pytest.mark.parametrize(
    ("name", "content", "question", "says"),
    [
        ("q.jsonl", b"\xff\xfe", "q", "q.jsonl: cannot be read: 'utf-8' codec"),
        ("q.parquet", b"no Parquet", "q", "q.parquet: cannot be read: "),
        ("q.csv", b"q,a\nCapital?,Washington, D.C.\n", "q", "row 1: more values than columns"),
        ("q.csv", b"q,a\nOne?\n", "q", "q.csv, row 1: column 'a' is empty"),
        ("q.csv", b"q,a,q,,\nOne?,1,Two?,,\n", "q", "column 'q' is there twice"),
        ("q.csv", b"q,a\nOne?,1\n", "{q", "question: expected '}' before end of string; wanted"),
        ("q.csv", b"q,a\nOne?,1\n", "{}", "question: Replacement index 0 out of range"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    folder: Path,
    name: str,
    content: bytes,
    question: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / name).write_bytes(content)
    settings = f'questions = "{name}"\nquestion = "{question}"\nanswer = "a"\n'
    (folder / "q.toml").write_text(settings)
    assert says in _error(["eval", "q.toml", "--agent", "expert"], capsys)


def test_a_file_may_begin_with_the_mark_of_a_spreadsheet_program(folder: Path) -> None:
    (folder / "q.csv").write_bytes(b"\xef\xbb\xbfq,a\nOne?,1\n")
    (folder / "q.toml").write_text('questions = "q.csv"\nquestion = "q"\nanswer = "a"\n')
    assert main(["eval", "q.toml", "--agent", "expert", "--episodes", "1"]) == 0


@pytest.mark.parametrize("style", ["commands", "tools"])
def test_an_answer_of_two_lines_can_be_given(
    folder: Path, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "q.csv").write_text('q,a\nOne?,"1\n2"\n')
    (folder / "q.toml").write_text('questions = "q.csv"\nquestion = "q"\nanswer = "a"\n')
    command = ["eval", "q.toml", "--agent", "expert", "--json"]
    assert main([*command, "--env-option", f"action_style={style}"]) == 0
    assert json.loads(capsys.readouterr().out)["local/q"]["solved"] == 1


@pytest.mark.parametrize("answer", [date(2020, 1, 2), Decimal("1.50")], ids=["date", "amount"])
def test_a_date_or_an_amount_of_parquet_is_an_answer(folder: Path, answer: object) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"q": ["One?"], "a": [answer]})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "q.parquet")
    (folder / "q.toml").write_text(QUESTIONS.replace("jsonl", "parquet"))
    tasks = read_questions(folder / "q.toml")
    assert tasks.problem(tasks.task("test", 0)).truth == str(answer)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_data_may_be_csv_or_parquet(
    folder: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"land": f"Land {n}", "town": f"Town {n}"} for n in range(30)]
    if ending == "csv":
        text = "".join(f"{row['land']},{row['town']}\n" for row in rows)
        (folder / "q.csv").write_text(f"land,town\n{text}")
    else:
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), "q.parquet")
    (folder / "q.toml").write_text(
        f'questions = "q.{ending}"\nquestion = "Capital of {{land}}?"\nanswer = "town"\n'
    )
    assert main(["eval", "q.toml", "--agent", "expert", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["local/q"]["solved"] == 3


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("gam", "mine", "Did you mean 'game'?"),
        ("game", "My Game", "wanted small letters"),
        ("game", "turngym", "name 'turngym': is one of Python, ours or a package's; choose"),
        ("shell", "numpy", "name 'numpy': is one of Python, ours or a package's; choose"),
        ("package", "übung", "name 'übung': wanted small letters, digits and _"),
        ("shell", "json", "name 'json': is one of"),
        ("shell", "class", "name 'class': is one of"),
    ],
)
def test_new_says_what_it_wants(
    folder: Path, kind: str, name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in _error(["new", kind, name], capsys)


def test_new_says_where_it_cannot_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = _error(["new", "game", "mine", "--out", "/proc/none"], capsys)
    assert line.startswith("--out /proc/none: cannot be written to")


def test_questions_that_stand_in_a_corpus_are_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"q": f"Which of the {n} rivers in the valley runs to the north at noon?", "a": str(n)}
            for n in range(8)]  # fmt: skip
    (folder / "rivers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "set.toml").write_text(
        'questions = "rivers.jsonl"\nquestion = "q"\nanswer = "a"\nscorer.type = "exact"\n'
    )
    words = ["check", "task", "set.toml", "--deep", "0", "--against"]
    (folder / "clean.jsonl").write_text('{"text": "Rivers run.", "more": ["to the sea"]}\n')
    assert main([*words, "clean.jsonl"]) == 0
    (folder / "read.jsonl").write_text(
        '{"text": ["so", {"is": ' + json.dumps(rows[3]["q"]) + "}]}\n"
    )
    capsys.readouterr()
    assert main([*words, "read.jsonl"]) == 1
    assert re.search(
        r"set.contamination +fail .*stands in read.jsonl, row 1", capsys.readouterr().out
    )
    assert main([*words, "none.jsonl"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main(["check", "task", "set.toml/test/0", "--against", "clean.jsonl"]) == 2
