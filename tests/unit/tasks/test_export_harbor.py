"""Tasks as folders in Harbor's format: what is written, and how the program that judges decides."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path
from random import Random

import pytest

from turngym.errors import ConfigError
from turngym.tasks.base import SPLITS
from turngym.tasks.check.form import check_form
from turngym.tasks.harbor.folders import harbor_tasks
from turngym.tasks.harbor.problem import HarborProblem
from turngym.tasks.interop import harbor_judge
from turngym.tasks.interop.harbor import export_harbor
from turngym.tasks.problem import FileProblem, FileWorld
from turngym.tasks.sets import GeneratedSet, ListedSet
from turngym.tasks.shell import GENERATORS, GROUPS, shell_tasks
from turngym.tasks.shell.words import EndState


def exported(kind: str, out: Path) -> Path:
    tasks = shell_tasks(kind=kind)
    return export_harbor(tasks, tasks.task("test", 0), out)


@pytest.mark.parametrize("kind", [kinds[0] for kinds in GROUPS.values()])
def test_a_problem_is_a_folder_that_is_read_back_and_that_lint_has_nothing_against(
    kind: str, tmp_path: Path
) -> None:
    folder = exported(kind, tmp_path)
    problem = HarborProblem(folder=folder)
    assert shell_tasks(kind=kind).problem(shell_tasks(kind=kind).task("test", 0)).prompt in (
        problem.prompt
    )
    assert problem.is_separate
    assert problem.config.task is not None
    assert problem.config.task.name == f"turngym/shell-{kind}-test-0"
    assert not check_form(folder).failures


def test_folders_keep_the_split_that_they_came_from(tmp_path: Path) -> None:
    tasks = shell_tasks()
    for index in range(4):
        export_harbor(tasks, tasks.task("train", index), tmp_path)
        export_harbor(tasks, tasks.task("test", index), tmp_path)
    found = harbor_tasks(tmp_path)
    for split in SPLITS:
        assert len(found.ids[split]) == 4
        assert all(f"-{split}-" in id for id in found.ids[split])
    with pytest.raises(ConfigError, match="there is none; the set has 4 of 'train', 4 of 'test'"):
        found.task("test", 4)


def test_a_prompt_may_hold_any_letter(tmp_path: Path) -> None:
    asked = EndState(prompt='Write "🙂" für ü into a.txt.', wanted={"a.txt": "🙂"}, solution="true")
    tasks = ListedSet("smile", [("one", asked)])
    problem = HarborProblem(folder=export_harbor(tasks, tasks.task("test", 0), tmp_path))
    assert problem.config.task is not None
    assert problem.config.task.description == asked.prompt


def test_a_folder_is_not_written_once_more(tmp_path: Path) -> None:
    folder = exported(next(iter(GENERATORS)), tmp_path)
    tasks = harbor_tasks(folder)
    with pytest.raises(ConfigError, match=f"is a folder in Harbor's format already, {folder}"):
        export_harbor(tasks, tasks.task("test", 0), tmp_path / "again")


class Judged:
    """A workspace on this machine, and the program that judges it there."""

    def __init__(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.logs, self.agent = (tmp_path / name for name in ("w", "logs", "agent"))
        monkeypatch.setattr(harbor_judge, "HERE", folder / "tests")
        monkeypatch.setattr(harbor_judge, "WORKSPACE", self.place)
        monkeypatch.setattr(harbor_judge, "LOGS", self.logs)
        task = json.loads((folder / "tests/task.json").read_text())
        self.agent.mkdir()
        for path, text in task["files"].items():
            (self.agent / path).parent.mkdir(parents=True, exist_ok=True)
            (self.agent / path).write_text(text)

    def do(self, script: str) -> None:
        subprocess.run(["bash", "-c", script], cwd=self.agent, check=True)

    def pack(self) -> None:
        (self.logs / "artifacts").mkdir(parents=True, exist_ok=True)
        with tarfile.open(self.logs / "artifacts/workspace.tar", "w") as archive:
            archive.add(self.agent, ".")

    def reward(self) -> float:
        self.pack()
        harbor_judge.main()
        return float((self.logs / "verifier/reward.txt").read_text())


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    return Judged(exported("count_status", tmp_path / "out"), tmp_path, monkeypatch)


def solution() -> str:
    tasks = shell_tasks(kind="count_status")
    return tasks.problem(tasks.task("test", 0)).solution


def test_what_was_asked_is_1_and_what_was_not_is_0(judged: Judged) -> None:
    assert judged.reward() == 0
    judged.do(solution())
    assert judged.reward() == 1
    judged.do("echo more >> access.log")
    assert judged.reward() == 0, "another file was changed"


def test_a_file_that_should_not_be_there_loses(judged: Judged) -> None:
    judged.do(f"{solution()}; touch left-over")
    assert judged.reward() == 0


def test_a_second_name_of_a_file_is_a_file_that_should_not_be_there(judged: Judged) -> None:
    judged.do(f"{solution()}; ln answer.txt left-over")
    assert judged.reward() == 0


def test_a_link_is_no_file(judged: Judged, tmp_path: Path) -> None:
    judged.do(f"{solution()}; mv answer.txt ../answer; ln -s ../answer answer.txt")
    assert judged.reward() == 0


def test_nothing_is_unpacked_outside_of_the_workspace(judged: Judged, tmp_path: Path) -> None:
    judged.do(solution())
    judged.pack()
    with tarfile.open(judged.logs / "artifacts/workspace.tar", "a") as archive:
        for name in ("../outside", "/outside", "a/../../outside"):
            archive.addfile(tarfile.TarInfo(name))
    harbor_judge.main()
    assert not (tmp_path / "outside").exists()
    assert (judged.logs / "verifier/reward.txt").read_text() == "1\n"


def test_a_workspace_that_was_not_handed_over_is_no_0(judged: Judged) -> None:
    with pytest.raises(FileNotFoundError):
        harbor_judge.main()
    assert not (judged.logs / "verifier").exists()


def test_a_probe_runs_what_the_agent_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged(exported("write_filter", tmp_path / "out"), tmp_path, monkeypatch)
    tasks = shell_tasks(kind="write_filter")
    judged.do(tasks.problem(tasks.task("test", 0)).solution)
    assert judged.reward() == 1
    judged.do("sed -i 's/==/!=/' *.sh")
    assert judged.reward() == 0


class Program(FileProblem):
    prompt = "Anything."

    async def judge(self, world: FileWorld) -> float:
        return 1.0

    def expert(self) -> list[str]:
        return ["true"]


def test_what_a_folder_cannot_say_is_refused_by_name(tmp_path: Path) -> None:
    tasks = GeneratedSet("program", [lambda rng: Program()], one_in=1)
    with pytest.raises(ConfigError, match=r"task program/test/0: is a Program, whose judge"):
        export_harbor(tasks, tasks.task("test", 0), tmp_path)
    assert not list(tmp_path.iterdir())
    exported("sum_column", tmp_path)
    with pytest.raises(ConfigError, match="is there already"):
        exported("sum_column", tmp_path)
    assert GENERATORS["sum_column"](Random(0)).prompt


def test_a_folder_that_does_not_exist_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"folder '.*nowhere': does not exist; give one with a"):
        harbor_tasks(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no task; add one"):
        harbor_tasks(tmp_path)


def test_environments_of_a_folder_share_what_was_read_until_it_changes(tmp_path, monkeypatch):
    tasks = shell_tasks("files")
    folder = export_harbor(tasks, tasks.task("test", 0), tmp_path)

    def only():
        (problem,) = harbor_tasks(tmp_path).problems.values()
        return problem

    first = only()
    assert only() is first
    (folder / "instruction.md").write_text("Another.", encoding="utf-8")
    second = only()
    assert (second is first, second.prompt) == (False, "Another.")
    monkeypatch.setenv("TURNGYM_TEST", "x")  # task.toml may name it
    assert only() is not second
