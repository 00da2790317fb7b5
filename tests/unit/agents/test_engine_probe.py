"""When a server counts as one that did not load its weights."""

import pytest

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm.fleet import Fleet


def fleet(**settings: object) -> Fleet:
    config = VllmEngineConfig.model_validate({"type": "vllm", "server": "turngym", **settings})
    return Fleet([], config, lambda: ("", ""))


def test_on_a_cpu_in_float32_next_to_nothing_is_rounding() -> None:
    one = fleet()
    assert not one._measured(1e-6, 1e-6)
    assert not one._measured(0.0009, 0.2)
    assert "more than 0.001" in one._measured(0.0011, 0.2)


@pytest.mark.parametrize(("dtype", "first"), [("bfloat16", 0.087), ("float32", 0.0042)])
def test_the_first_update_says_how_much_a_gpu_rounds(dtype: str, first: float) -> None:
    one = fleet(dtype=dtype)  # as measured with SmolLM2-135M on an H200
    assert not one._measured(first, first)
    assert not one._measured(2 * first, 3 * first)
    assert "more than" in one._measured(6 * first, 9 * first)
    assert "more than" in fleet(dtype=dtype)._measured(10 * first, 10 * first)


def test_rounding_may_grow_with_the_policy_up_to_a_bound() -> None:
    one = fleet(dtype="bfloat16")
    for gap in (0.06, 0.15, 0.4, 0.49):
        assert not one._measured(gap, gap), gap
    assert "more than 0.5" in one._measured(0.51, 0.51)


def test_on_a_cpu_it_may_not_grow() -> None:
    one = fleet()
    assert not one._measured(0.0009, 0.1)
    assert one._measured(0.003, 0.1)


def test_a_server_that_is_nearer_to_the_weights_before_did_not_load() -> None:
    one = fleet(dtype="bfloat16")
    assert not one._measured(0.06, 0.06)
    assert "0.05 from those before" in one._measured(0.15, 0.05)
    assert not one._measured(0.15, 0.2)


def test_a_server_that_failed_does_not_say_what_rounding_is() -> None:
    one = fleet(dtype="bfloat16")
    assert one._measured(0.9, 0.9)
    assert not one._measured(0.03, 0.9)
    assert one._measured(0.1, 0.2), "three times the first gap that was taken is less"


def test_what_the_settings_say_is_held_to() -> None:
    one = fleet(dtype="bfloat16", probe=0.02)
    assert not one._measured(0.019, 0.0)
    assert one._measured(0.021, 1.0)
