"""Branches of a sequence, scored in one pass, against a row of its own for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from helpers.rendered import sharpened
from turngym.trainers.credit.sources.branches import (
    Branch,
    Tree,
    score_trees,
    score_trees_apart,
    sees_branches,
)


def random_tree(rng: np.random.Generator) -> Tree:
    trunk = rng.integers(0, 280, int(rng.integers(5, 40)))
    chosen = rng.random(trunk.size) < 0.3
    chosen[0] = False
    branches = []
    for _ in range(int(rng.integers(0, 5))):
        size = int(rng.integers(1, 6))
        branches.append(
            Branch(
                start=int(rng.integers(1, trunk.size + 1)),
                token_ids_M=rng.integers(0, 280, size),
                chosen_M=rng.random(size) < 0.7,
            )
        )
    return Tree(trunk_L=trunk, chosen_L=chosen, branches=tuple(branches))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_pass_gives_what_single_rows_give(architecture: Any, attention: str) -> None:
    model = sharpened(architecture, kv_heads=1)
    model.set_attn_implementation(attention)
    assert sees_branches(model)
    rng = np.random.default_rng(1)
    trees = [random_tree(rng) for _ in range(12)]
    wanted = score_trees_apart(model, trees, max_tokens=1)
    spread = 0.0
    for max_tokens in (1, 150, 10_000):
        found = score_trees(model, trees, max_tokens=max_tokens)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a.trunk_L, b.trunk_L, atol=1e-5)
            for ours, theirs in zip(a.branches, b.branches, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)
                spread = max(spread, float(np.ptp(theirs)))
    assert spread > 1  # log-probs that hardly differ would prove nothing


def test_temperature_reaches_branches() -> None:
    model, tree = sharpened(), random_tree(np.random.default_rng(4))
    [found] = score_trees(model, [tree], max_tokens=500, temperature=0.5)
    [wanted] = score_trees_apart(model, [tree], max_tokens=500, temperature=0.5)
    [other] = score_trees_apart(model, [tree], max_tokens=500)
    np.testing.assert_allclose(found.trunk_L, wanted.trunk_L, atol=1e-5)
    assert np.abs(found.trunk_L - other.trunk_L).max() > 0.1


def built(kind: str, **settings: Any) -> Any:
    config = AutoConfig.for_model(kind, vocab_size=300, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        return AutoModelForCausalLM.from_config(config).eval()


def test_models_that_do_not_keep_to_the_mask_are_found_out() -> None:
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert not sees_branches(built("bloom", hidden_size=32, n_layer=1, n_head=2))
    assert not sees_branches(
        built(
            "mistral",
            **size,
            num_key_value_heads=2,
            intermediate_size=64,
            sliding_window=4,
            head_dim=16,
        )
    )


def test_learned_positions_go_on_from_the_branch() -> None:
    model = built("gpt2", n_embd=32, n_layer=2, n_head=2, n_positions=64)
    assert sees_branches(model)
