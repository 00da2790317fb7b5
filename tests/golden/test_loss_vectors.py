"""Losses and gradients of the fixture F1, worked out apart from the code.

Those that are marked "ours" come from central differences in float64 of the loss as the paper
writes it, with the ratio of a whole sequence differentiated directly; the others are published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.losses import ADVANTAGES, f1_loss
from turngym.trainers.settings.loss import LossConfig

VECTORS = json.loads((Path(__file__).parent / "loss_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_loss_and_gradient_match_the_vectors(vector: dict[str, Any]) -> None:
    signed = -ADVANTAGES if vector.get("signs_flipped") else ADVANTAGES
    parts, gradient = f1_loss(LossConfig.model_validate(vector["loss"]), advantages=signed)
    assert parts.total.item() == pytest.approx(vector["value"], abs=1e-5)
    assert gradient == pytest.approx(vector["gradient"], abs=1e-5)


def test_every_surrogate_and_level_has_a_vector() -> None:
    losses = [LossConfig.model_validate(v["loss"]) for v in VECTORS]
    kinds = {loss.surrogate.type for loss in losses}
    assert kinds == {
        "ppo_clip", "is_clip", "is_zero", "soft_gate", "log_clip_geo", "div_mask", "squared",
        "pg", "is_taper", "balance", "classify", "fit",
    }  # fmt: skip
    assert {loss.ratio_level for loss in losses} == {
        "token", "turn", "sequence_geo", "sequence_prod", "prefix_prod", "prefix_min",
    }  # fmt: skip
