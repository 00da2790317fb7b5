"""Every promise and every attack, for every back end that can run here.

As root, bubblewrap is checked as root and as a plain user. Docker and Podman need real engines:
`make sandboxes` installs, starts and checks them.
"""

import json
import os
import subprocess
import sys

import pytest

from helpers import plain_user
from turngym.sandbox.attack_checks import CHECKS as ATTACKS
from turngym.sandbox.checks import check_sandbox
from turngym.sandbox.conformance_checks import CHECKS as PROMISES
from turngym.sandbox.unsafe_local import RISK

NEVER_LOCAL = {
    "a mount can be read and not written",
    "attack: a full disk is full at the limit",
    "attack: empty files stop at the limit",
    "attack: a grade is not changed by what was planted",
    "attack: a snapshot of exabytes of nothing is quick and small",
}
"""It has no mounts, and the disk it would fill is the host's."""


@pytest.mark.extra("bwrap")
def test_bubblewrap_keeps_every_promise_and_withstands_every_attack() -> None:
    report = check_sandbox("bubblewrap")
    report.raise_on_failure()
    assert [result.status for result in report.results] == ["pass"] * (1 + len(PROMISES + ATTACKS))


@pytest.mark.extra("bwrap", "setpriv", "unshare")
@pytest.mark.skipif(os.geteuid() != 0, reason="as a plain user the test above is this one")
def test_bubblewrap_of_a_plain_user_keeps_every_promise_too(tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    argv = [sys.executable, "-m", "turngym.cli", "check", "sandbox", "bubblewrap", "--json"]
    run = subprocess.run(plain_user.command(argv), capture_output=True, text=True, check=False)
    assert run.stdout, run.stderr
    [report] = json.loads(run.stdout)["reports"]
    assert {r["name"]: r["reason"] for r in report["results"] if r["status"] != "pass"} == {}
    assert len(report["results"]) == 1 + len(PROMISES + ATTACKS)
    assert run.returncode == 0


def test_every_attack_gets_through_where_nothing_isolates() -> None:
    report = check_sandbox("unsafe-local", accept_risk=RISK)
    failed = [str(result) for result in report.results if result.status == "fail"]
    assert failed == []
    assert {result.name for result in report.results if result.status == "not-run"} == NEVER_LOCAL
    assert not report.is_ok, "what did not run must not count as passed"


@pytest.mark.skipif("TURNGYM_ENGINES_RUN" not in os.environ, reason="make sandboxes")
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_real_engine_keeps_every_promise_and_withstands_every_attack(engine: str) -> None:
    socket = json.loads(os.environ["TURNGYM_ENGINES_RUN"])[engine]
    report = check_sandbox("docker", base_url=socket)
    report.raise_on_failure()
    assert len(report.results) == 1 + len(PROMISES + ATTACKS)
