"""IGPO: how much each turn raised the belief in the true answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import models
from helpers.rendered import (
    batch,
    context,
    random_episode,
    rendered_episode,
    sharpened,
    taught_to_repeat,
)
from turngym.agents.rendering import Renderer
from turngym.errors import ConfigError
from turngym.trainers.credit.sources import branches
from turngym.trainers.credit.sources.branches import score_trees_apart
from turngym.trainers.credit.sources.gains import (
    InfoGainSource,
    information_gains,
    truth_tokens,
)
from turngym.trainers.selection.past import as_context
from turngym.trainers.settings.rewards import InfoGain

CONFIG = InfoGain(type="info_gain")
PROBABILITY = InfoGain(type="info_gain", form="prob_diff")
SAID = [("exits north", "go north"), ("got key", "go east"), ("door south.", "go key")]


@pytest.mark.parametrize(
    ("form", "gains_a", "gains_b"),
    [
        ("prob_diff", [0.1447, 0.2387], [-0.0212, 0.0993]),
        ("log_prob_diff", [0.5, 0.5], [-0.1, 0.4]),
    ],
)
def test_worked_example(form: Any, gains_a: list[float], gains_b: list[float]) -> None:
    found_a = information_gains(np.array([-1.5, -1.0, -0.5]), form)
    found_b = information_gains(np.array([-1.5, -1.6, -1.2]), form)
    np.testing.assert_allclose(found_a, gains_a, atol=5e-5)
    np.testing.assert_allclose(found_b, gains_b, atol=5e-5)


def test_gains_are_those_of_plain_forward_passes() -> None:
    model, given = sharpened(), context(sharpened())
    episode = rendered_episode(SAID, truth="key", answer="go key")
    answer = given.renderer.action("go key")
    counted = [i for i, t in enumerate(answer) if "key" in given.renderer.tokenizer.decode([t])]
    ids: list[int] = []
    beliefs = []
    for turn in episode.turns:
        ids += turn.spans[0].token_ids
        row = torch.tensor([[*ids, *answer]])
        with torch.no_grad():
            table = model(input_ids=row).logits[0].log_softmax(-1)
        logprobs = [table[len(ids) + i - 1, answer[i]].item() for i in counted]
        beliefs.append(np.mean(logprobs))
        ids += turn.spans[1].token_ids
    component = InfoGainSource(CONFIG, given).read(batch([episode]))["info_gain"]
    np.testing.assert_allclose(component.values_N, [*np.diff(beliefs), 0], atol=1e-5)
    assert np.abs(component.values_N[:2]).min() > 1e-3
    assert component.has_value_N.tolist() == [True, True, False]


def test_turns_after_a_head_that_is_not_trained_gain_what_they_gain_in_the_whole() -> None:
    whole = rendered_episode(SAID, truth="key", answer="go key")
    head, rest = as_context(whole.turns[:1]), whole.turns[1:]
    cut = replace(whole, turns=(*head, *rest), policy_seed=9)
    given = replace(whole, turns=as_context(whole.turns), policy_seed=8)
    source = InfoGainSource(CONFIG, context(sharpened()))
    found = source.read(batch([whole, cut, given]))["info_gain"]
    assert found.has_value_N.tolist() == [True, True, False] + [False, True, False] + [False] * 3
    assert found.values_N[4] == pytest.approx(found.values_N[1], abs=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_one_pass_equals_the_loop(architecture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    truths = ["north", "key door", "east"]
    episodes = [
        random_episode(rng, turns=int(rng.integers(1, 8)), truth=t, answer=f"go {t} now", member=i)
        for i, t in enumerate(truths * 3)
    ]
    turns = batch(episodes)
    given = context(sharpened(architecture, kv_heads=1), max_tokens=300)
    together = InfoGainSource(CONFIG, given).read(turns)["info_gain"]
    monkeypatch.setattr(branches, "sees_branches", lambda model, **_: False)
    monkeypatch.setattr(
        branches,
        "score_trees_apart",
        lambda m, t, **_: score_trees_apart(m, t, max_tokens=1),
    )
    loop = InfoGainSource(CONFIG, given).read(turns)["info_gain"]
    np.testing.assert_allclose(together.values_N, loop.values_N, atol=1e-5)
    np.testing.assert_array_equal(together.has_value_N, ~turns.is_last_N)
    assert np.ptp(loop.values_N) > 0.1


@pytest.mark.parametrize("template", ["small", "chatml", "headers"])
@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("guess key", "key"),
        ("guess[north east]", "north east"),
        ("key is key", "key"),  # the last one counts
        ("go north", "rth"),  # its first token begins before the truth
        ("say 42é!", "42é"),
    ],
)
def test_only_tokens_of_the_truth_count(template: str, answer: str, truth: str) -> None:
    renderer = Renderer(models.tokenizer(template))
    found = truth_tokens(renderer, answer, truth)
    assert found is not None
    ids, chosen = found
    whole = renderer.action(answer)
    assert tuple(ids) == whole[: len(ids)]
    first, last = int(np.flatnonzero(chosen)[0]), int(np.flatnonzero(chosen)[-1]) + 1
    assert chosen[first:last].all()
    assert last == len(ids)
    decode = renderer.tokenizer.decode
    start = answer.rfind(truth)
    assert len(decode(whole[:first])) <= start
    assert decode(whole[:last]).startswith(answer[: start + len(truth)])
    assert truth in decode(whole[first:last])  # nothing of the truth is left out,
    if first:  # and one token fewer would leave something out
        assert truth not in decode(whole[first + 1 : last])


def test_an_answer_without_the_truth_gives_nothing() -> None:
    assert truth_tokens(Renderer(models.tokenizer()), "go north", "key") is None


def test_what_cannot_be_scored_is_counted_and_left_out() -> None:
    good = rendered_episode(SAID, truth="key", answer="go key", member=0)
    rewritten = replace(good, turns=(*good.turns[:2], replace(good.turns[2], starts_segment=True)))
    wordless = replace(good, turns=tuple(replace(turn, spans=()) for turn in good.turns))
    cases = [
        good,
        replace(good, ground_truth=None),
        replace(good, answer=None),
        replace(good, answer="go north"),
        rewritten,
        wordless,
    ]
    turns = batch([replace(case, policy_seed=n) for n, case in enumerate(cases)])
    source = InfoGainSource(CONFIG, context())
    component = source.read(turns)["info_gain"]
    assert component.has_value_N.tolist() == [True, True, False] + [False] * 15
    assert not component.values_N[3:].any()
    assert source.metrics()["credit/info_gain_fallbacks"] == 5


def test_answers_that_do_not_fit_and_broken_weights_are_counted() -> None:
    episode = rendered_episode(SAID, truth="key", answer="go " + "key " * 300)
    source = InfoGainSource(CONFIG, context())
    assert not source.read(batch([episode]))["info_gain"].has_value_N.any()
    assert source.metrics()["credit/info_gain_fallbacks"] == 1
    broken = sharpened()
    torch.nn.init.constant_(broken.get_input_embeddings().weight, float("nan"))
    source = InfoGainSource(CONFIG, context(broken))
    component = source.read(batch([rendered_episode(SAID, truth="key", answer="go key")]))[
        "info_gain"
    ]
    assert np.isfinite(component.values_N).all()
    assert not component.has_value_N.any()
    assert source.metrics()["credit/info_gain_fallbacks"] == 1


def test_no_gradient_reaches_the_policy_and_nothing_is_random() -> None:
    model = sharpened()
    before, random_state = model.state_dict(), torch.get_rng_state()
    before = {name: tensor.clone() for name, tensor in before.items()}
    turns = batch([rendered_episode(SAID, truth="key", answer="go key")])
    InfoGainSource(PROBABILITY, context(model)).read(turns)
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_turn_that_tells_the_answer_gains_more_than_one_that_does_not() -> None:
    """A model trained to repeat what it saw: the gain is where the truth was shown."""
    said = [(word, word) for word in ("exits", "got", "key", "exits")]
    turns = batch([rendered_episode(said, truth="key", answer="key")])
    values = (
        InfoGainSource(PROBABILITY, context(taught_to_repeat())).read(turns)["info_gain"].values_N
    )
    assert values.argmax() == 1
    assert values[1] > 0.5


def test_shuffled_gains_are_the_same_numbers_elsewhere() -> None:
    """And again the same in the same batch, which a resumed run needs."""
    said = [(word, word) for word in ("exits", "got", "key", "exits", "door", "north", "south")]
    turns = batch([rendered_episode(said, truth="key", answer="key")])
    config = InfoGain(type="info_gain", shuffled=True)
    true, dealt, again = (
        InfoGainSource(one, context(sharpened())).read(turns)["info_gain"].values_N
        for one in (CONFIG, config, config)
    )
    assert not np.array_equal(true, dealt)
    assert sorted(true) == sorted(dealt)
    assert dealt[-1] == 0
    np.testing.assert_array_equal(dealt, again)


def test_a_slow_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = context()
    monkeypatch.setattr(type(given.renderer.tokenizer), "is_fast", False)
    with pytest.raises(ConfigError, match="fast tokenizer"):
        InfoGainSource(CONFIG, given)
