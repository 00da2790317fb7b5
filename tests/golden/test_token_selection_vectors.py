"""Which tokens and turns are trained on: D3S, DART-GUI and forking tokens, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.credit import algo
from helpers.losses import ADVANTAGES, F1, f1_loss
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.trainers.losses.token_weights import selected_tokens, with_selected_tokens
from turngym.trainers.selection.batches import most_varied
from turngym.trainers.settings.corrections import TokenSelection
from turngym.trainers.settings.train import TrainConfig

ENTROPIES = ([0.9, 0.1, 0.5, 0.3], [1.2, 0.4])
"""Of F1's tokens, whose turns are 0 0 1 1 and 0 1: means .5 .4 and 1.2 .4."""
HALF_BLAMED = ([1.0, 1.0, 1.0, 1.0], [-0.5, -0.5])


def at_tokens(values: tuple[list[float], list[float]]) -> list[np.ndarray]:
    """Return arrays [L] with ``values`` at F1's sampled tokens, which follow a given one."""
    return [np.array([0.0, *row], dtype=np.float32) for row in values]


SAMPLES = [replace(s, advantages=a) for s, a in zip(F1, at_tokens(HALF_BLAMED), strict=True)]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        # Six entropies, .1 .3 .4 .5 .9 1.2: the quantile .8 is the fifth of them.
        ({"share": 0.2}, [1, 0, 0, 0, 1, 0]),
        ({"share": 0.5}, [1, 0, 1, 0, 1, 0]),
        # Inside a turn one token at least stays, whatever the others are.
        ({"share": 0.2, "within": "turn"}, [1, 0, 1, 0, 1, 1]),
        ({"share": 0.2, "within": "episode"}, [1, 0, 0, 0, 1, 0]),
        # Turns of 1.2 and .5, .4, .4: the quantile .75 is .675 and the median .45.
        ({"share": 0.25, "unit": "turn"}, [0, 0, 0, 0, 1, 0]),
        ({"share": 0.5, "unit": "turn"}, [1, 1, 0, 0, 1, 0]),
        ({"share": 0.5, "unit": "turn", "within": "episode"}, [1, 1, 0, 0, 1, 0]),
        ({"share": 0.8, "unit": "turn", "within": "episode"}, [1, 1, 0, 0, 1, 0]),
        # Halved by the advantage, 1.2 and .4 are .6 and .2: above .5, below .3.
        ({"share": 0.2, "score": "advantage_entropy"}, [1, 0, 0, 0, 1, 0]),
        ({"share": 0.5, "score": "advantage_entropy"}, [1, 0, 1, 0, 1, 0]),
        ({"share": 0.8, "score": "advantage_entropy"}, [1, 0, 1, 1, 1, 1]),
        ({"share": 0.7, "score": "advantage_entropy"}, [1, 0, 1, 1, 1, 0]),
        ({"share": 1.0}, [1] * 6),
    ],
)
def test_the_highest_scores_are_selected(settings: dict[str, object], wanted: list[int]) -> None:
    config = load_config(TokenSelection, [{"score": "entropy"} | settings])
    found = selected_tokens(SAMPLES, at_tokens(ENTROPIES), config)
    picked = np.concatenate([f[s.loss_mask] for f, s in zip(found, SAMPLES, strict=True)])
    assert picked.astype(int).tolist() == wanted
    assert not any(f[~s.loss_mask].any() for f, s in zip(found, SAMPLES, strict=True))


def test_a_turn_in_two_segments_is_one_turn() -> None:
    parts = [replace(F1[1], trajectory=0), replace(F1[1], trajectory=0)]
    config = load_config(TokenSelection, [{"score": "entropy", "unit": "turn", "share": 0.5}])
    entropies = [np.array([0, 0.1, 0.5]), np.array([0, 0.8, 0.3])]  # turns: .45 and .4
    found = selected_tokens(parts, entropies, config)
    assert [f.tolist() for f in found] == [[False, True, False]] * 2


def test_other_tokens_have_no_gradient_and_count_in_the_mean() -> None:
    """F1's first and fifth token: ratios 1.349859, clipped to 1.2, and 3.669297."""
    loss = algo("forking_tokens").loss
    spread = at_tokens(([1.0] * 4, [-1.0] * 2))
    samples = [replace(s, advantages=a) for s, a in zip(F1, spread, strict=True)]
    chosen = with_selected_tokens(samples, at_tokens(ENTROPIES), loss.token_selection)
    left = np.concatenate([s.advantages[s.loss_mask] for s in chosen])
    np.testing.assert_array_equal(left, [1, 0, 0, 0, -1, 0])
    parts, gradient = f1_loss(loss, advantages=torch.from_numpy(left).double())
    assert parts.total.item() == pytest.approx((-1.2 + 3.669297) / 6, abs=1e-5)
    assert gradient == pytest.approx([0, 0, 0, 0, 3.669297 / 6, 0], abs=1e-5)


def test_dart_gui_has_one_ratio_for_a_turn_and_weighs_turns_alike() -> None:
    """Geometric means of F1's turns: 1.161834 .818731 | 3.669297 .740818; clip .1 / .28."""
    loss = algo("dart_gui").loss
    parts, _ = f1_loss(loss, advantages=ADVANTAGES)
    wanted = (-1.161834 - 0.818731 + 3.669297 + 0.9) / 4
    assert parts.total.item() == pytest.approx(wanted, abs=1e-5)
    assert (loss.correction.weight, loss.correction.level, loss.correction.high) == (
        *("truncate", "token"),
        1.0,
    )


def test_d3s_keeps_the_attempts_that_differ_most() -> None:
    values = np.array([1, 0.9, 0.6, 0.5, 0.4, 0.1, 0, 0])
    keep = load_config(TrainConfig, ["demo", "algo=d3s"]).selection.keep_attempts
    assert keep == 4
    places = most_varied(values, keep)
    assert sorted(values[places]) == [0, 0, 0.9, 1]
    assert np.var(values[places]) == pytest.approx(0.226875)


def test_what_cannot_be_selected_is_refused() -> None:
    below = "algo.loss.token_selection"
    alone = ["algo=forking_tokens", f"{below}.unit=turn", f"{below}.within=turn"]
    with pytest.raises(ConfigError, match="a turn cannot be compared with itself"):
        load_config(TrainConfig, ["demo", *alone])
    with pytest.raises(ConfigError, match="token_selection changes advantages"):
        load_config(TrainConfig, ["demo", "algo=tba", f"{below}.score=entropy"])
