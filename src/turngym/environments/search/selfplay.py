"""Search self-play: a proposer writes questions about a corpus, a check passes what can be found.

A proposer is any function from a document and a generator to a ``Question``; a language model that
reads the document makes one, ``ClozeProposer`` is the deterministic baseline. What passes is a
question for ``search/corpus``, and what the solvers then make of it rewards the proposer.

Source:
    Search self-play (SSP), 2025: proposer and solver are one model, questions are verified by
    answering them from the documents that the proposer read. We verify by the documents alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.backends.sqlite import SqliteBackend
from turngym.environments.search.documents import Document, terms
from turngym.environments.search.questions import Lookup, Question, leaks, unreachable
from turngym.errors import ConfigError
from turngym.tasks.scorers.answers import contains_answer

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_CANDIDATE = re.compile(r"\b(?:[A-Z][\w'-]+(?: (?:of )?[A-Z][\w'-]+)*|\d(?:[\w.,:+~-]*\w)?)")
_PRONOUNS = ("It ", "Its ")
_NO_ANSWERS = frozenset({"X", "It", "Its", "The"})
_MAX_SENTENCE_WORDS = 25
_MAX_LINKS = 8
_TITLE_QUERIES = 5

_Masked = tuple[str, str]
"""A sentence with its subject and its answer masked, and the answer."""


Proposer = Callable[[Document, SearchBackend, Random], Question | None]
"""(a document to start from, the corpus, chance) -> a question, not yet believed, or None."""


@dataclass(slots=True)
class ProposalCounts:
    """What became of the proposals."""

    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason to number."""


def verdict(
    question: Question, backend: SearchBackend, *, k: int = 5, snippet_words: int = 24
) -> str:
    """Return why ``question`` is rejected, or "" when retrieval alone solves it.

    It passes when each query of the plan holds only words of the question and of the documents
    before, each finds its document among ``k``, the last document holds the answer, and neither the
    question nor a single search gives it away.

    Args:
        question: What to judge.
        backend: The corpus.
        k: Results of a search.
        snippet_words: Words shown of each result.
    """
    if not question.text.strip() or not terms(question.answers[0]) or not question.plan:
        return "incomplete"
    known = set(terms(question.text))
    text = ""
    for step in question.plan:
        if not set(terms(step.query)) <= known:
            return "a query needs words that were not given"
        document = backend.get(step.doc)
        if document is None:
            return "a document does not exist"
        text = f"{document.title}. {document.text}"
        known.update(terms(text))
    if not contains_answer(text, question.answers[0]):
        return "the last document does not hold the answer"
    if unreachable(question, backend, k=k):
        return "a query does not find its document"
    return leaks(question, backend, k=k, snippet_words=snippet_words)


def self_play_questions(
    proposer: Proposer,
    backend: SqliteBackend,
    *,
    seed: int,
    attempts: int,
    counts: ProposalCounts | None = None,
) -> Iterator[Question]:
    """Yield what ``proposer`` writes about random documents and ``verdict`` lets pass.

    Args:
        proposer: Who writes.
        backend: The corpus; its documents are sampled by number.
        seed: Decides the documents and every other chance.
        attempts: Documents that are shown to the proposer.
        counts: Counts what became of each.

    Raises:
        ConfigError: ``attempts`` is less than 1.
    """
    if attempts < 1:
        raise ConfigError(f"self-play: attempts must be at least 1, got {attempts}")
    rng, seen = Random(seed), set()
    counts = counts if counts is not None else ProposalCounts()
    for _ in range(attempts):
        document = backend.by_number(rng.randrange(backend.num_documents) + 1)
        proposal = proposer(document, backend, rng)
        reason = "no idea" if proposal is None else verdict(proposal, backend)
        if proposal is None or reason:
            counts.rejected[reason] += 1
        elif proposal.text in seen:
            counts.rejected["asked before"] += 1
        else:
            seen.add(proposal.text)
            counts.accepted += 1
            facts = " ".join(step.doc for step in proposal.plan)
            yield replace(proposal, kind="self-play", facts=facts)


def proposer_rewards(solved: Sequence[Sequence[bool]]) -> list[float]:
    """Return what each accepted question earns its proposer: one minus the share that solved it.

    The game is zero-sum between proposer and solvers. A question that no one solved earns nothing:
    it may be as wrong as it is hard.

    Args:
        solved: Per question, whether each attempt solved it; one attempt or more.

    Raises:
        ConfigError: A question has no attempt.
    """
    rewards = []
    for attempts in solved:
        if not attempts:
            raise ConfigError("self-play: a question without attempts has no reward")
        share = sum(attempts) / len(attempts)
        rewards.append(1.0 - share if share > 0 else 0.0)
    return rewards


class ClozeProposer:
    """Asks for a name or number in a sentence of an article that the given one mentions.

    "The article 'Kite' mentions someone or something, call it X. An article says: 'X was born in
    ___.' What fills the gap?" The name of X is not shown, so one has to read the first article. No
    other article that the first one mentions may have the same sentence with another filling.
    """

    def __call__(self, document: Document, backend: SearchBackend, rng: Random) -> Question | None:
        links = list(document.links)
        rng.shuffle(links)
        mentioned = [one for title in links[:_MAX_LINKS] if (one := _by_title(title, backend))]
        mentioned = [one for one in mentioned if one.id != document.id]
        for target in mentioned:
            masked = _masked(target, document)
            rng.shuffle(masked)
            for sentence, answer in masked:
                rivals = [_masked(one, document) for one in mentioned if one is not target]
                same = [one for found in [masked, *rivals] for one in found if one[0] == sentence]
                if len(same) == 1:
                    return _cloze(document, target, sentence, answer)
        return None


def _cloze(document: Document, target: Document, sentence: str, answer: str) -> Question:
    text = (
        f"The article {document.title!r} mentions someone or something, call it X. The article on "
        f"X says: '{sentence}' What fills the gap?"
    )
    plan = tuple(Lookup(query=one.title, doc=one.id) for one in (document, target))
    return Question(text=text, answers=(answer,), plan=plan)


def _masked(target: Document, start: Document) -> list[_Masked]:
    """Return the sentences of ``target`` with its title as X and one name or number as a gap."""
    found = []
    for sentence in _SENTENCE_END.split(target.text):
        is_about = target.title in sentence or sentence.startswith(_PRONOUNS)
        if len(sentence.split()) > _MAX_SENTENCE_WORDS or not is_about:
            continue
        masked = sentence.replace(target.title, "X")
        for match in _CANDIDATE.finditer(masked):
            if match[0] in _NO_ANSWERS or contains_answer(f"{start.title}. {start.text}", match[0]):
                continue
            found.append((f"{masked[: match.start()]}___{masked[match.end() :]}", match[0]))
    return found


def _by_title(title: str, backend: SearchBackend) -> Document | None:
    """Return the document with this title, or None."""
    for hit in backend.search(title, _TITLE_QUERIES):
        if hit.title == title:
            return backend.get(hit.id)
    return None
