"""SWE tasks on the command line: what is refused, what goes on, what is played whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from helpers.cli import COMMAND, SOURCE
from helpers.cli import turngym as run
from turngym.environments.swe.tasksets import sample_project

pytestmark = [pytest.mark.extra("bwrap"), pytest.mark.timeout(1200)]


def test_a_project_that_makes_no_tasks_is_one_line(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "shop.py").write_text("x = 1\n")
    for place, reason in (("plain", "no tests found"), ("missing", "no such folder")):
        done = run("tasks", "make-swe", str(tmp_path / place), "--out", str(tmp_path / "out"))
        assert done.returncode == 2
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_set_with_fewer_tasks_than_were_asked_for_is_played_whole():
    done = run("eval", "swe/bugs-sample", "--agent", "noop", "--episodes", "99", "--json")
    found = json.loads(done.stdout)["swe/bugs-sample"]
    assert (found["episodes"], found["solved"], found["faults"]) == (7, 0, 0)
    assert "split 'test' has 7 tasks" in done.stderr


def test_tasks_are_checked_in_short():
    done = run("check", "task", "swe/bugs-sample", "--episodes", "1", "--deep", "0", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (0, True)
    between, every = found["reports"]
    assert [one["name"] for one in every["results"]] == [
        "bugs-sample/train/0", "bugs-sample/test/0",
    ]  # fmt: skip
    assert between["results"][1]["evidence"] == {"ids": 2}


def test_one_task_is_checked_alone_and_in_depth(tmp_path):
    page = tmp_path / "report.html"
    done = run("check", "task", "text/wordle/test/1", "--json", "--page", str(page))
    found = json.loads(done.stdout)
    [report] = found["reports"]
    assert (done.returncode, found["ok"], report["subject"]) == (0, True, "wordle-easy/test/1")
    status = {one["name"]: one["status"] for one in report["results"]}
    assert status["semantic.verifier_portability"] == status["portability.clock"] == "pass"
    assert status["runtime.oracle_containment"] == "not-run"
    text = page.read_text()
    assert "wordle-easy/test/1" in text
    assert "NOT RUN" in text
    assert "<script" not in text


def test_ctrl_c_ends_the_factory_and_what_it_made_is_kept(tmp_path):
    place, out = tmp_path / "tally", tmp_path / "out"
    place.mkdir()
    sample_project().write(place)
    made = subprocess.Popen(
        [*COMMAND, "tasks", "make-swe", str(place), "--out", str(out), "--count", "90"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (out / "tally.json").exists() and made.poll() is None:
        time.sleep(0.1)
    made.send_signal(signal.SIGINT)
    _, told = made.communicate(timeout=600)
    assert made.returncode == 130
    assert told.splitlines()[-1].endswith("interrupted; the same command goes on with it")
    assert len(json.loads((out / "tally.json").read_text())["tasks"]) >= 1
