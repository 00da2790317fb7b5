"""Device, precision, recomputation and packing: what may change with them, and what may not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import OPTConfig, OPTForCausalLM

from helpers import models
from helpers.samples import random_samples
from turngym.agents.engine.config import LocalEngineConfig
from turngym.agents.engine.devices import device_of
from turngym.agents.engine.local import LocalEngine
from turngym.agents.engine.protocol import Sampling
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.loop import train
from turngym.trainers.settings.optimizer import ComputeConfig
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.compute import compute_of, place
from turngym.trainers.update.forward import (
    BodyWithHead,
    check_packing,
    micro_batches,
    read_tokens,
    score,
)
from turngym.trainers.update.learner import TorchLearner

CPU = torch.device("cpu")


def placed(**settings: Any) -> Any:
    return place(copy.deepcopy(models.model()), ComputeConfig(device="cpu", **settings))


def updated(model: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the metrics and the weights after two updates on the same samples."""
    overrides = ["env.id=text/maze", "learner.lr=1e-3", "learner.microbatch_tokens=64"]
    config = load_config(TrainConfig, [*overrides, "regularizer.entropy_coefficient=0.01"])
    learner = TorchLearner(model, config.learner, config.algo.loss, config.regularizer)
    samples = random_samples(models.model(), count=6, seed=3)
    metrics = [learner.update(samples) for _ in range(2)][-1]
    return metrics, {name: weight.detach() for name, weight in model.named_parameters()}


def sequences(*lengths: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(0)
    token_ids = [rng.integers(0, 280, length) for length in lengths]
    return token_ids, [np.arange(length) > 0 for length in lengths]


# Recomputing and packing change rounding alone.


@pytest.mark.parametrize("settings", [{"recompute": True}, {"packing": "always"}], ids=str)
def test_an_update_is_the_same_with_less_memory(settings: dict[str, Any]) -> None:
    plain, before = updated(placed())
    found, after = updated(placed(**settings))
    for name in ("train/loss", "train/grad_norm", "train/entropy"):
        assert found[name] == pytest.approx(plain[name], rel=1e-5)
    moved = max((before[n] - w).abs().max().item() for n, w in models.model().named_parameters())
    apart = max((before[name] - after[name]).abs().max().item() for name in before)
    assert apart < 1e-2 * moved


def test_recomputing_reads_each_layer_twice_and_only_for_gradients() -> None:
    model, seen = placed(recompute=True), []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    token_ids, masks = sequences(9)
    [batch] = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    read_tokens(model, batch)[0].sum().backward()
    assert len(seen) == 2
    score(model, token_ids, masks, max_tokens=64)
    assert len(seen) == 3
    assert not any(module.training for module in model.modules())


def test_layers_with_dropout_of_their_own_are_recomputed_without_it() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = OPTForCausalLM(OPTConfig(
            vocab_size=280, hidden_size=16, ffn_dim=32, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=32, word_embed_proj_dim=16, dropout=0.5,
        )).eval()  # fmt: skip
    token_ids, masks = sequences(9)
    [batch] = micro_batches(token_ids, masks, max_tokens=64, device=CPU)
    [wanted] = score(plain, token_ids, masks, max_tokens=64)
    model = place(plain, ComputeConfig(device="cpu", recompute=True))
    found = read_tokens(model, batch)[0]
    found.sum().backward()
    np.testing.assert_allclose(found.detach().numpy(), wanted[masks[0]], atol=1e-5)


def test_packed_sequences_are_read_each_on_its_own() -> None:
    token_ids, masks = sequences(9, 17, 4, 30)
    apart = score(placed(), token_ids, masks, max_tokens=64)
    together = score(placed(packing="always"), token_ids, masks, max_tokens=64)
    for one, other in zip(apart, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    cut = micro_batches(token_ids, masks, max_tokens=48, device=CPU, packed=True)
    assert [batch.members for batch in cut] == [(3, 1), (0, 2)]
    assert [tuple(batch.token_ids_BT.shape) for batch in cut] == [(1, 47), (1, 13)]


def test_a_model_that_reads_on_into_the_next_sequence_is_refused() -> None:
    model = placed(packing="always")
    check_packing(model)
    body = model.model
    forward = body.forward
    body.forward = lambda *args, position_ids=None, **rest: forward(*args, **rest)
    with pytest.raises(ConfigError, match=r"learner\.packing=never"):
        check_packing(model)


# Precision.


def test_bf16_leaves_weights_and_head_in_full_precision() -> None:
    token_ids, masks = sequences(12)
    [exact] = score(placed(), token_ids, masks, max_tokens=64)
    model = placed(dtype="bfloat16")
    [found] = score(model, token_ids, masks, max_tokens=64)
    assert 1e-5 < np.abs(found - exact).max() < 0.1
    ids = torch.from_numpy(token_ids[0])[None]
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            states = model.model(input_ids=ids).last_hidden_state[0, :-1]
        table = torch.nn.functional.linear(states.float(), model.lm_head.weight).log_softmax(-1)
    wanted = table[torch.arange(11), ids[0, 1:]]
    np.testing.assert_allclose(found[1:], wanted, atol=1e-6)  # rounded logits are 1e-3 off


def test_bf16_updates_float32_weights_about_as_float32_does() -> None:
    exact, _ = updated(placed())
    found, after = updated(placed(dtype="bfloat16"))
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    assert found["train/grad_norm"] == pytest.approx(exact["train/grad_norm"], rel=0.05)
    assert found["train/grad_norm"] != exact["train/grad_norm"]


def test_a_critic_computes_as_the_policy_does() -> None:
    model = placed(dtype="bfloat16", packing="always", recompute=True)
    critic = BodyWithHead(model)
    assert critic.compute == compute_of(model)
    token_ids, masks = sequences(9, 5)
    [batch] = micro_batches(token_ids, masks, max_tokens=64, device=CPU, packed=True)
    values = critic(batch, is_behind=False)
    assert values.dtype == torch.float32
    values.square().sum().backward()


async def test_an_engine_in_bf16_reports_the_logprobs_that_it_sampled_with() -> None:
    config = LocalEngineConfig(dtype="bfloat16")
    engine = LocalEngine(models.model(), models.tokenizer(), context=64, config=config)
    exact = LocalEngine(models.model(), models.tokenizer(), context=64)
    assert exact.traits.deterministic
    assert not engine.traits.deterministic
    found = await engine.open(1).generate([5, 6, 7], Sampling(max_new_tokens=12))
    ids = [5, 6, 7, *found.token_ids]
    [own], [other] = await engine.score([ids]), await exact.score([ids])
    np.testing.assert_allclose(found.logprobs, own[2:], atol=0.05)
    assert 1e-5 < np.abs(own - other).max() < 0.2


# Devices.


def test_the_device_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("auto", setting="learner.device") == torch.device("cuda", 0)
    assert device_of("cpu", setting="learner.device") == CPU
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("cuda", setting="learner.device") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="finds 2 GPUs, and process 2"):
        device_of("auto", setting="learner.device")


@pytest.mark.parametrize("setting", ["learner.device", "engine.device"])
def test_a_gpu_that_is_not_there_is_one_line_before_anything_starts(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = load_config(TrainConfig, ["demo", f"{setting}=cuda"])
    with pytest.raises(
        ConfigError, match=f"^{setting}='cuda': torch .* finds no GPU; set"
    ) as error:
        train(config, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
