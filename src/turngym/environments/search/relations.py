"""What articles of the generated world say of people, places, works and events, and in which words.

Every relation has one value per subject, so that questions have one answer. A sentence is chosen
among several where the world paraphrases; a question asks in its own words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One thing that can be said of a kind of subject."""

    name: str
    subject: str
    """Kind of what it is said of: person, work, event, city or country."""
    value: str
    """Kind of the value: one of those, or ``year``, ``number`` or ``word``."""
    sentences: tuple[str, ...]
    """``{s}``: the subject, ``{o}``: the value. The first is used where nothing is paraphrased."""
    asks: tuple[str, ...]
    """Questions about ``{x}``."""
    phrase: str = ""
    """The value as a noun phrase about ``{x}``; only where the value has an article of its own."""
    is_optional: bool = False
    """Some subjects lack it, and their articles do not say so."""
    short: str = ""
    """The word for it in the world of few words."""

    @property
    def leads_on(self) -> bool:
        """True when the value has an article."""
        return bool(self.phrase)


RELATIONS: tuple[Relation, ...] = (
    Relation(
        name="birthplace", subject="person", value="city", short="home",
        phrase="the birthplace of {x}",
        sentences=("{s} was born in {o}.", "{s} came into the world in {o}.",
            "The cradle of {s} stood in {o}.", "{o} is where {s} first saw the light of day."),
        asks=("In which city was {x} born?", "What is the birthplace of {x}?"),
    ),
    Relation(
        name="birth_year", subject="person", value="year", short="year",
        sentences=("The year of birth is {o}.", "The birth is recorded for {o}.",
            "Church books give {o} for the birth of {s}."),
        asks=("In which year was {x} born?", "What is the year of birth of {x}?"),
    ),
    Relation(
        name="teacher", subject="person", value="person", short="teacher", is_optional=True,
        phrase="the teacher of {x}",
        sentences=("{s} was taught by {o}.", "{s} learned the craft from {o}.",
            "{s} spent some years as a pupil of {o}.", "It was {o} whose lessons formed {s}."),
        asks=("Who taught {x}?", "Who was the teacher of {x}?"),
    ),
    Relation(
        name="creator", subject="work", value="person", short="maker", phrase="the creator of {x}",
        sentences=("{s} was created by {o}.", "{s} is the work of {o}.",
            "{o} is the author of {s}.", "The hand behind {s} was that of {o}."),
        asks=("Who created {x}?", "Who is the creator of {x}?"),
    ),
    Relation(
        name="finished", subject="work", value="year", short="year",
        sentences=("It was finished in {o}.", "The work was completed in {o}.",
            "Its last stroke dates from {o}."),
        asks=("In which year was {x} finished?", "When was {x} completed?"),
    ),
    Relation(
        name="setting", subject="work", value="city", short="scene", is_optional=True,
        phrase="the city that is the setting of {x}",
        sentences=("It is set in {o}.", "Its scenes take place in {o}.",
            "The story unfolds in the streets of {o}."),
        asks=("In which city is {x} set?", "What city is the setting of {x}?"),
    ),
    Relation(
        name="host", subject="event", value="city", short="host", phrase="the host city of {x}",
        sentences=("It was held in {o}.", "Its venue was {o}.", "{o} welcomed the guests."),
        asks=("In which city was {x} held?", "What was the host city of {x}?"),
    ),
    Relation(
        name="founder", subject="event", value="person", short="founder", is_optional=True,
        phrase="the founder of {x}",
        sentences=("It was founded by {o}.", "It goes back to an idea of {o}.",
            "{o} brought it to life."),
        asks=("Who founded {x}?", "Who was the founder of {x}?"),
    ),
    Relation(
        name="opened", subject="event", value="year", short="year",
        sentences=("It opened in {o}.", "It began in the year {o}.",
            "The gates were thrown open in {o}."),
        asks=("In which year did {x} open?", "When did {x} begin?"),
    ),
    Relation(
        name="country", subject="city", value="country", short="land", phrase="the country of {x}",
        sentences=("{s} is a city in {o}.", "{s} belongs to {o}.",
            "{s} lies in the east of {o}."),
        asks=("In which country is {x}?", "To which country does {x} belong?"),
    ),
    Relation(
        name="settled", subject="city", value="year", short="year",
        sentences=("It was settled in {o}.", "The first houses were built in {o}.",
            "Its charter dates from {o}."),
        asks=("In which year was {x} settled?", "When was {x} settled?"),
    ),
    Relation(
        name="population", subject="city", value="number", short="people",
        sentences=("It has {o} inhabitants.", "{o} people live there.",
            "At the last count {o} souls lived in it."),
        asks=("How many inhabitants has {x}?", "How many people live in {x}?"),
    ),
    Relation(
        name="river", subject="city", value="word", short="river", is_optional=True,
        sentences=("It lies on the river {o}.", "The river {o} flows through it.",
            "Its mills were driven by the river {o}."),
        asks=("On which river does {x} lie?", "Which river flows through {x}?"),
    ),
    Relation(
        name="capital", subject="country", value="city", short="capital",
        phrase="the capital of {x}",
        sentences=("Its capital is {o}.", "It is governed from {o}.", "Parliament sits in {o}."),
        asks=("What is the capital of {x}?", "Which city is the capital of {x}?"),
    ),
    Relation(
        name="currency", subject="country", value="word", short="coin",
        sentences=("Its currency is the {o}.", "One pays with the {o} there.",
            "Its coin is called the {o}."),
        asks=("What is the currency of {x}?", "Which currency is used in {x}?"),
    ),
    Relation(
        name="language", subject="country", value="word", short="speech", is_optional=True,
        sentences=("Its people speak {o}.", "The language of the land is {o}.",
            "Its laws are written in {o}."),
        asks=("What language is spoken in {x}?", "What is the language of {x}?"),
    ),
)  # fmt: skip

BY_NAME = {relation.name: relation for relation in RELATIONS}
BY_SUBJECT = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind)
    for kind in ("person", "work", "event", "city", "country")
}
