"""Information gains telescope, and depend on nothing but their own episode."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.rendered import batch, context, random_episode, sharpened
from turngym.trainers.credit.sources.gains import InfoGainSource, information_gains
from turngym.trainers.settings.rewards import InfoGain

beliefs = st.lists(st.floats(-50, 0), min_size=1, max_size=20).map(np.array)
few = settings(max_examples=15, deadline=None)


@given(beliefs)
def test_gains_sum_to_the_growth_of_the_belief(l_T: np.ndarray) -> None:
    gains = information_gains(l_T, "prob_diff")
    assert gains.shape == (l_T.size - 1,)
    np.testing.assert_allclose(gains.sum(), np.exp(l_T[-1]) - np.exp(l_T[0]), atol=1e-12)
    logs = information_gains(l_T, "log_prob_diff")
    np.testing.assert_allclose(logs.sum(), l_T[-1] - l_T[0], atol=1e-9)


@few
@given(st.integers(0, 2**32), st.permutations(range(4)), st.sampled_from([1, 90, 5000]))
def test_gains_follow_their_episode_whatever_the_batch(
    seed: int, order: list[int], max_tokens: int
) -> None:
    rng = np.random.default_rng(seed)
    episodes = [
        random_episode(rng, turns=int(rng.integers(1, 5)), truth="key", answer="go key", member=i)
        for i in range(4)
    ]
    source = InfoGainSource(InfoGain(type="info_gain"), context(sharpened(), max_tokens=max_tokens))
    straight, mixed = batch(episodes), batch([episodes[i] for i in order])
    wanted = straight.split(source.read(straight)["info_gain"].values_N)
    found = mixed.split(source.read(mixed)["info_gain"].values_N)
    for place, i in enumerate(order):
        np.testing.assert_allclose(found[place], wanted[i], atol=1e-5)
