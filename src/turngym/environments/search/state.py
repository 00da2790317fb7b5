"""What one episode of search may spend, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turngym.environments.search.backends.base import MAX_RESULTS
from turngym.environments.search.questions import Question
from turngym.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be looked at in one episode, and how it is shown."""

    max_searches: int = 10
    max_opened_words: int = 4_000
    """Words of opened pages."""
    results: int = 5
    """Results of a search when the agent does not say how many."""
    page_words: int = 250
    snippet_words: int = 24
    """Words shown of each result; 0 lists titles on one line and keeps everything short."""

    def __post_init__(self) -> None:
        for name in ("max_searches", "max_opened_words", "results", "page_words"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"search limits: {name} must be at least 1, got {getattr(self, name)}"
                )
        if self.results > MAX_RESULTS or self.snippet_words < 0:
            raise ConfigError(
                f"search limits: results={self.results} must be at most {MAX_RESULTS} and "
                f"snippet_words={self.snippet_words} at least 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """One episode so far. Immutable, so that a snapshot of it is itself."""

    question: Question
    source: Any = None
    """What ``backend`` needs to find the corpus again; picklable."""
    hits: tuple[tuple[str, str], ...] = ()
    """Id and title of the latest results, in order."""
    seen: tuple[tuple[str, str], ...] = ()
    """Id and title of every result so far; these can be opened."""
    opened: tuple[str, ...] = ()
    """``id#page`` of what was read, in order."""
    names: tuple[str, ...] = ()
    """Names in view: of the latest results or of the page that was opened last."""
    searches: int = 0
    opened_words: int = 0
    given: str | None = None
    """The answer."""
