"""The environment that all search tasks share: look for documents, read them, answer.

A subclass says what is searched (``backend``).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypedDict

from turngym.coroutines import finished
from turngym.environments.core.actions import (
    Action,
    ActionStyle,
    Commands,
    JsonTools,
    function_tool,
    in_style,
)
from turngym.environments.core.env import Outcome, SnapshotKind, TurnEnv
from turngym.environments.core.tasks import TaskSetEnv
from turngym.environments.search.backends.base import MAX_RESULTS, SearchBackend
from turngym.environments.search.documents import (
    Document,
    count_words,
    pages,
    passages_with,
    snippet,
    terms,
)
from turngym.environments.search.questions import Lookup, Question
from turngym.errors import ConfigError, require_known
from turngym.tasks.base import Task
from turngym.tasks.problem import AnswerWorld, judge
from turngym.tasks.scorers.answers import UNKNOWN
from turngym.tasks.sets import TaskSet


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
    score: float = 0.0
    """Of the answer."""


COMMANDS = Commands(
    {
        "search": "search {query...}",
        "open_page": "open {doc...} page {page:int}",
        "open": "open {doc...}",
        "find": "find {text...} in {doc...}",
        "answer": "answer {text...}",
    },
    help={
        "search": "finds documents",
        "open": "reads a result, by its number, id or title",
        "open_page": "reads a further page of it",
        "find": "shows where a result holds a text",
        "answer": f"ends the episode; '{UNKNOWN}' where the documents do not tell",
    },
    keep_case=True,
)


def search_tools() -> JsonTools:
    """Return the same actions as JSON tool calls, with optional ``k`` and ``page``."""
    text = {"type": "string"}
    doc = {"type": ["string", "integer"], "description": "number, id or title of a result"}
    tools: dict[str, tuple[str, dict[str, Any], list[str]]] = {
        "search": (
            "Find documents.",
            {"query": text, "k": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS}},
            ["query"],
        ),
        "open": (
            "Read a page of a result.",
            {"doc": doc, "page": {"type": "integer", "minimum": 1}},
            ["doc"],
        ),
        "find": ("Show where a result holds a text.", {"doc": doc, "text": text}, ["doc", "text"]),
        "answer": (
            f"End the episode with an answer; '{UNKNOWN}' where the documents do not tell.",
            {"text": text},
            ["text"],
        ),
    }
    return JsonTools([function_tool(name, *parts) for name, parts in tools.items()])


Reward = Literal["exact", "f1"]

_MAX_QUERY_CHARS = 1_000
_MAX_ANSWER_CHARS = 1_000
_FOUND_PLACES, _PLACE_CHARS = 5, 80
_MENU_NAMES = 12
"""Names in view that the menu of actions offers to search for or to answer with."""


class SearchOptions(TypedDict, total=False):
    """Arguments that every search environment has; see ``SearchEnv``."""

    reward: Reward
    action_style: ActionStyle
    render_mode: str | None


class SearchEnv(TaskSetEnv, TurnEnv):
    """Answer a question by searching and reading.

    Args:
        tasks: The questions.
        limits: Budgets, and how results are shown.
        reward: ``"exact"`` for normalised exact match, ``"f1"`` for token F1.
        action_style: ``"commands"`` for actions in words, ``"tools"`` for JSON tool calls.
        render_mode: ``"ansi"`` or None.

    Action: ``search``, ``open``, ``find`` and ``answer``; only what a search returned can be
    opened. What cannot be carried out, a budget that is spent included, costs the turn only.
    Observation: the question, then results, pages or places in a document.
    Reward: at the answer, its exact match in {0, 1} or its token F1 in [0, 1]; else 0.
    Start: a question; ``info["ground_truth"]`` holds its answer, ``info["answer"]`` the action.
    End: terminated by any answer; ``info`` then holds ``exact_match`` and ``f1``.
    """

    snapshot_kind: ClassVar[SnapshotKind] = "exact"
    rules = (
        "Answer the question from what the documents say. Search, open what looks useful, search "
        "again for the names that you find, then answer in as few words as possible."
    )
    state: SearchState

    def __init__(
        self,
        *,
        tasks: TaskSet[Question],
        limits: Limits | None = None,
        reward: Reward = "exact",
        action_style: ActionStyle = "commands",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        require_known("reward", reward, ("exact", "f1"))
        self.tasks, self.name = tasks, tasks.name
        self.limits = limits or Limits()
        self.rules = (
            f"{self.rules} You can search {self.limits.max_searches} times and read "
            f"{self.limits.max_opened_words} words."
        )
        self._reward = reward
        self.action_format = in_style(action_style, COMMANDS, search_tools())

    @property
    @abstractmethod
    def backend(self) -> SearchBackend:
        """What is searched for the question of the running episode."""

    # One episode.

    @property
    def problem(self) -> Question:
        return self.state.question

    def begin(self, task: Task) -> Outcome:
        self._new_script()
        question = self.tasks.problem(task)
        self.state = SearchState(question=question, names=question.mentions)
        info = {"ground_truth": question.answers[0], **self._usage()}
        return Outcome(text=self._asked(), info=info)

    def turn(self, action: Action) -> Outcome:
        values = action.arguments
        if action.name == "search":
            outcome = self._do_search(str(values["query"]), values.get("k"))
        elif action.name == "answer":
            outcome = self._do_answer(str(values["text"]))
        elif action.name == "find":
            outcome = self._do_find(str(values["doc"]), str(values["text"]))
        else:
            outcome = self._do_open(str(values["doc"]), int(values.get("page", 1)))
        outcome.info = {**(outcome.info or {}), **self._usage()}
        return outcome

    def score(self) -> float:
        """Return 1 when the answer given is right, letter case and articles aside."""
        return self.state.score

    def answer(self, ground_truth: str) -> str:
        return self.say("answer", text=ground_truth)

    def reminder(self) -> str:
        return " ".join([self._asked(), *([self._titles()] if self.state.hits else [])])

    def legal_actions(self) -> list[str]:
        """Return a menu: open the results, search for or answer with the names in view.

        That it is unknown is on the menu once something was searched for, else who chooses blindly
        is often right. Any other text can be searched for or given as an answer too.
        """
        s = self.state
        names = list(dict.fromkeys([*s.names, *s.question.mentions]))[:_MENU_NAMES]
        menu = [self.say("open", doc=self._reference(number)) for number in range(len(s.hits))]
        if s.searches < self.limits.max_searches:
            menu += [self.say("search", query=name) for name in names]
        answers = [*names, UNKNOWN] if s.searches or not names else names
        return [*menu, *(self.say("answer", text=name) for name in answers)]

    def state_key(self) -> str:
        """Return the question, what is in view, what was read and what is spent."""
        s = self.state
        hits, seen = " ".join(one for one, _ in s.hits), " ".join(sorted({i for i, _ in s.seen}))
        return (
            f"{s.question.content} | hits {hits} | seen {seen} | "
            f"read {' '.join(sorted(s.opened))} | names {' '.join(s.names)} | "
            f"{s.searches} searches {s.opened_words} words {s.given}"
        )

    def potential(self) -> float | None:
        """Return what is still to be earned: 1, less a twentieth for every turn of the expert."""
        s = self.state
        if not s.question.plan:
            return None
        if s.given is not None:
            return 0.0
        shown = {one for one, _ in s.hits}
        left = [step.doc for step in s.question.plan if not self._has_read(step.doc)]
        turns = [1 if number == 0 and doc in shown else 2 for number, doc in enumerate(left)]
        return 1.0 - 0.05 * (1 + sum(turns))

    def expert_action(self) -> str:
        """Return the next step of the question's plan, or of what ``follow`` was given.

        Raises:
            ConfigError: The question has none.
        """
        s = self.state
        if self._script is None and not s.question.plan:
            raise ConfigError(f"{self.name}: this question has no plan, so there is no expert")
        for step in self._script or s.question.expert():
            if not isinstance(step, Lookup):
                return self.say("answer", text=str(step))
            if self._has_read(step.doc):
                continue
            for number, (doc, _) in enumerate(s.hits):
                if doc == step.doc:
                    return self.say("open", doc=self._reference(number))
            if s.searches < self.limits.max_searches:
                return self.say("search", query=step.query)
        return self.say("answer", text=UNKNOWN)

    def get_state(self) -> SearchState:
        return self.state

    def set_state(self, state: SearchState) -> None:
        self.state = state

    def say(self, command: str, **arguments: Any) -> str:
        """Return the text that does ``command`` in the action style of this environment."""
        return self.action_format.render(Action(name=command, arguments=arguments))

    # The tools.

    def _do_search(self, query: str, k: int | None) -> Outcome:
        s = self.state
        if len(query) > _MAX_QUERY_CHARS:
            return self._refused(
                f"The query has {len(query)} characters; at most {_MAX_QUERY_CHARS} are taken."
            )
        if not terms(query):
            return self._refused("The query holds no word.")
        if s.searches >= self.limits.max_searches:
            return self._refused(f"All {self.limits.max_searches} searches are spent.")
        found = self.backend.search(query, k or self.limits.results)
        hits = tuple((hit.id, hit.title) for hit in found)
        self.state = replace(
            s,
            hits=hits,
            seen=tuple(dict.fromkeys((*s.seen, *hits))),
            names=tuple(title for _, title in hits),
            searches=s.searches + 1,
        )
        if not self.limits.snippet_words:
            return Outcome(text=self._titles())
        words = frozenset(terms(query))
        lines = [
            f"{number}. {hit.title}: {snippet(hit.text, words, self.limits.snippet_words)}"
            for number, hit in enumerate(found, start=1)
        ]
        return Outcome(text="\n".join(lines) or "Nothing was found.")

    def _do_open(self, reference: str, page: int) -> Outcome:
        document, problem = self._resolve(reference)
        if document is None:
            return self._refused(problem)
        s, parts = self.state, pages(document.text, self.limits.page_words)
        if not 1 <= page <= len(parts):
            return self._refused(f"{document.title!r} has pages 1 to {len(parts)}.")
        text = parts[page - 1]
        words = count_words(text)
        if s.opened_words + words > self.limits.max_opened_words:
            left = self.limits.max_opened_words - s.opened_words
            return self._refused(f"The page has {words} words; only {left} may still be read.")
        self.state = replace(
            s,
            opened=(*s.opened, f"{document.id}#{page}"),
            names=document.links or s.names,
            opened_words=s.opened_words + words,
        )
        if not self.limits.snippet_words:
            return Outcome(text=f"read {document.title}: {text}")
        where = f" (page {page} of {len(parts)})" if len(parts) > 1 else ""
        return Outcome(text=f"{document.title}{where}\n{text}")

    def _do_find(self, reference: str, wanted: str) -> Outcome:
        document, problem = self._resolve(reference)
        if document is None:
            return self._refused(problem)
        places = passages_with(
            document.text, wanted[:_MAX_QUERY_CHARS], width=_PLACE_CHARS, limit=_FOUND_PLACES
        )
        s, words = self.state, sum(map(count_words, places))
        if s.opened_words + words > self.limits.max_opened_words:
            left = self.limits.max_opened_words - s.opened_words
            return self._refused(f"The places have {words} words; only {left} may still be read.")
        self.state = replace(s, opened_words=s.opened_words + words)
        if not places:
            return Outcome(text=f"{document.title!r} does not hold {wanted[:80]!r}.")
        return Outcome(text="\n".join(f"... {place} ..." for place in places))

    def _do_answer(self, text: str) -> Outcome:
        given = text[:_MAX_ANSWER_CHARS]
        world = AnswerWorld(answer=given)
        result = finished(judge(self.state.question, world, self._task_id))
        self.state = replace(self.state, given=given, score=result.score, hits=(), names=())
        reward = result.score if self._reward == "exact" else result.parts["f1"]
        text = "right." if result.score else "wrong."
        return Outcome(text=text, reward=reward, terminated=True, info=result.parts)

    # Helpers.

    def _resolve(self, reference: str) -> tuple[Document | None, str]:
        """Return the document that ``reference`` means, or None and why there is none."""
        s, wanted = self.state, reference.strip()
        number, low, found = wanted.removeprefix("#"), wanted.casefold(), list[str]()
        if number.isascii() and number.isdigit() and len(number) < 4:
            found += [i for i, _ in s.hits[int(number) - 1 : int(number)]]
        found += [i for i, title in s.seen if wanted in (i, title)]
        found += [i for i, title in s.seen if low in (i.casefold(), title.casefold())]
        if not found:
            return None, f"There is no result {wanted[:80]!r}; only results can be opened."
        document = self.backend.get(found[0])
        if document is None:
            return None, f"{wanted[:80]!r} cannot be read."
        return document, ""

    def _reference(self, place: int) -> str:
        """Return how this environment's own actions name the result at ``place``."""
        return self.state.hits[place][1] if not self.limits.snippet_words else str(place + 1)

    def _has_read(self, doc: str) -> bool:
        return any(one.rpartition("#")[0] == doc for one in self.state.opened)

    def _refused(self, problem: str) -> Outcome:
        return Outcome(text=f"{problem} {self.reminder()}", invalid_action=problem)

    def _asked(self) -> str:
        text = self.state.question.text
        return f"Question: {text}" if self.limits.snippet_words else text

    def _titles(self) -> str:
        """Return the latest results on one line."""
        titles = ", ".join(title for _, title in self.state.hits)
        if not self.limits.snippet_words:
            return f"found {titles or 'nothing'}."
        return f"Results: {titles}."

    def _usage(self) -> dict[str, Any]:
        s = self.state
        return {"usage": {"searches": float(s.searches), "opened_words": float(s.opened_words)}}
