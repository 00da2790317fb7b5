"""Which way something lies, in words."""

from __future__ import annotations


def bearing(at: tuple[int, int], goal: tuple[int, int], *, distances: bool) -> str:
    """Return ``north east``, with ``distances`` ``north 2 east 1``; ``here`` when there is no way.

    Args:
        at: Row and column; row 0 is the northernmost.
        goal: Row and column.
        distances: Also say how many steps.
    """
    south, east = goal[0] - at[0], goal[1] - at[1]
    ways = [
        ("south" if south > 0 else "north", abs(south)),
        ("east" if east > 0 else "west", abs(east)),
    ]
    words = [f"{way} {steps}" if distances else way for way, steps in ways if steps]
    return " ".join(words) or "here"
