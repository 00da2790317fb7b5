"""Terminal: problems in a shell, judged on the end state; see ``docs/swe.md``."""

from __future__ import annotations

from turngym.registry import register

_HERE = "turngym.environments.terminal"
_GROUPS: dict[str, tuple[str, ...]] = {
    "all": ("bwrap", "git"), "files": ("bwrap",), "text": ("bwrap",), "archives": ("bwrap",),
    "git": ("bwrap", "git"), "sql": ("bwrap",), "programs": ("bwrap",),
}  # fmt: skip
"""Group of problems to the programs that it needs."""


def register_terminal() -> None:
    """Register every terminal environment; called once by ``import turngym``."""
    for group, programs in _GROUPS.items():
        register(
            f"turngym/Shell{'' if group == 'all' else '-' + group}-v0", f"{_HERE}.env:TerminalEnv",
            family="terminal", max_turns=30, kwargs={"group": group}, snapshot_kind="fs",
            programs=programs, provides=("state_key",),
        )  # fmt: skip
