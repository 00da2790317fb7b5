"""Tables of evaluations as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turngym.cli.output import table
from turngym.reports.texts import figure, percent

Found = Mapping[str, Any]
"""One environment's part of ``turngym eval --json``."""


def evaluation_table(results: Mapping[str, Found]) -> str:
    """Return one line for each environment; columns without any number are left out.

    Args:
        results: Short name to ``Summary.to_json``.
    """
    columns = _columns(results)
    rows = [[name, *(cell(found) for _, cell in columns)] for name, found in results.items()]
    return table(["ENVIRONMENT", *(header for header, _ in columns)], rows)


def _columns(results: Mapping[str, Found]) -> list[tuple[str, Callable[[Found], str]]]:
    most = max((int(k) for found in results.values() for k in found["pass_at"]), default=0)
    columns: list[tuple[str, Callable[[Found], str]]] = [
        ("EPISODES", lambda found: str(found["episodes"])),
        ("SUCCESS [95 %]", lambda found: percent(found["success"], found["success_ci95"])),
    ]
    if most > 1:
        columns += [(f"PASS@{k}", _pass_cell(k)) for k in shown_k(most)]
    columns += [("RETURN", _cell("mean_return")), ("TURNS", _cell("mean_turns", 1))]
    optional = [
        ("TOKENS IN", "mean_prompt_tokens", 0),
        ("TOKENS OUT", "mean_completion_tokens", 0),
        ("COST $", "mean_cost_usd", 4),
    ]
    columns += [
        (header, _cell(name, digits))
        for header, name, digits in optional
        if any(found[name] is not None for found in results.values())
    ]
    return [
        *columns,
        ("SECONDS", lambda found: _cell("mean_seconds", 3)(found["time"])),
        ("FAULTS", _faults),
    ]


def shown_k(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and ``most``."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*powers, most]


def _cell(name: str, digits: int = 2) -> Callable[[Found], str]:
    return lambda found: figure(found[name], found[f"{name}_ci95"], digits)


def _pass_cell(k: int) -> Callable[[Found], str]:
    def cell(found: Found) -> str:
        value, low, high = found["pass_at"].get(str(k), (None, None, None))
        return percent(value, None if low is None else (low, high))

    return cell


def _faults(found: Found) -> str:
    kinds = [
        f"{kind.removeprefix('error_')} {percent(share, (low, high))}"
        for kind, (share, low, high) in found["faults_by_kind"].items()
    ]
    return f"{found['faults']}{': ' if kinds else ''}{', '.join(kinds)}"
