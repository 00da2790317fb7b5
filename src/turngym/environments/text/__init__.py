"""Text games. The core ones are pure Python with exact snapshots; the others come as extras."""

from turngym.environments.registration import register

_HERE = "turngym.environments.text"


def _core(title: str, entry_point: str, max_turns: dict[str, int]) -> None:
    """Register a game once per difficulty; the first is also the default."""
    for number, (difficulty, turns) in enumerate(max_turns.items()):
        names = [f"{title}-{difficulty}"] + ([title] if number == 0 else [])
        for name in names:
            register(
                f"turngym/{name}-v0",
                f"{_HERE}.{entry_point}",
                family="text",
                max_turns=turns,
                kwargs={"difficulty": difficulty},
                snapshot_kind="exact",
            )


def register_text_games() -> None:
    """Register every text game; called once by ``import turngym``."""
    _core("Maze", "maze:MazeEnv", {"easy": 14, "medium": 40, "hard": 120})
