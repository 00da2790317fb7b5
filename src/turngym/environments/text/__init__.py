"""Text games. The core ones are pure Python with exact snapshots; the others come as extras."""

from turngym.environments.core.env import SnapshotKind
from turngym.environments.gym.registration import register
from turngym.environments.text.extras import register_extra_games

_HERE = "turngym.environments.text"


def _core(
    title: str,
    entry_point: str,
    max_turns: dict[str, int],
    *,
    snapshot_kind: SnapshotKind = "exact",
    provides: str = "",
) -> None:
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
                snapshot_kind=snapshot_kind,
                provides=("anchor", *provides.split()),
            )


def register_text_games() -> None:
    """Register every text game; called once by ``import turngym``."""
    truth = "ground_truth"
    questions = {"easy": 6, "medium": 12, "hard": 20}
    _core(
        "Maze",
        "maze:MazeEnv",
        {"easy": 14, "medium": 40, "hard": 120, "long": 36},
        provides="potential",
    )
    _core(
        "Wordle", "wordle:WordleEnv", dict.fromkeys(("easy", "medium", "hard"), 10), provides=truth
    )
    _core("GuessCity", "twenty_questions:GuessCityEnv", questions, provides=truth)
    _core("TwentyQuestions", "twenty_questions:TwentyQuestionsEnv", questions, provides=truth)
    _core(
        "GuessNumber",
        "guess_number:GuessNumberEnv",
        {"easy": 6, "medium": 8, "hard": 11},
        provides=truth,
    )
    _core("Sokoban", "sokoban:SokobanEnv", {"easy": 12, "medium": 45, "hard": 90})
    _core("ChessEndgame", "chess_endgame:ChessEndgameEnv", {"easy": 6, "medium": 16, "hard": 32})
    _core(
        "Taxi",
        "toy_text:TaxiEnv",
        {"easy": 14, "medium": 30, "hard": 30},
        snapshot_kind="replay",
        provides="potential",
    )
    _core(
        "FrozenLake",
        "toy_text:FrozenLakeEnv",
        {"easy": 12, "medium": 24, "hard": 36},
        snapshot_kind="replay",
        provides="potential",
    )
    register_extra_games()
