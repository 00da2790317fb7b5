"""Other machines by Ray, as far as that goes without Ray."""

import sys
from types import SimpleNamespace

import pytest

from turngym.errors import ConfigError
from turngym.nodes import connect
from turngym.trainers.distributed.launch import free_port


def test_a_head_that_does_not_listen_is_said_before_ray_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda *_, **__: pytest.fail("waits"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match=r"^launch: no Ray answers \(.*refused\); start it with"):
        connect("launch")
