"""What the pages name is there: links, commands, options, settings, defaults, checks."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from turngym import registry
from turngym.cli.main import program
from turngym.config import StrictModel, _models, load_config
from turngym.environments.swe.operators import OPERATORS
from turngym.environments.swe.tasksets import open_tasks
from turngym.rollouts.simulation.simulate import Scenario
from turngym.sandbox.checks.check import ATTACKS, PROMISES
from turngym.trainers.settings.train import TrainConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FREE = ("options", "settings", "extra", "kwargs")
"""Ends of settings below which a user's own names stand."""


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [block for page in PAGES for block in pattern.findall(page.read_text("utf-8"))]


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def words(page: Path) -> list[str]:
    """Return what stands between backticks in a line."""
    return re.findall(r"`([^`\n]+)`", prose(page))


@cache
def commands() -> list[list[str]]:
    """Return the words of each command of ours, in blocks and in a line, after ``turngym``."""
    texts = [text for page in PAGES for text in words(page)]
    for page in PAGES:
        texts += page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    ours = re.compile(r"[\s$]*(?:[A-Z_]+=\S+ )*turngym ((?:(?! # | > | \| ).)*)")
    found = [match[1].strip() for match in map(ours.match, texts) if match]
    return [shlex.split(line, comments=True) for line in found]


def anchors(page: Path) -> set[str]:
    """Return the names of the headings, as GitHub makes them."""
    headings = [heading.lower() for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings}


@cache
def settings() -> set[str]:
    """Return the path of every setting of a run, whichever variant has it."""
    found: set[str] = set()

    def walk(model: type[StrictModel], path: str, above: tuple[type[StrictModel], ...]) -> None:
        for name, field in model.model_fields.items():
            found.add(f"{path}{name}")
            for inner in set(_models(field.annotation)) - set(above):
                walk(inner, f"{path}{name}.", (*above, inner))

    walk(TrainConfig, "", (TrainConfig,))
    return found


def is_setting(name: str) -> bool:
    path = ".".join(part for part in name.split(".") if not part.isdigit())
    free = any(path.startswith(f"{one}.") for one in settings() if one.endswith(FREE))
    return path in settings() or free


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
            if not link.startswith("http"):
                name, _, anchor = link.partition("#")
                there = page.parent / name if name else page
                assert there.exists(), link
                assert not anchor or anchor in anchors(there), link


def test_every_command_and_option_is_there() -> None:
    assert len(commands()) > 200
    ours: Any = typer.main.get_command(program())
    for line in commands():
        command, rest = ours, list(line)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        assert not hasattr(command, "commands") or not rest or not rest[0].isalpha(), line
        options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        named = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert named <= {*options, "--help"}, line


def test_every_setting_is_there() -> None:
    texts = [text for page in PAGES for text in words(page)]
    texts += [" ".join(line) for line in commands() if line[:1] == ["train"]]
    for text in texts:
        for name in re.findall(r"(?<![\w/.:-])([a-z_]+(?:\.[a-z_0-9]+)+)(?==|$|[ ,)])", text):
            block, _, end = name.partition(".")
            if block in TrainConfig.model_fields and end not in ("json", "py", "toml"):
                assert is_setting(name), name


def test_settings_of_a_command_fit_together() -> None:
    for line in commands():
        if line[:2] in (["train", "demo"], ["plan", "demo"], ["launch", "demo"]):
            found = [word for word in line[1:] if "=" in word and not word.startswith("--")]
            if not re.search(r"\.toml|\.\.\.|NAME", " ".join(line)):
                load_config(TrainConfig, ["demo", *found])


@pytest.mark.parametrize("page", ["gpu", "training"])
def test_defaults_are_those_of_the_code(page: str) -> None:
    runs = [
        load_config(TrainConfig, ["demo", "algo.teacher=FOLDER", f"engine.type={type}"])
        for type in ("local", "vllm")
    ]
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    prefix, compared = None, 0
    for names, said in re.findall(r"^\| (.*?) \| (.*?) \|", text, re.MULTILINE):
        if said == "default":
            prefix = names.strip("`") if names.startswith("`") else ""
        elif not names.startswith(("`", "---")):
            prefix = None
        elif prefix is not None and re.match(r"`|\d", said):
            first, *others = re.findall(r"`([^`=]+)[^`]*`", names)
            paths = [prefix + first, *(first.rpartition(".")[0] + other for other in others)]
            for path, value in zip(paths, said.replace("`", "").split(", "), strict=True):
                assert value in [default(run, path) for run in runs], path
                compared += 1
    assert compared >= 2


