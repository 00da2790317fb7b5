"""Experts of tasks that ask for text in fields."""

from __future__ import annotations

import re
from itertools import pairwise

from turngym.environments.web.miniwob.experts.choosing import pick_day
from turngym.environments.web.miniwob.experts.clicking import ordinal
from turngym.environments.web.miniwob.scene import Expert, Move, Scene, click, fill, first
from turngym.environments.web.observation import Element


def _fields(scene: Scene, *pairs: tuple[Element | None, str]) -> Move | None:
    """Fill the first field that does not hold its text yet; None when all do."""
    for field, text in pairs:
        if field is not None and field.value not in (text, "*" * len(text)):
            return fill(field, text)
    return None


def _submit(scene: Scene) -> Move:
    for name in ("Submit", "Search", "Login", "OK"):
        found = scene.named(name)
        if found is not None:
            return click(found)
    return "wait", {}


def _one_field(scene: Scene, text: str, field: Element | None = None) -> Move:
    field = field or first(scene.all("textbox", "date", "time", "spinbutton"))
    return _fields(scene, (field, text)) or _submit(scene)


def _quoted(scene: Scene) -> Move:
    return _one_field(scene, scene.quoted[0])


def _cased(scene: Scene) -> Move:
    word = scene.quoted[0]
    return _one_field(scene, word.upper() if "upper" in scene.goal else word.lower())


def _password(scene: Scene) -> Move:
    word = scene.quoted[0]
    return _fields(scene, *((field, word) for field in scene.all("textbox"))) or _submit(scene)


def _login(scene: Scene) -> Move:
    user, password = scene.quoted[:2]
    pairs = (scene.hinted("#username"), user), (scene.hinted("#password"), password)
    return _close_popup(scene) or _fields(scene, *pairs) or _submit(scene)


def _close_popup(scene: Scene) -> Move | None:
    """Send away what lies above the form."""
    cancel = scene.named("Cancel", "button") or scene.hinted("#popup-cancel")
    return click(cancel) if cancel is not None else None


def _date(scene: Scene) -> Move:
    month, day, year = re.findall(r"(\d+)/(\d+)/(\d+)", scene.goal)[0]
    return _one_field(scene, f"{year}-{month}-{day}")


def _time(scene: Scene) -> Move:
    hour, minute, half = re.findall(r"(\d+):(\d+)\s*(AM|PM)", scene.goal)[0]
    return _one_field(scene, f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}")


def _word(scene: Scene) -> Move:
    text = first(one for one in scene.all("text") if one.name)
    words = [] if text is None else re.findall(r"[^\s.,]+", text.name)
    return _one_field(scene, words[ordinal(scene.goal) - 1])


def _last_word(scene: Scene) -> Move:
    text = scene.hinted("#text-area")
    words = [] if text is None else text.value.split()
    return _one_field(scene, words[-1], scene.hinted("#answer-input"))


def _scroll(scene: Scene) -> Move:
    """Scroll a text area as far as the goal says."""
    area = scene.hinted("#text-area")
    way = "up" if "top" in scene.goal else "down"
    is_at_end = any("nothing more to scroll" in note for note in scene.view.notes)
    if area is not None and not is_at_end:
        return "scroll_in", {"direction": way, "mark": area.mark}
    return click(scene.named("Submit", "button"))


def _agreement(scene: Scene) -> Move:
    if "Scroll" not in scene.goal:
        return click(scene.named("Cancel", "button"))
    field = scene.named("Name") or first(scene.all("textbox")[1:])
    area = scene.hinted("#text-area")
    if field is not None and "disabled" in field.states and area is not None:
        return "scroll_in", {"direction": "down", "mark": area.mark}
    name, button = re.findall(r'name "(.*?)" then press "(.*?)"', scene.goal)[0]
    return _fields(scene, (field, name)) or click(scene.named(button, "button"))


def _transform(scene: Scene) -> Move:
    text = first(one for one in scene.all("text", "canvas") if one.name)
    return _one_field(scene, "" if text is None else text.name.replace(" ", ""))


