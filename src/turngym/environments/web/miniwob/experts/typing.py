"""Experts of tasks that ask for text in fields, and of the forms of two airlines."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from turngym.environments.web.expert_view import (
    Expert,
    ExpertView,
    Move,
    click,
    fill,
    fill_in,
    first,
)
from turngym.environments.web.miniwob.experts.choosing import pick_day
from turngym.environments.web.miniwob.experts.clicking import ordinal
from turngym.environments.web.observation import Element


def _submit(page: ExpertView) -> Move:
    for name in ("Submit", "Search", "Login", "OK", "Go!"):
        found = page.named(name)
        if found is not None:
            return click(found)
    return "wait", {}


def _one_field(page: ExpertView, text: str, field: Element | None = None) -> Move:
    field = field or first(page.all("textbox", "date", "time", "spinbutton"))
    return fill_in((field, text)) or _submit(page)


def _quoted(page: ExpertView) -> Move:
    return _one_field(page, page.quoted[0])


def _cased(page: ExpertView) -> Move:
    word = page.quoted[0]
    return _one_field(page, word.upper() if "upper" in page.goal else word.lower())


def _password(page: ExpertView) -> Move:
    word = page.quoted[0]
    return fill_in(*((field, word) for field in page.all("textbox"))) or _submit(page)


def _login(page: ExpertView) -> Move:
    user, password = page.quoted[:2]
    pairs = (page.hinted("#username"), user), (page.hinted("#password"), password)
    popup = page.named("Cancel", "button") or page.hinted("#popup-cancel")  # above the form
    return click(popup) if popup is not None else fill_in(*pairs) or _submit(page)


def _date(page: ExpertView) -> Move:
    month, day, year = re.findall(r"(\d+)/(\d+)/(\d+)", page.goal)[0]
    return _one_field(page, f"{year}-{month}-{day}")


def _time(page: ExpertView) -> Move:
    hour, minute, half = re.findall(r"(\d+):(\d+)\s*(AM|PM)", page.goal)[0]
    return _one_field(page, f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}")


def _word(page: ExpertView) -> Move:
    text = first(one for one in page.all("text") if one.name)
    words = [] if text is None else re.findall(r"[^\s.,]+", text.name)
    return _one_field(page, words[ordinal(page.goal) - 1])


def _last_word(page: ExpertView) -> Move:
    text = page.hinted("#text-area")
    words = [] if text is None else text.value.split()
    return _one_field(page, words[-1], page.hinted("#answer-input"))


def _scroll(page: ExpertView) -> Move:
    """Scroll a text area as far as the goal says."""
    area = page.hinted("#text-area")
    way = "up" if "top" in page.goal else "down"
    is_at_end = any("nothing more to scroll" in note for note in page.view.notes)
    if area is not None and not is_at_end:
        return "scroll_in", {"direction": way, "mark": area.mark}
    return page.submit()


def _agreement(page: ExpertView) -> Move:
    if "Scroll" not in page.goal:
        return click(page.named("Cancel", "button"))
    field = page.named("Name") or first(page.all("textbox")[1:])
    area = page.hinted("#text-area")
    if field is not None and "disabled" in field.states and area is not None:
        return "scroll_in", {"direction": "down", "mark": area.mark}
    name, button = re.findall(r'name "(.*?)" then press "(.*?)"', page.goal)[0]
    return fill_in((field, name)) or page.submit(button)


def _transform(page: ExpertView) -> Move:
    text = first(one for one in page.all("text", "canvas") if one.name)
    return _one_field(page, "" if text is None else text.name.replace(" ", ""))


def _copy(page: ExpertView) -> Move:
    """Copy with the keys, because the text may end with a blank."""
    areas = [one for one in page.all("textbox") if "multi-line" in one.states]
    source = areas[ordinal(page.goal) - 1]
    target = page.hinted("#answer-input")
    steps: list[Move] = [
        click(source), ("press", {"keys": "Control+A"}), ("press", {"keys": "Control+C"}),
        click(target), ("press", {"keys": "Control+V"}), page.submit(),
    ]  # fmt: skip
    return steps[min(len(page.past), len(steps) - 1)]


def _complete(page: ExpertView) -> Move:
    """Type the beginning, and take the proposal with the right ending."""
    begin = page.quoted[0]
    end = page.quoted[1] if len(page.quoted) > 1 else ""
    field = first(page.all("textbox", "combobox", "searchbox"))
    if field is not None and field.value.startswith(begin) and field.value.endswith(end) and end:
        return page.submit()
    if not page.count("type"):
        return fill(field, begin)
    proposals = [
        one
        for one in page.elements
        if one.mark
        and one.role not in ("textbox", "button", "status")
        and one.name.startswith(begin)
        and one.name.endswith(end)
    ]
    if proposals and not page.count("click"):
        return click(proposals[0])
    return page.submit() if page.count("click") else ("wait", {})


def _table(page: ExpertView) -> Move:
    key = re.findall(r"value of (.+) into", page.goal)[0]
    return _one_field(page, _rows(page)[key])


def _table_2(page: ExpertView) -> Move:
    rows, lines = _rows(page), list(page.elements)
    pairs = [
        (after, rows[one.name.rstrip(":")])
        for one, after in pairwise(lines)
        if one.role == "text" and after.role == "textbox" and one.name.rstrip(":") in rows
    ]
    return fill_in(*pairs) or _submit(page)


def _rows(page: ExpertView) -> dict[str, str]:
    pairs = [one.name.split(" | ", 1) for one in page.all("row")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _arithmetic(page: ExpertView) -> Move:
    left, sign, right = _sum(page, r"(-?\d+) ?([-+x*/÷]) ?(-?\d+)")
    a, b = int(left), int(right)
    value = {"+": a + b, "-": a - b, "x": a * b, "*": a * b, "/": a // (b or 1)}[sign]
    return _one_field(page, str(value))


def _algebra(page: ExpertView) -> Move:
    left, sign, right, total = _sum(page, r"(-?\w+) ([-+]) (-?\w+) = (-?\d+)")
    if left == "x":
        value = int(total) - int(right) if sign == "+" else int(total) + int(right)
    else:
        value = int(total) - int(left) if sign == "+" else int(left) - int(total)
    return _one_field(page, str(value))


def _sum(page: ExpertView, pattern: str) -> tuple[str, ...]:
    text = " ".join(one.name for one in page.all("text"))
    found: tuple[str, ...] = re.findall(pattern, text)[0]
    return found


def _search(page: ExpertView) -> Move:
    """Search, turn to the page of the wanted result, and click it."""
    place = ordinal(page.goal.split("click the")[1]) - 1
    if move := fill_in((page.hinted("#search-text"), page.quoted[0])):
        return move
    links = page.all("link")
    titles = [one for one in links if not re.fullmatch(r"[<>]|\d|First|Last|Prev|Next", one.name)]
    if not titles:
        return click(page.named("Search", "button"))
    number = place // 3 + 1
    if number > 1 and page.count("click") < 2:
        return click(page.named(str(number), "link"))
    return click(titles[place % 3])


def _guess(page: ExpertView) -> Move:
    """Try one number after the other."""
    if page.past and page.past[-1].name == "type":
        return page.submit()
    return fill(first(page.all("spinbutton", "textbox")), str(page.count("type") % 10))


def _movies(page: ExpertView) -> Move:
    pattern = r"for (.+) movies directed by (.+) from year (\d+)"
    genre, name, year = re.findall(pattern, page.goal)[0]
    wanted = {"genre": genre, "director": name, "year": year, "date": year}
    lines = [one for one in page.elements if one.role == "textbox" or _value_for(one, wanted)]
    if lines[0].role == "textbox":  # labels stand behind their fields
        lines.reverse()
    pairs = [
        (field, wanted[_value_for(label, wanted)])
        for label, field in pairwise(lines)
        if field.role == "textbox" and label.role != "textbox"
    ]
    return fill_in(*pairs) or _submit(page)


def _value_for(one: Element, wanted: dict[str, str]) -> str:
    """Return the key that a label is about, or nothing."""
    is_label = one.role in ("text", "heading") and "movies" not in one.name.lower()
    return next((key for key in wanted if is_label and key in one.name.lower()), "")


def _terminal(page: ExpertView) -> Move:
    """List the files, and remove one with the right ending."""
    field = page.hinted("#terminal-target")
    if not page.past:
        return click(field)
    command = "ls"
    if page.count("submit"):
        text = " ".join(one.name for one in page.all("text")[4:])
        ending = re.findall(r"extension (\.\w+)", page.goal)
        files = (
            one
            for one in text.split()
            if (one.endswith(*ending) if ending else "." not in one and one not in ("ls", "user$"))
        )
        command = f"rm {next(files, '')}"
    return "submit", {"mark": field.mark if field else 0, "text": command}


def _flight(page: ExpertView) -> Move:
    """Fill in both cities and the day, and book the best flight."""
    best, origin, target, month, day = re.findall(
        r"Book the (\w+) one-way flight from: (.+) to: (.+) on (\d+)/(\d+)/\d+", page.goal
    )[0]
    prices = [one for one in page.elements if one.mark and "$" in one.name]
    if prices:
        if best == "cheapest":
            return click(min(prices, key=lambda one: int(re.findall(r"\$(\d+)", one.name)[0])))
        times = [
            int(hours) * 60 + int(minutes)
            for one in page.elements
            for hours, minutes in re.findall(r"(\d+)h (\d+)m", one.name)
        ]
        return click(prices[times.index(min(times))])
    for name, city in (("From:", origin), ("To:", target)):
        field = page.named(name)
        if field is None or (city in field.value and "(" in field.value):
            continue
        shown = first(
            one
            for one in page.elements
            if one.mark and one.mark != field.mark and city in one.name and "(" in one.name
        )
        if city not in field.value:
            return fill(field, city)
        return click(shown)  # waits while the proposals are not there
    field = page.hinted("#datepicker")
    if field is not None and not field.value:
        return pick_day(page, int(month), int(day)) or click(field)
    return click(page.named("Search", "button"))


# The forms of two airlines.


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
    radio = page.named("First", "radio")
    if radio is None:
        return click(page.named("More search options"))
    return None if "checked" in radio.states else click(radio)


def _field(page: ExpertView, begin: str) -> Element | None:
    return first(one for one in page.all("textbox") if one.name.startswith(begin))


def _index(page: ExpertView, name: str) -> int | None:
    return next((i for i, one in enumerate(page.elements) if one.name == name), None)


def _after(page: ExpertView, index: int, name: str) -> Element | None:
    """Return the first link called ``name`` after a line."""
    rest = page.elements[index + 1 :]
    return first(one for one in rest if one.role == "link" and one.name == name)


TYPING: dict[str, Expert] = {
    "flight.AA": _american, "flight.Alaska": _alaska, "flight.Alaska-auto": _alaska,
    "book-flight": _flight, "book-flight-nodelay": _flight, "copy-paste": _copy,
    "copy-paste-2": _copy, "enter-date": _date, "enter-password": _password, "enter-text": _quoted,
    "enter-text-2": _cased, "enter-text-dynamic": _quoted, "enter-time": _time, "find-word": _word,
    "guess-number": _guess, "login-user": _login, "login-user-popup": _login,
    "multi-layouts": _movies, "multi-orderings": _movies, "read-table": _table,
    "read-table-2": _table_2, "scroll-text": _last_word, "scroll-text-2": _scroll,
    "search-engine": _search, "sign-agreement": _agreement, "simple-algebra": _algebra,
    "simple-arithmetic": _arithmetic, "terminal": _terminal, "text-transform": _transform,
    "use-autocomplete": _complete, "use-autocomplete-nodelay": _complete,
    "visual-addition": lambda page: _one_field(
        page, str(sum("addition-block" in one.hint for one in page.elements))
    ),
}  # fmt: skip
