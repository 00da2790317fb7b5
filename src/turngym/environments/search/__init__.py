"""Search: find documents, read them, answer. Generated worlds in the core; any corpus or engine."""

from __future__ import annotations

from turngym.registry import register

_HERE = "turngym.environments.search"
_PROVIDES = ("state_key", "ground_truth", "potential")
_TURNS = {
    "1hop": 8, "2hop": 12, "3hop": 16, "4hop": 20, "compare": 24, "intersect": 18, "count": 24,
    "temporal": 24, "unanswerable": 12, "mixed": 24,
}  # fmt: skip
"""Kind of question to turn limit."""
_GRADED = {
    "2hop": ("easy", "medium", "hard", "tiny"), "3hop": ("easy", "tiny"), "4hop": ("easy", "hard"),
    "mixed": ("easy", "medium", "hard"),
}  # fmt: skip
"""Kinds that come in more than one difficulty."""


def register_search() -> None:
    """Register every search environment; called once by ``import turngym``."""
    for kind, turns in _TURNS.items():
        graded = [(f"-{one}", one) for one in _GRADED.get(kind, ("easy",))]
        for ending, difficulty in (graded[0], ("", graded[0][1]), *graded[1:]):
            version = 0 if difficulty == "tiny" else 1
            register(
                f"turngym/World-{kind}{ending}-v{version}",
                f"{_HERE}.world_env:WorldEnv",
                family="search",
                max_turns=turns,
                kwargs={"kind": kind, "difficulty": difficulty},
                snapshot_kind="exact",
                provides=_PROVIDES,
            )
    register(
        "turngym/Corpus-v1",
        f"{_HERE}.corpus_env:CorpusEnv",
        family="search",
        max_turns=_TURNS["mixed"],
        snapshot_kind="exact",
        provides=_PROVIDES,
    )
