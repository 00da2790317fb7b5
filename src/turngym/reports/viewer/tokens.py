"""Text of token ids, from the tokenizer that a run keeps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

_NAME = "tokenizer.json"


class TokenTexts:
    """Decodes single tokens; without a tokenizer, or what reads it, it knows none.

    Args:
        root: Folder of the run: an evaluation keeps ``tokenizer.json``, a training run has it in
            its checkpoints.
    """

    def __init__(self, root: Path) -> None:
        self._tokenizer: Any = _load(root)  # tokenizers.Tokenizer, which has no types
        self._known: dict[int, str] = {}

    def of(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each id that has one; half a character is a replacement mark."""
        if self._tokenizer is None:
            return {}
        found: dict[int, str] = {}
        for token in set(ids):
            if token not in self._known:
                self._known[token] = self._tokenizer.decode([token], skip_special_tokens=False)
            found[token] = self._known[token]
        return found


def token_ids(episode: dict[str, Any]) -> set[int]:
    """Return all token ids of an episode as JSON values."""
    return {
        token
        for turn in episode["turns"]
        for span in turn.get("spans") or ()
        for token in span["token_ids"]
    }


def _load(root: Path) -> Any:
    files = [root / _NAME, *sorted(root.glob(f"checkpoints/*/model/{_NAME}"), reverse=True)]
    files += sorted(root.glob(f"*/checkpoints/*/model/{_NAME}"))
    for file in files:
        if file.is_file():
            try:
                from tokenizers import Tokenizer

                return Tokenizer.from_file(str(file))
            except Exception:  # noqa: BLE001 - it raises nothing more precise; ids are shown instead
                return None
    return None