def default(config: Any, path: str) -> str | None:
    """Return a setting as the pages write it; None where there is none."""
    for part in path.split("."):
        config = getattr(config, part, None)
    return str(config).lower().removesuffix(".0")


def test_blocks_use_what_they_import_or_define(tmp_path: Path) -> None:
    for number, block in enumerate(blocks("python")):
        (tmp_path / f"{number}.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--quiet"]
    command += ["--select=F821", "--output-format=json", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    unknown = {one["message"].split("`")[1] for one in json.loads(done.stdout)}
    trainer = {"policy", "selection", "config", "env_id", "make_env", "folder", "step", "update"}
    trainer |= {"put_weights_into_the_engine", "saved_a_checkpoint"}
    assert unknown == trainer  # of the reader's own, on the page of the scheduler


def test_blocks_of_settings_are_read() -> None:
    for block in blocks("toml"):
        tomllib.loads(block)
    [scenario] = [block for block in blocks("toml") if block.startswith("# scenario.toml")]
    assert load_config(Scenario, [tomllib.loads(scenario)]).profile.raise_share > 0


def test_pages_count_what_there_is() -> None:
    names = [entry.short_name for entry in registry.entries()]
    mini, web, phone, desktop, points = (
        len([name for name in names if name.startswith(start)])
        for start in ("web/miniwob-", "web/", "phone/", "desktop/", "desktop/grounding-")
    )
    screens = f"{desktop - points} kinds of desktop tasks, {phone} of phone tasks, {points} ground"
    bugs = open_tasks("shipped").files
    for page, text in (
        ("README.md", f"MiniWoB++ ({mini} tasks)"),
        ("README.md", f"a wiki ({web - mini} kinds of tasks)"),
        ("README.md", screens),
        (
            "README.md",
            f"{sum(len(one.tasks) for one in bugs)} tasks over {len(bugs)} released projects",
        ),
        ("docs/security.md", f"{len(PROMISES)} promises and {len(ATTACKS)} attacks"),
        ("docs/swe.md", f"one of {len(OPERATORS) - 1}\noperators"),  # and one that empties
    ):
        assert text in (ROOT / page).read_text(encoding="utf-8"), text


def test_the_page_on_soundness_has_every_check() -> None:
    source = "".join(
        path.read_text("utf-8") for path in (ROOT / "src/turngym/tasks/check").rglob("*.py")
    )
    kinds = "semantic|runtime|statistical|mutation|set|portability"
    checks = set(re.findall(rf'"((?:{kinds})\.[a-z_]+)"', source))
    assert len(checks) > 20
    assert checks == {one for one in words(ROOT / "docs/soundness.md") if one in checks}


def test_every_number_of_a_run_is_explained_and_no_other():
    rooms = ("train", "rollout", "credit", "selection", "mismatch", "engine", "warm_start", "lag")
    logged = re.compile(rf'"((?:{"|".join(rooms)})/[^"\s]+)"')
    found = set()
    for path in (ROOT / "src" / "turngym").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= {re.sub(r"{[^}]*}", "X", name) for name in logged.findall(text)}
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+/[^`*\s]+)`", page))
    assert len(found) > 70
    assert not [name for name in found if not any(are_alike(name, other) for other in named)]
    composed = ("validation/", "held_out/", "warm_start/success", "sched/", "rollout/success/")
    mine = [name for name in named if not name.startswith(composed)]
    assert not [name for name in mine if not any(are_alike(name, other) for other in found)]


def are_alike(one: str, other: str) -> bool:
    """Say whether two names are one, where capitals stand for some part of it."""
    one, other = (re.sub(r"[A-Z]+", "*", name) for name in (one, other))
    return fnmatch(one, other) or fnmatch(other, one)
