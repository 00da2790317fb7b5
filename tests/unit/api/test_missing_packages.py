"""A package of others that is not there is named with what installs it, and no extra of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from turngym.api.inspect_ai import inspect_task
from turngym.api.verifiers import verifiers_classes
from turngym.errors import MissingExtraError


@pytest.mark.parametrize(
    ("module", "make", "line"),
    [
        ("inspect_ai", inspect_task, "pip install 'inspect-ai'"),
        ("verifiers", verifiers_classes, "pip install 'verifiers>=0.4'"),
    ],
)
def test_the_line_installs_what_is_missing(
    module: str, make: Callable[[str], Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.v1", None)
    with pytest.raises(MissingExtraError) as found:
        make("text/maze")
    assert str(found.value).endswith(line)
    assert "turngym[" not in str(found.value)