def _copy(scene: Scene) -> Move:
    """Copy with the keys, because the text may end with a blank."""
    areas = [one for one in scene.all("textbox") if "multi-line" in one.states]
    source = areas[ordinal(scene.goal) - 1]
    target = scene.hinted("#answer-input")
    steps: list[Move] = [
        click(source),
        ("press", {"keys": "Control+A"}),
        ("press", {"keys": "Control+C"}),
        click(target),
        ("press", {"keys": "Control+V"}),
        click(scene.named("Submit", "button")),
    ]
    return steps[min(len(scene.past), len(steps) - 1)]


def _complete(scene: Scene) -> Move:
    """Type the beginning, and take the proposal with the right ending."""
    begin = scene.quoted[0]
    end = scene.quoted[1] if len(scene.quoted) > 1 else ""
    field = first(scene.all("textbox", "combobox", "searchbox"))
    if field is not None and field.value.startswith(begin) and field.value.endswith(end) and end:
        return click(scene.named("Submit", "button"))
    if not scene.count("type"):
        return fill(field, begin)
    proposals = [
        one
        for one in scene.elements
        if one.mark
        and one.role not in ("textbox", "button", "status")
        and one.name.startswith(begin)
        and one.name.endswith(end)
    ]
    if proposals and not scene.count("click"):
        return click(proposals[0])
    return click(scene.named("Submit", "button")) if scene.count("click") else ("wait", {})


def _table(scene: Scene) -> Move:
    key = re.findall(r"value of (.+) into", scene.goal)[0]
    return _one_field(scene, _rows(scene)[key])


def _table_2(scene: Scene) -> Move:
    rows, lines = _rows(scene), list(scene.elements)
    pairs = [
        (after, rows[one.name.rstrip(":")])
        for one, after in pairwise(lines)
        if one.role == "text" and after.role == "textbox" and one.name.rstrip(":") in rows
    ]
    return _fields(scene, *pairs) or _submit(scene)


