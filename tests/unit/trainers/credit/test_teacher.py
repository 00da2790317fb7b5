"""On-policy distillation: what a teacher adds to advantages, here, from a folder and a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from helpers import models
from helpers.cli import TINY_RUN
from helpers.credit import algo
from helpers.critics import context
from helpers.fake_server import Asked, FakeServer, fake_server, refuse, send_json
from helpers.trajectories import episode, group, turn
from turngym.agents.engine.config import TinyModelConfig
from turngym.agents.engine.models import build_tiny_model, save_model_dir
from turngym.cli.main import main
from turngym.errors import TrainingError
from turngym.trainers.credit.base import Credit
from turngym.trainers.credit.controls import build_credit
from turngym.trainers.credit.teacher import to_go
from turngym.trainers.metrics import read_metrics
from turngym.trainers.settings.algo import AlgoConfig
from turngym.types import TrajectoryGroup

FIRST = turn(1.0, prompt=(10, 11), drawn=(12, 13, 3), logprob=-1.25)
LATER = turn(0.0, prompt=(14,), drawn=(15, 3), logprob=-0.5)
ANEW = turn(0.0, prompt=(16, 17), drawn=(18,), logprob=-2.0, starts_segment=True)
PLAYED = group(episode([FIRST, LATER, ANEW]), episode([LATER], member=1))
SHAPE = TinyModelConfig(hidden=32, layers=1, heads=2, context=256)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    save_model_dir(build_tiny_model(SHAPE, models.tokenizer(), seed=9), models.tokenizer(), folder)
    return folder


def taught(teacher: Any, preset: str = "opd", **settings: Any) -> AlgoConfig:
    made = algo(preset)
    where = teacher if isinstance(teacher, dict) else {"model": str(teacher)}
    return AlgoConfig.model_validate({**made.model_dump(), "teacher": {**where, **settings}})


async def credit_of(settings: AlgoConfig, *groups: TrajectoryGroup) -> Credit:
    return await build_credit(settings, context()).assign(groups or [PLAYED])


def by_hand(ids: list[int]) -> NDArray[np.float32]:
    """Return the teacher's log-probs of ``ids`` from the second on."""
    model = build_tiny_model(SHAPE, models.tokenizer(), seed=9)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return logits[torch.arange(len(ids) - 1), ids[1:]].numpy()


async def test_a_token_gets_how_much_likelier_the_teacher_finds_it(teacher: Path) -> None:
    credit = await credit_of(taught(teacher))
    whole = by_hand([10, 11, 12, 13, 3, 14, 15, 3])
    wanted = [0, 0, *(whole[1:4] + 1.25), 0, *(whole[5:7] + 0.5)]
    assert_allclose(credit.samples[0].advantages, wanted, atol=1e-5)
    assert_allclose(credit.samples[1].advantages, [0, 0, by_hand([16, 17, 18])[1] + 2], atol=1e-5)
    assert_allclose(
        credit.advantages[0][:2], [np.mean(wanted[2:5]), np.mean(wanted[6:])], atol=1e-5
    )
    every = np.concatenate([s.advantages[s.loss_mask] for s in credit.samples])
    assert credit.metrics["credit/teacher_kl"] == pytest.approx(-every.mean())
    turns = np.concatenate(credit.advantages)  # of the method alone all are 0
    assert credit.metrics["credit/advantage_mean"] == pytest.approx(turns.mean())
    assert credit.metrics["credit/advantage_std"] == pytest.approx(turns.std())


async def test_the_teacher_is_added_to_what_rewards_say_where_all_earned_the_same_too(
    teacher: Path,
) -> None:
    same = group(episode([LATER]), episode([LATER], member=1))
    alone = await credit_of(taught(teacher), PLAYED, same)
    both = await credit_of(taught(teacher, "grpo", coefficient=0.5), PLAYED, same)
    own = await build_credit(algo("grpo"), None).assign([PLAYED])
    assert (len(both.samples), both.dropped) == (5, {})
    for number, sample in enumerate(both.samples):
        before = own.samples[number].advantages if number < 3 else 0
        assert_allclose(sample.advantages, before + 0.5 * alone.samples[number].advantages)


