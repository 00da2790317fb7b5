import json
import subprocess
from types import SimpleNamespace

import pytest

from turngym.environments.swe.instances import (
    Instance,
    _layout,
    as_instance,
    read_instances,
    write_predictions,
)
from turngym.environments.swe.patches import apply_diff
from turngym.environments.swe.records import (
    STYLES,
    TaskFile,
    broken_files,
    leaks,
    problem_statement,
)
from turngym.environments.swe.tasksets import open_tasks, sample_project
from turngym.errors import ConfigError
from turngym.tasks.harbor.problem import HarborProblem
from turngym.tasks.interop.harbor import export_harbor

FILE = open_tasks("sample").files[0]
ROW = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "base_commit": "c0ffee",
    "problem_statement": "It fails.",
    "patch": "--- a\n",
    "test_patch": "",
    "FAIL_TO_PASS": '["t.py::a"]',
    "PASS_TO_PASS": ["t.py::b"],
    "version": "1.0",
    "image_name": "img:1",
    "hints_text": "none",
    "created_at": "2020",
}


def test_an_instance_comes_back_as_it_went():
    one = Instance.from_json(ROW)
    assert one.fail_to_pass == ("t.py::a",)
    assert one.more == {"hints_text": "none", "created_at": "2020"}
    assert Instance.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"patch": None}, "column 'patch' is missing"),
        ({"FAIL_TO_PASS": "no list"}, "FAIL_TO_PASS: wanted a list"),
        ({"PASS_TO_PASS": "[1]"}, "PASS_TO_PASS: wanted a list"),
    ],
)
def test_a_row_that_is_no_instance_is_told_why_and_where(change, reason, tmp_path):
    row = {name: value for name, value in {**ROW, **change}.items() if value is not None}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=f"row 2: .*{reason}"):
        read_instances(path)


def test_our_tasks_are_instances_whose_patch_repairs():
    project = sample_project()
    for record in FILE.tasks[:5]:
        one = as_instance(FILE, record, project)
        broken = broken_files(project, record)
        repaired = apply_diff(one.patch, {**project.files, **broken})
        assert repaired == {path: project.files[path] for path in broken}
        assert Instance.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_predictions_are_lines_of_three_columns(tmp_path):
    path = tmp_path / "predictions.jsonl"
    assert write_predictions(path, "me", [("a", "diff"), ("b", "")]) == 2
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0] == {"instance_id": "a", "model_name_or_path": "me", "model_patch": "diff"}


def test_our_tasks_are_harbor_folders_that_hide_what_they_must(tmp_path):
    tasks = open_tasks("sample")
    task = tasks.task("test", 0)
    folder = export_harbor(tasks, task, tmp_path)
    problem, hidden = HarborProblem(folder=folder), tasks.problem(task).record.hidden
    assert problem.is_separate
    assert problem.machine.needs_pytest
    assert "ids.txt" in problem.tests
    shown = "".join(f.read_text() for f in (folder / "environment").rglob("*") if f.is_file())
    assert hidden
    assert all(f"def {name}(" not in shown for name in hidden)


def test_a_file_of_tasks_comes_back_as_it_went(tmp_path):
    FILE.write(tmp_path / "tally.json")
    assert TaskFile.read(tmp_path / "tally.json") == FILE
    (tmp_path / "bad.json").write_text('{"format": 9}')
    with pytest.raises(ConfigError, match="task format 1"):
        TaskFile.read(tmp_path / "bad.json")


@pytest.mark.parametrize("style", STYLES)
def test_no_statement_holds_the_repair(style):
    project = sample_project()
    for record in FILE.tasks:
        text = problem_statement(record, "tally", "1.0", style)
        broken = {p: d.decode() for p, d in broken_files(project, record).items()}
        repaired = {path: project.files[path].decode() for path in broken}
        assert leaks(text, broken, repaired) == []
        assert "tally" in text


def test_a_statement_that_holds_the_repair_is_found_out():
    before, after = {"a.py": "x = 1\n"}, {"a.py": "result = compute(x, 1)\n"}
    assert leaks("Write result=compute(x,1) there", before, after) == ["result = compute(x, 1)"]


async def test_names_with_blanks_in_a_repository_are_one_file_each(tmp_path):
    for path in ("shop/__init__.py", "doc/of src/a.py", "a test/test_a.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    async def run(command, **options):
        done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=True)
        return SimpleNamespace(stdout=done.stdout)

    layout = await _layout(SimpleNamespace(exec=run), {"a test/test_a.py"})
    assert (layout.roots, layout.packages) == ((".",), ("shop",))
    assert layout.tests == ("a test/test_a.py",)
