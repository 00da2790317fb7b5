"""The doctor tells apart what works, what is missing and what is broken."""

import json
from pathlib import Path

import pytest

from turngym.cli import doctor as doctor_module
from turngym.cli.doctor import Finding
from turngym.cli.main import main


def test_a_module_that_can_be_imported_is_ok_with_its_version() -> None:
    finding = doctor_module._part("train", ["pydantic"], ["sh"])
    assert finding.status == "ok"
    assert finding.detail.startswith("pydantic 2.")
    assert finding.detail.endswith("/sh")
    assert finding.fix is None


def test_a_missing_module_names_the_extra_that_installs_it() -> None:
    finding = doctor_module._part("babyai", ["no_such_engine"])
    assert (finding.status, finding.detail) == ("missing", "no module no_such_engine")
    assert finding.fix == "pip install 'turngym[babyai]'"


def test_a_package_of_several_missing_modules_is_named_once() -> None:
    finding = doctor_module._part("otel", ["no_such_engine.sdk", "no_such_engine.http"])
    assert finding.detail == "no module no_such_engine"


def test_a_missing_program_is_named() -> None:
    finding = doctor_module._part("scienceworld", [], ["no-such-program"])
    assert finding.status == "missing"
    assert finding.fix == "install the program 'no-such-program'"


def test_a_part_that_misses_something_lists_that_alone() -> None:
    finding = doctor_module._part("web", ["pydantic", "no_such_engine"], ["sh"])
    assert (finding.status, finding.detail) == ("missing", "no module no_such_engine")


def test_one_of_several_programs_will_do_and_a_variable_may_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need = "$LAB_BROWSER|no-such-browser|sh"
    assert doctor_module._part("web", [], [need]).detail.endswith("/sh")
    monkeypatch.setenv("LAB_BROWSER", "env")
    assert doctor_module._part("web", [], [need]).detail.endswith("/env")
    finding = doctor_module._part("web", [], ["$NO_SUCH_VARIABLE|no-such-browser"])
    assert (finding.status, finding.detail) == ("missing", "no program no-such-browser")
    assert finding.fix == "install the program 'no-such-browser'"


def test_a_module_that_breaks_on_import_is_broken_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shattered_engine.py").write_text("raise OSError('libfoo.so: not found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    finding = doctor_module._part("alfworld", ["shattered_engine", "no_such_engine"])
    assert finding.status == "broken"
    assert "OSError: libfoo.so: not found" in finding.detail


def test_a_missing_extra_leaves_the_exit_code_at_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = Finding(name="x", status="missing", detail="no module x", fix="pip install x")
    monkeypatch.setattr(doctor_module, "_optional_parts", lambda: [lacking])
    assert main(["doctor"]) == 0
    assert "missing  x     no module x: pip install x" in capsys.readouterr().out


def test_a_broken_core_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor_module, "_optional_parts", list)
    monkeypatch.setattr(doctor_module, "_CORE_ENV", "text/no-such-game")
    assert main(["doctor", "--json"]) == 1
    [core] = json.loads(capsys.readouterr().out)["checks"]
    assert (core["name"], core["status"], core["required"]) == ("core", "broken", True)


def test_what_an_import_prints_does_not_reach_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chatty_engine.py").write_text("print('welcome to the chatty engine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    chatty = lambda: [doctor_module._part("x", ["chatty_engine"])]  # noqa: E731
    monkeypatch.setattr(doctor_module, "_optional_parts", chatty)
    assert main(["doctor", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["checks"][1]["status"] == "ok"
    assert "welcome" in captured.err


def test_a_missing_module_of_a_plug_in_is_no_extra_of_ours() -> None:
    finding = doctor_module._part("lab", ["no_such_engine"], extra=False)
    assert finding.fix == "install the package of 'no_such_engine'"


def test_a_broken_plug_in_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "plug-in 'lab' of lab 1.0 is broken: ImportError: oh"
    monkeypatch.setattr(doctor_module.registry, "broken_plugins", lambda: [line])
    monkeypatch.setattr(doctor_module, "_EXTRAS", {})
    monkeypatch.setattr(doctor_module.registry, "entries", list)
    finding = doctor_module._optional_parts()[-1]
    assert (finding.status, finding.detail) == ("broken", line)


def test_that_no_back_end_is_strong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for detail, is_said in (
        ("standard isolation; memory exact", True),
        ("strong isolation", False),
    ):
        found = Finding(name="sandbox x", status="ok", detail=detail)
        monkeypatch.setattr(doctor_module, "_sandbox", lambda name, found=found: found)
        names = [finding.name for finding in doctor_module._sandboxes()]
        assert ("sandbox of strong isolation" in names) is is_said
