"""``turngym serve`` as a user starts it."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import server, turngym
from helpers.models import model, tokenizer
from turngym.agents.engine.models import save_model_dir
from turngym.cli.main import main
from turngym.cli.serve import _engine_model
from turngym.reports.export import find_recorded

pytestmark = pytest.mark.extra("openai", "starlette", "uvicorn")


def post(url: str, body: Any, key: str = "x") -> Any:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=900) as answer:
        return json.load(answer)


def test_an_agent_is_recorded_from_two_commands(tmp_path: Path) -> None:
    save_model_dir(model(), tokenizer(), tmp_path / "a model")
    policy = ("policy", f"hf:{tmp_path / 'a model'}", "--name", "tiny", "--port", "0")
    with server(*policy, "--context", "256") as (_, served):
        assert served["model"] == "tiny"
        gateway = ("gateway", "--upstream", served["url"], "--model", "tiny", "--port", "0")
        out = tmp_path / "out"
        with server(*gateway, "--out", str(out)) as (process, told):
            body = {
                "model": "any",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": "go"}],
            }
            answer = post(f"{told['url']}/chat/completions", body)
            assert answer["usage"]["completion_tokens"] <= 4
            assert "token_ids" not in answer["choices"][0]
        assert process.returncode == 0
    lines = (out / "trajectories.jsonl").read_text().splitlines()
    (turn,) = json.loads(lines[1])["turns"]
    assert [span["sampled"] for span in turn["spans"]] == [False, True]
    assert told["control_key"] not in (out / "trajectories.jsonl").read_text()


def test_who_may_call_and_how_much_are_options(tmp_path: Path) -> None:
    gateway = ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", str(tmp_path))
    options = ("--port", "0", "--allow-host", "box.lab", "--max-body-mib", "1")
    with server(*gateway, *options) as (_, told):
        url = f"{told['url'].removesuffix('/v1')}/episodes"
        for host, size, status in (("box.lab", 9, 200), ("evil", 9, 403), ("box.lab", 2**20, 413)):
            headers = {"content-type": "application/json", "host": host}
            headers["authorization"] = f"Bearer {told['control_key']}"
            body = json.dumps({"task": "x" * size}).encode()
            assert status_of(urllib.request.Request(url, body, headers)) == status


@pytest.mark.extra("mcp")
def test_an_environment_s_options_are_recorded_and_its_replay_has_them(tmp_path: Path) -> None:
    gateway = ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", str(tmp_path))
    options = ("--env", "text/maze", "--env-option", "max_turns=3", "--port", "0")
    with server(*gateway, *options) as (_, told):
        url = f"{told['url'].removesuffix('/v1')}/episodes"
        opened = post(url, {}, key=told["control_key"])
        post(f"{url}/{opened['episode']}/end", {"score": 0.5}, key=told["control_key"])
    (row,) = map(json.loads, (tmp_path / "trajectories.jsonl").read_text().splitlines()[1:])
    assert row["metadata"]["env_options"] == {"max_turns": 3}
    assert find_recorded(tmp_path, 0).options == {"max_turns": 3}


def test_a_context_that_the_model_has_not_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model_dir(model(), tokenizer(), tmp_path)
    found = _engine_model(f"hf:{tmp_path}", 99_999)
    said = f"--context 99999: the model reads {found.engine.context} tokens at most\n"
    assert capsys.readouterr().err == said


def test_a_server_of_vllm_gets_the_context_that_its_model_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    for more, said in (((), ""), (("--context", "9000"), "the model reads 512 tokens at most")):
        main(["serve", "engine", str(tmp_path), "--weights", str(tmp_path), "--print", *more])
        found = capsys.readouterr()
        assert "--max-model-len 512" in found.out
        assert said in found.err


def test_a_port_that_is_taken_is_said_before_vllm_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wanted = ("--weights", str(tmp_path), "--python", "/bin/false", "--port", port)
        found = turngym("serve", "engine", str(tmp_path), *wanted)
    assert found.returncode == 2
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use" in found.stderr


def test_a_folder_of_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    gateway = ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", str(tmp_path))
    found = turngym("serve", *gateway)
    assert found.returncode == 2
    assert "holds an evaluation or a run; wanted a folder of its own" in found.stderr


def status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=900) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("policy", "gpt"), "model 'gpt': wanted hf:NAME_OR_PATH or run:FOLDER"),
        (("policy", "hf:x", "--key-env", "NO_SUCH_KEY"), "--key-env NO_SUCH_KEY: the variable"),
        (("policy", "hf:x", "--host", "192.0.2.1"), "cannot listen at 192.0.2.1:8000"),
        (
            ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", "o", "--env", "maz"),
            "unknown environment 'maz'",
        ),
        (
            ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", "o", "--tokens", "1"),
            "unknown value of --tokens '1'",
        ),
        *(
            (
                ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", "o", *more),
                "serve gateway: --split, --seed and --env-option are of the environment: wanted",
            )
            for more in (("--split", "test"), ("--seed", "0"), ("--env-option", "a=1"))
        ),
        (("openenv", "text/maze", "--env-option", "speed=1"), "unknown option of text/maze 'speed"),
    ],
)
def test_bad_settings_are_one_line(arguments: tuple[str, ...], line: str, tmp_path: Path) -> None:
    found = turngym("serve", *arguments, cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {line}")
    assert len(found.stderr.splitlines()) == 1


def test_missing_extra_is_one_line(tmp_path: Path) -> None:
    gateway = ("gateway", "--upstream", "http://x/v1", "--model", "m", "--out", "o")
    found = turngym("serve", *gateway, cwd=tmp_path, hide=["openai"])
    assert found.returncode == 2
    assert "pip install 'turngym[serve]'" in found.stderr
