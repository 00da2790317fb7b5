"""The numbers of a seeded update, unchanged since they were written down.

After a change that is meant to change them: ``TURNGYM_REFRESH_GOLDEN=1 pytest tests/golden``, and
say why in the commit.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest

from helpers import models
from helpers.samples import random_samples
from turngym.config import load_config
from turngym.trainers.settings.train import TrainConfig
from turngym.trainers.update.learner import TorchLearner
from turngym.trainers.update.sequential import LastTurnFirstLearner

FILE = Path(__file__).parent / "losses.json"
CASES = {
    "grpo": ["algo=grpo"],
    "dr_grpo": ["algo=dr_grpo", "regularizer.entropy_coefficient=0.01"],
    "rloo": ["algo=rloo"],
    "trloo": ["algo=trloo", "learner.num_epochs=2", "learner.num_minibatches=2"],
    "kl": ["algo=grpo", "regularizer.kl_coefficient=0.1", "learner.num_epochs=2"],
    "behaviour": ["algo=grpo", "algo.loss.old_policy=behaviour", "learner.num_epochs=2"],
    "gspo": ["algo=gspo", "learner.num_minibatches=2"],
    "cispo": ["algo=cispo", "learner.num_epochs=2", "regularizer.kl_coefficient=0.01"],
    "sapo": ["algo=sapo", "learner.num_minibatches=2"],
    "dapo": ["algo=dapo", "learner.num_minibatches=2"],
    "seeupo": ["algo=seeupo"],
    "turn_level": ["algo.loss.ratio_level=turn", "learner.num_epochs=2"],
    "gmpo": [
        'algo.loss.surrogate={"type": "log_clip_geo"}',
        "algo.loss.ratio_level=sequence_geo",
        "algo.loss.aggregation=seq_mean_token_mean",
        "learner.num_epochs=2",
    ],
    "prompt_mean": [
        'algo.loss.surrogate={"type": "squared"}',
        "algo.loss.aggregation=prompt_mean",
        "regularizer.kl_coefficient=0.1",
        "regularizer.kl_estimator=k3_unbiased",
        "learner.num_epochs=2",
    ],
}
NAMES = ("loss", "policy_loss", "entropy", "grad_norm", "clip_fraction", "kl_ref")


def numbers(overrides: list[str]) -> list[dict[str, float]]:
    """Return what three updates of a small model report."""
    config = load_config(TrainConfig, ["env.id=text/maze", *overrides, "learner.lr=3e-3"])
    reverse = config.algo.advantage.updates_last_turn_first
    kind = LastTurnFirstLearner if reverse else TorchLearner
    learner = kind(
        copy.deepcopy(models.model()),
        config.learner,
        config.algo.loss,
        config.regularizer,
        seed=1,
        reference=models.model() if config.regularizer.kl_coefficient else None,
    )
    samples = random_samples(models.model(), count=8, seed=3)
    updates = [learner.update(samples) for _ in range(3)]
    return [{n: u[f"train/{n}"] for n in NAMES if f"train/{n}" in u} for u in updates]


@pytest.mark.parametrize("case", CASES)
def test_a_seeded_update_gives_the_numbers_on_record(case: str) -> None:
    found = numbers(CASES[case])
    record = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("TURNGYM_REFRESH_GOLDEN") == "1":
        FILE.write_text(json.dumps({**record, case: found}, indent=1) + "\n")
        return
    for update, wanted in zip(found, record[case], strict=True):
        assert update == pytest.approx(wanted, rel=1e-3, abs=1e-5)