async def test_a_control_deals_what_the_teacher_says_among_the_turns(teacher: Path) -> None:
    credit = await credit_of(taught(teacher).model_copy(update={"control": "constant"}))
    rows = [s.advantages[s.loss_mask] for s in credit.samples if s.trajectory == 0]
    assert len(set(np.concatenate(rows).tolist())) == 1


async def test_one_token_counts_no_more_than_the_clip(teacher: Path) -> None:
    free, cut = [await credit_of(taught(teacher, clip=c)) for c in (None, 1.5)]
    for one, other in zip(free.samples, cut.samples, strict=True):
        assert_allclose(np.clip(one.advantages, -1.5, 1.5), other.advantages)
    assert max(np.abs(s.advantages).max() for s in free.samples) > 1.5
    assert free.metrics["credit/teacher_kl"] == cut.metrics["credit/teacher_kl"]


@pytest.mark.parametrize("horizon", ["token", "turn", "episode"])
async def test_a_token_answers_for_what_follows_up_to_the_horizon(
    teacher: Path, horizon: str
) -> None:
    credit = await credit_of(taught(teacher))
    values = [s.advantages[s.loss_mask].astype(np.float64) for s in credit.samples]
    found = to_go(credit.samples, values, horizon)
    tokens = [
        (s.trajectory, turn_id, float(v))
        for s, own in zip(credit.samples, values, strict=True)
        for turn_id, v in zip(s.turn_ids[s.loss_mask].tolist(), own, strict=True)
    ]
    ends = {"token": lambda a, b: a is b, "turn": lambda a, b: a[:2] == b[:2]}
    same = ends.get(horizon, lambda a, b: a[0] == b[0])
    wanted = [sum(b[2] for b in tokens[n:] if same(a, b)) for n, a in enumerate(tokens)]
    assert_allclose(np.concatenate(found), wanted)


async def test_the_expected_update_lowers_the_divergence_from_the_teacher(teacher: Path) -> None:
    """Over all answers of one token: the policy gradient is that of the reverse KL, exactly."""
    config = context()
    prompt = torch.tensor([[10, 11]])
    theirs = build_tiny_model(SHAPE, models.tokenizer(), seed=9)(prompt).logits[0, -1]
    logits = config.model(prompt).logits[0, -1].detach().requires_grad_()
    kl = (logits.softmax(-1) * (logits.log_softmax(-1) - theirs.log_softmax(-1))).sum()
    [wanted] = torch.autograd.grad(kl, logits)
    ours = logits.detach().log_softmax(-1)
    answers = [
        episode([turn(prompt=(10, 11), drawn=(n,), logprob=float(ours[n]))], member=n)
        for n in range(len(ours))
    ]
    credit = await build_credit(taught(teacher), config).assign([group(*answers)])
    pushes = torch.tensor([float(s.advantages[-1]) for s in credit.samples])
    [found] = torch.autograd.grad(-(ours.exp() * pushes * logits.log_softmax(-1)).sum(), logits)
    assert_allclose(found, wanted, atol=1e-6)


def vllm(logprob: float = -0.75, **wrong: Any) -> Any:
    """Answer a request for the log-probs of a prompt as vLLM does."""

    async def reply(asked: Asked, writer: Any) -> None:
        echoed = [None, *[logprob] * len(asked.body["prompt"])]  # and one that was sampled
        found = {"token_logprobs": echoed, "tokens": [" "] * len(echoed)}
        body = {"index": 0, "text": "", "finish_reason": "length", "logprobs": found}
        usage = {"prompt_tokens": 5, "completion_tokens": 1}
        await send_json({"choices": [{**body, **wrong}], "usage": usage})(asked, writer)

    return reply


def at(server: FakeServer, **settings: Any) -> dict[str, Any]:
    return {"server": {"model": "tiny", "base_url": server.url, "retry_wait_s": 0.01, **settings}}


