"""SWE-bench instances in their own images, through a real engine: ``PART=sandboxes`` starts one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from turngym.environments.swe.env import InstanceEnv
from turngym.environments.swe.instances import Instance, as_instance
from turngym.environments.swe.packages import packages_folder
from turngym.environments.swe.patches import diff_text
from turngym.environments.swe.records import broken_files
from turngym.environments.swe.tasksets import open_tasks, sample_project
from turngym.environments.workspace.host import Delta
from turngym.errors import ConfigError, SandboxRefused

REPOSITORY = "localhost/turngym-instance"
PYTEST = ("pytest", "py.py", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
PACKAGES = "usr/local/lib/python3.11/dist-packages"
needs_engine = pytest.mark.skipif("TURNGYM_ENGINES_RUN" not in os.environ, reason="PART=sandboxes")


def test_a_file_that_holds_no_playable_instance_is_told_why(tmp_path):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(ConfigError, match="there is no such file"):
        InstanceEnv(instances=str(path))
    path.write_text("\n")
    with pytest.raises(ConfigError, match="holds no task"):
        InstanceEnv(instances=str(path))
    path.write_text(json.dumps(instance().to_json()) + "\n")
    with pytest.raises(ConfigError, match="names no image"):
        InstanceEnv(instances=str(path))


@needs_engine
async def test_an_instance_is_resolved_by_its_patch_alone(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    image = built_image(monkeypatch, tmp_path)
    rows.write_text(json.dumps({**instance().to_json(), "image_name": image}) + "\n")
    env = InstanceEnv(instances=str(rows), folder="/testbed", tests_timeout_s=120.0)
    try:
        observation, _ = await env.reset(seed=0)
        assert "tally" in observation["text"]
        listed, *_ = await env.step(
            "bash ls; git log --all --format=%s; git fsck --unreachable; ls -ld /testbed"
        )
        assert "src" in listed["text"]
        assert "broken" in listed["text"]
        assert "mended" not in listed["text"]
        assert "unreachable" not in listed["text"]
        assert "/testbed -> /workspace" in listed["text"]
        assert await score(env, ["submit"]) == 0.0
        assert await score(env, [cheat(), "submit"]) == 0.0
        turns = 0
        await env.reset(seed=0)
        while (action := env.expert_action()) != "submit":
            await env.step(action)
            turns += 1
        [child] = await env.fork(1)
        _, reward, _, _, info = await env.step("submit")
        assert (turns >= 1, reward, info["problem"]) == (True, 1.0, "")
        assert (await child.step("submit"))[1] == 1.0
        await child.close()
    finally:
        await env.close()


@needs_engine
async def test_an_image_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine())
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({**instance().to_json(), "image_name": "no/such:image"}) + "\n")
    env = InstanceEnv(instances=str(rows))
    with pytest.raises(SandboxRefused, match="unknown image"):
        await env.reset(seed=0)
    await env.close()


def engine() -> str:
    return str(json.loads(os.environ["TURNGYM_ENGINES_RUN"])["docker"])


def instance() -> Instance:
    """Return a task of the sample, with the tests that judge in its test patch."""
    file = open_tasks("sample").files[0]
    project, record = sample_project(), file.tasks[0]
    tests = {p: d for p, d in project.files.items() if file.layout.is_test(p)}
    one = as_instance(file, record, project)
    return Instance(**{**one.__dict__, "test_patch": diff_text(tests, {})})


def cheat() -> str:
    """Return a call that makes every test look passed."""
    code = "import _pytest.python as p; p.Function.runtest = lambda self: None"
    return f"bash printf '%s\\n' '{code}' >> src/tally/__init__.py"


async def score(env: InstanceEnv, actions: list[str]) -> float:
    await env.reset(seed=0)
    for action in actions:
        _, reward, *_ = await env.step(action)
    return float(reward)


def built_image(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> str:
    """Return an image of this machine's packages, pytest, and the broken sample without tests."""
    docker = pytest.importorskip("docker")
    from turngym.sandbox.backends.docker_engine import commit_with, prepared

    monkeypatch.setenv("DOCKER_HOST", engine())
    client = docker.DockerClient(base_url=engine(), timeout=900)
    file = open_tasks("sample").files[0]
    project = sample_project()
    files = {**project.files, **broken_files(project, file.tasks[0])}
    files = {p: d for p, d in files.items() if not file.layout.is_test(p)}
    repository(scratch / "testbed", broken=files, mended=project.files)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(scratch / "testbed", arcname="testbed")
        for entry in packages_folder().iterdir():
            if entry.name.partition("-")[0] in PYTEST:
                archive.add(entry, arcname=f"{PACKAGES}/{entry.name}")
    name = f"{REPOSITORY}:sample"
    made = commit_with(client, prepared(client, "host"), {"/": data.getvalue()})
    client.images.get(made).tag(REPOSITORY, "sample")
    client.close()
    return name


def repository(folder: Path, *, broken: Delta, mended: Delta) -> None:
    """Make a git repository at the broken commit, with a later one that mends it."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    folder.mkdir()
    git("init", "-q", "-b", "main")
    for message, files in (("broken", broken), ("mended", mended)):
        for path, text in files.items():
            if text is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(text)
        git("add", ".")
        git("commit", "-q", "-m", message)
    git("tag", "later")
    git("reset", "-q", "--hard", "HEAD~1")