def _rows(scene: Scene) -> dict[str, str]:
    pairs = [one.name.split(" | ", 1) for one in scene.all("row")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _arithmetic(scene: Scene) -> Move:
    left, sign, right = _sum(scene, r"(-?\d+) ?([-+x*/÷]) ?(-?\d+)")
    a, b = int(left), int(right)
    value = {"+": a + b, "-": a - b, "x": a * b, "*": a * b, "/": a // (b or 1)}[sign]
    return _one_field(scene, str(value))


def _algebra(scene: Scene) -> Move:
    left, sign, right, total = _sum(scene, r"(-?\w+) ([-+]) (-?\w+) = (-?\d+)")
    if left == "x":
        value = int(total) - int(right) if sign == "+" else int(total) + int(right)
    else:
        value = int(total) - int(left) if sign == "+" else int(left) - int(total)
    return _one_field(scene, str(value))


def _sum(scene: Scene, pattern: str) -> tuple[str, ...]:
    text = " ".join(one.name for one in scene.all("text"))
    found: tuple[str, ...] = re.findall(pattern, text)[0]
    return found


def _addition(scene: Scene) -> Move:
    return _one_field(scene, str(sum("addition-block" in one.hint for one in scene.elements)))


def _search(scene: Scene) -> Move:
    """Search, turn to the page of the wanted result, and click it."""
    place = ordinal(scene.goal.split("click the")[1]) - 1
    field = scene.hinted("#search-text")
    if field is not None and field.value != scene.quoted[0]:
        return fill(field, scene.quoted[0])
    links = scene.all("link")
    titles = [one for one in links if not re.fullmatch(r"[<>]|\d|First|Last|Prev|Next", one.name)]
    if not titles:
        return click(scene.named("Search", "button"))
    page = place // 3 + 1
    if page > 1 and scene.count("click") < 2:
        return click(scene.named(str(page), "link"))
    return click(titles[place % 3])


def _guess(scene: Scene) -> Move:
    """Try one number after the other."""
    if scene.past and scene.past[-1].name == "type":
        return click(scene.named("Submit", "button"))
    return fill(first(scene.all("spinbutton", "textbox")), str(scene.count("type") % 10))


def _movies(scene: Scene) -> Move:
    genre, name, year = re.findall(r"for (.+) movies directed by (.+) from year (\d+)", scene.goal)[
        0
    ]
    wanted = {"genre": genre, "director": name, "year": year}
    lines = [one for one in scene.elements if one.role == "textbox" or _told(one, wanted)]
    if lines[0].role == "textbox":  # labels stand behind their fields
        lines.reverse()
    pairs = [
        (field, wanted[_told(label, wanted)])
        for label, field in pairwise(lines)
        if field.role == "textbox" and label.role != "textbox"
    ]
    return _fields(scene, *pairs) or _submit(scene)


def _told(one: Element, wanted: dict[str, str]) -> str:
    """Return the key that a label is about, or nothing."""
    is_label = one.role in ("text", "heading") and "movie" not in one.name.lower()
    return next((key for key in wanted if is_label and key in one.name.lower()), "")


def _terminal(scene: Scene) -> Move:
    """List the files, and remove one with the right ending."""
    field = scene.hinted("#terminal-target")
    if not scene.past:
        return click(field)
    if not any(one.name == "submit" for one in scene.past):
        return "submit", {"mark": field.mark if field else 0, "text": "ls"}
    text = " ".join(one.name for one in scene.all("text")[4:])
    ending = re.findall(r"extension (\.\w+)", scene.goal)
    files = [
        one
        for one in text.split()
        if (one.endswith(ending[0]) if ending else re.fullmatch(r"[a-z]+", one) and one != "ls")
    ]
    return "submit", {"mark": field.mark if field else 0, "text": f"rm {files[0] if files else ''}"}


def _flight(scene: Scene) -> Move:
    """Fill in both cities and the day, and book the best flight."""
    best, origin, target, month, day = re.findall(
        r"Book the (\w+) one-way flight from: (.+) to: (.+) on (\d+)/(\d+)/\d+", scene.goal
    )[0]
    prices = [one for one in scene.elements if one.mark and "$" in one.name]
    if prices:
        if best == "cheapest":
            return click(min(prices, key=lambda one: int(re.findall(r"\$(\d+)", one.name)[0])))
        times = [
            int(hours) * 60 + int(minutes)
            for one in scene.elements
            for hours, minutes in re.findall(r"(\d+)h (\d+)m", one.name)
        ]
        return click(prices[times.index(min(times))])
    for name, city in (("From:", origin), ("To:", target)):
        field = scene.named(name)
        if field is None or (city in field.value and "(" in field.value):
            continue
        shown = first(
            one
            for one in scene.elements
            if one.mark and one.mark != field.mark and city in one.name and "(" in one.name
        )
        if city not in field.value:
            return fill(field, city)
        return click(shown)  # waits while the proposals are not there
    field = scene.hinted("#datepicker")
    if field is not None and not field.value:
        return pick_day(scene, int(month), int(day)) or click(field)
    return click(scene.named("Search", "button"))


TYPING: dict[str, Expert] = {
    "book-flight": _flight, "book-flight-nodelay": _flight, "copy-paste": _copy,
    "copy-paste-2": _copy, "enter-date": _date, "enter-password": _password, "enter-text": _quoted,
    "enter-text-2": _cased, "enter-text-dynamic": _quoted, "enter-time": _time, "find-word": _word,
    "guess-number": _guess, "login-user": _login, "login-user-popup": _login,
    "multi-layouts": _movies, "multi-orderings": _movies, "read-table": _table,
    "read-table-2": _table_2, "scroll-text": _last_word, "scroll-text-2": _scroll,
    "search-engine": _search, "sign-agreement": _agreement, "simple-algebra": _algebra,
    "simple-arithmetic": _arithmetic, "terminal": _terminal, "text-transform": _transform,
    "use-autocomplete": _complete, "use-autocomplete-nodelay": _complete,
    "visual-addition": _addition,
}  # fmt: skip