async def test_a_server_is_asked_for_each_piece_and_asked_again_where_it_fails() -> None:
    async with fake_server(refuse(503, "busy"), vllm()) as server:
        credit = await credit_of(taught(at(server)))
    assert {tuple(body["prompt"]) for body in server.bodies} == {
        (10, 11, 12, 13, 3, 14, 15, 3),
        (16, 17, 18),
        (14, 15, 3),
    }
    assert all(b["max_tokens"] == 1 and b["echo"] and b["logprobs"] for b in server.bodies)
    assert_allclose(credit.samples[1].advantages, [0, 0, 1.25])
    assert_allclose(credit.samples[2].advantages, [0, -0.25, -0.25])


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (vllm(logprobs=None), "no log-probs of the prompt, as vLLM and SGLang give them"),
        (vllm(logprobs={"token_logprobs": [None, -1.0]}), "no log-probs of the prompt"),
        (refuse(500, "out of memory"), "out of memory"),
        (refuse(401, "wrong key"), "algo.teacher.server: .*the key is refused"),
        (refuse(400, "maximum context length is 4 tokens"), "has to read them and add one"),
        (vllm(float("nan")), "made/train/0, turn 0: log-prob under the teacher less that under"),
    ],
)
async def test_a_server_that_gives_none_is_named_in_one_line(reply: Any, said: str) -> None:
    async with fake_server(reply) as server:
        with pytest.raises(TrainingError, match=said) as caught:
            await credit_of(taught(at(server, max_retries=1)))
    assert "\n" not in str(caught.value)


def test_a_teacher_with_another_tokenizer_is_refused_before_the_warm_start(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    command = ["train", str(tmp_path / "tiny.toml"), "algo=opd", f"algo.teacher={teacher}"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "has another tokenizer than the policy, and would read other texts" in said
    assert f"model.tokenizer={teacher}" in said
    assert "warm start:" not in said


async def test_a_teacher_that_reads_less_is_named_when_an_episode_is_longer(tmp_path: Path) -> None:
    short = SHAPE.model_copy(update={"context": 16})
    save_model_dir(
        build_tiny_model(short, models.tokenizer(), seed=1), models.tokenizer(), tmp_path
    )
    long = group(episode([turn(prompt=tuple(range(20)))]), episode([LATER], member=1))
    with pytest.raises(TrainingError, match="reads 16 tokens at most, and an episode has 22"):
        await credit_of(taught(tmp_path), long)


async def test_what_the_method_learned_is_its_state(teacher: Path) -> None:
    config = replace(context(), seed=5)
    made = build_credit(taught(teacher, "ppo"), config)
    assert made.state().keys() == build_credit(algo("ppo"), config).state().keys()
    made.load_state(made.state())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "wanted a teacher, and one: algo.teacher=FOLDER"),
        (["algo.teacher.server.model=x", "algo.teacher.server.base_url=h:9"], "wanted http:// bef"),
        (
            ["algo.teacher=some/where", "model.tokenizer=nowhere/at/all"],
            "model 'nowhere/at/all' cannot be loaded",
        ),
        (["algo.teacher=nowhere/at/all"], "algo.teacher: model 'nowhere/at/all' cannot be loaded"),
        (
            ["algo.teacher=a/b", "algo.teacher.server.model=x"],
            "wanted a teacher, and one: algo.teacher=FOLDER",
        ),
    ],
)
def test_a_run_without_one_teacher_is_refused_before_it_begins(
    settings: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", "demo", "algo=opd", *settings, "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not out.exists()


def test_a_student_takes_its_teachers_tokenizer_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    small, out = str(tmp_path / "tiny.toml"), tmp_path / "student"
    assert main(["train", small, "--out", str(tmp_path / "teacher")]) == 0
    of_run = tmp_path / "teacher"
    model = max(of_run.glob("checkpoints/*/model"))
    words = ["train", small, "algo=opd", f"model.tokenizer={model}", "model.hidden=32"]
    command = [*words, f"algo.teacher={model}", "run.seed=4", "--out", str(out)]
    assert main([*command, "run.steps=1"]) == 0
    assert main(command) == 0
    rows = [r for r in read_metrics(out / "metrics.jsonl") if "credit/teacher_kl" in r]
    assert [row["credit/groups_with_signal"] >= 0 for row in rows] == [True, True]
    mine = json.loads((max(out.glob("checkpoints/*/model")) / "tokenizer.json").read_text())
    assert mine["model"] == json.loads((model / "tokenizer.json").read_text())["model"]


def test_actions_of_an_expert_have_no_log_probs_to_compare(teacher: Path) -> None:
    with pytest.raises(ValueError, match="log-probs that a teacher could be compared with"):
        taught(teacher, "archer_demos")
