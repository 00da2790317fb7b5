"""SWE: repair real Python projects, judged by their own tests; see ``docs/swe.md``."""

from __future__ import annotations

from turngym.registry import register

_HERE = "turngym.environments.swe"
_MAX_TURNS = 60
"""Answers in all; the announced budget of turns is smaller."""
_MINI_TURNS = 5


def register_swe() -> None:
    """Register every SWE environment; called once by ``import turngym``. Starts no sandbox."""
    for name, tasks in (("Bugs", "shipped"), ("Bugs-sample", "sample")):
        register(
            f"turngym/{name}-v0", f"{_HERE}.env:bugs", family="swe", max_turns=_MAX_TURNS,
            kwargs={"tasks": tasks}, snapshot_kind="fs", extra="swe", modules=("pytest",),
            programs=("bwrap",), provides=("state_key",),
        )  # fmt: skip
    register(
        "turngym/Bugs-mini-v0", f"{_HERE}.mini.env:MiniEnv", family="swe", max_turns=_MINI_TURNS,
        snapshot_kind="exact", extra="swe", programs=("bwrap",), provides=("state_key",),
    )  # fmt: skip
