"""Experts of the forms of two airlines."""

from __future__ import annotations

import json
from typing import Any

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill, first
from turngym.environments.web.observation import Element

_CODES = {
    "Austin": "AUS", "Boston": "BOS", "Dallas": "DFW", "Denver": "DEN", "Las Vegas": "LAS",
    "Los Angeles": "LAX", "New York": "NYC", "Portland": "PDX", "San Diego": "SAN",
    "San Francisco": "SFO", "Washington DC": "WAS",
}  # fmt: skip
"""What the airlines of the world call a city."""
_AIRPORTS = {"Dallas": "DAL-Love", "New York": "All Airports", "Portland": ", OR",
             "Washington DC": "All Airports"}  # fmt: skip
"""Which one is meant of a city with several."""


def _american(page: ExpertView) -> Move:
    """Fill in the form of American Airlines: cities by their codes, days in a calendar."""
    wanted: dict[str, Any] = json.loads(page.goal)
    month = _index(page, "March 2017")
    if month is not None:
        is_departure = page.named("Depart", "heading") is not None
        day = wanted["Departure Day" if is_departure else "Returning Day"]
        return click(_after(page, month, str(day)))
    for begin, key in (("From", "Departure City"), ("To", "Destination City")):
        field, code = _field(page, begin), _CODES[wanted[key]]
        proposal = first(one for one in page.all("text") if one.name.startswith(f"{code} - "))
        if proposal is not None:
            return click(proposal)
        if field is not None and field.value != code:
            return fill(field, code)
    for begin in ("Depart", "Return"):
        field = _field(page, begin)
        if field is not None and not field.value:
            return click(field)
    return page.submit("Search")


def _alaska(page: ExpertView) -> Move:
    """Fill in the form of Alaska Airlines, where most has a sign or a list of its own."""
    wanted: dict[str, Any] = json.loads(page.goal)
    back = wanted.get("Returning Day")
    month = _index(page, "March 2017")
    if month is not None:
        return _pick(page, month, wanted)
    for begin, key in (("From", "Departure City"), ("To", "Destination City")):
        move = _city(page, begin, wanted[key])
        if move is not None:
            return move
    returning = page.named("Return", "textbox")
    if back is None and returning is not None:
        return click(page.named("One-way"))
    for field in (page.named("Depart", "textbox"), returning):
        if field is not None and not field.value:
            return click(field)
    minus = _index(page, "-")
    if minus is not None:
        # On a slow machine a click may show late, and be followed by one too many.
        missing = int(wanted.get("Passengers", 1)) - int(page.elements[minus + 1].name)
        if missing:
            return click(page.named("+" if missing > 0 else "-"))
    if wanted.get("Seat type") == "First":
        move = _first_class(page)
        if move is not None:
            return move
    return page.submit("Find Flights")


def _city(page: ExpertView, begin: str, city: str) -> Move | None:
    """Type the city and take what is proposed for it; None when it is there."""
    field = page.named(begin, "textbox")
    if field is None or ("(" in field.value and _name(city) in field.value):
        return None
    if field.value != city:
        return fill(field, city)
    sign = _AIRPORTS.get(city, "")
    proposals = [one for one in page.all("item", "text") if one.name.startswith(_name(city))]
    proposal = first(one for one in proposals if "(" in one.name and sign in one.name)
    # A page that was slow may have missed the keys, and would never propose anything.
    is_missed = proposal is None and all(one.name == "wait" for one in page.past[-5:])
    return fill(field, city) if is_missed else click(proposal)


def _name(city: str) -> str:
    """Return how the list of airports begins for a city."""
    return "Washington, DC" if city == "Washington DC" else f"{city}, "


def _pick(page: ExpertView, month: int, wanted: dict[str, Any]) -> Move:
    """Click the day, and then what closes the calendar."""
    title = page.elements[month - 1].name
    key = "Departure Day" if "departure" in title else "Returning Day"
    day = _after(page, month, str(wanted[key]))
    if day is not None and day.mark not in page.clicked:
        return click(day)
    return click(page.named("Done"))


def _first_class(page: ExpertView) -> Move | None:
    label = page.named("First", "text")
    if label is None:
        return click(page.named("More search options"))
    before = page.elements[page.elements.index(label) - 1]
    return None if "current" in before.hint else click(label)


def _field(page: ExpertView, begin: str) -> Element | None:
    return first(one for one in page.all("textbox") if one.name.startswith(begin))


def _index(page: ExpertView, name: str) -> int | None:
    return next((i for i, one in enumerate(page.elements) if one.name == name), None)


def _after(page: ExpertView, index: int, name: str) -> Element | None:
    """Return the first link called ``name`` after a line."""
    rest = page.elements[index + 1 :]
    return first(one for one in rest if one.role == "link" and one.name == name)


FLIGHTS: dict[str, Expert] = {
    "flight.AA": _american, "flight.Alaska": _alaska, "flight.Alaska-auto": _alaska,
}  # fmt: skip
