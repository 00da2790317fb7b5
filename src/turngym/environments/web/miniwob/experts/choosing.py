"""Experts of tasks with boxes to tick, lists, sliders, calendars."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill_in, first
from turngym.environments.web.miniwob.experts.clicking import ordinal

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


def _checkboxes(page: ExpertView) -> Move:
    wanted = re.findall(r"Select (.*) and click", page.goal)[0].split(", ")
    for one in page.all("checkbox"):
        if one.name in wanted:
            wanted.remove(one.name)  # of two boxes with one name the first is as good a guess
            if "checked" not in one.states:
                return click(one)
    return page.submit()


def _option(page: ExpertView) -> Move:
    wanted = re.findall(r"Select (.*) and click", page.goal)[0]
    return page.tick(page.named(wanted, "radio"))


def _list(page: ExpertView) -> Move:
    wanted = re.findall(r"Select (.*) from the", page.goal)[0]
    box = first(page.all("select"))
    if box is None:
        return "wait", {}
    if "multiple" in box.states:
        left = [one for one in wanted.split(", ") if one not in box.value.split(", ")]
    else:
        left = [] if box.value == wanted else [wanted]
    if left:
        return "select", {"mark": box.mark, "option": left[0]}
    return page.submit()


def _slider(page: ExpertView) -> Move:
    wanted = int(re.findall(r"Select (-?\d+)", page.goal)[0])
    return _slide(page, [wanted]) or page.submit()


def _sliders(page: ExpertView) -> Move:
    wanted = [int(one) for one in re.findall(r"-?\d+", page.goal.split("[")[1])]
    return _slide(page, wanted) or page.submit()


def _form_sequence(page: ExpertView) -> Move:
    wanted = int(re.findall(r"Select (-?\d+)", page.goal)[0])
    box = page.all("checkbox")[ordinal(page.goal) - 1]
    return _slide(page, [wanted]) or page.tick(box)


def _slide(page: ExpertView, wanted: list[int]) -> Move | None:
    """Move handles with the arrow keys until each shows its number; None when all do."""
    handles = [one for one in page.elements if "ui-slider-handle" in one.hint]
    shown = [int(one.name) for one in page.all("text") if re.fullmatch(r"-?\d+", one.name)]
    for handle, now, target in zip(handles, shown, wanted, strict=False):
        if now == target:
            continue
        if page.view.focused != handle.mark:
            return click(handle)
        return "press", {"keys": "ArrowRight" if target > now else "ArrowLeft"}
    return None


def _spinner(page: ExpertView) -> Move:
    wanted = int(re.findall(r"Select (-?\d+)", page.goal)[0])
    field = first(page.all("spinbutton"))
    if field is None or int(field.value or 0) == wanted:
        return page.submit()
    if page.view.focused != field.mark:
        return click(field)
    return "press", {"keys": "ArrowUp" if int(field.value or 0) < wanted else "ArrowDown"}


def _form_sequence_2(page: ExpertView) -> Move:
    which = {kind: int(n) for n, kind in re.findall(r"(\d)(?:st|nd|rd|th) (radio|text)", page.goal)}
    radio = page.all("radio")[which["radio"] - 1]
    if "checked" not in radio.states:
        return click(radio)
    return fill_in((page.all("textbox")[which["text"] - 1], page.quoted[0])) or page.submit()


def _form_sequence_3(page: ExpertView) -> Move:
    wanted, button = re.findall(r'Choose (.*) from the .* labeled "(.*)"', page.goal)[0]
    box = first(page.all("select"))
    if box is not None and box.value != wanted:
        return "select", {"mark": box.mark, "option": wanted}
    return page.submit(button)


def _date(page: ExpertView) -> Move:
    """Turn the pages of the calendar to the month, and click the day."""
    month, day, year = map(int, re.findall(r"(\d+)/(\d+)/(\d+)", page.goal)[0])
    field = page.hinted("#datepicker")
    if field is not None and field.value == f"{month:02}/{day:02}/{year}":
        return page.submit()
    return pick_day(page, month, day) or click(field)


def pick_day(page: ExpertView, month: int, day: int) -> Move | None:
    """Return the next click towards ``month`` and ``day`` in an open calendar; None without one."""
    shown = next((one.name for one in page.elements if one.name.split(" ")[0] in _MONTHS), None)
    if shown is None:
        return None
    now = _MONTHS.index(shown.split(" ")[0]) + 1
    if now != month:
        return click(page.named("Next" if now < month else "Prev"))
    return click(page.named(str(day), "link"))


CHOOSING: dict[str, Expert] = {
    "choose-date": _date, "choose-date-easy": _date, "choose-date-medium": _date,
    "choose-date-nodelay": _date, "choose-list": _list, "click-checkboxes": _checkboxes,
    "click-checkboxes-large": _checkboxes, "click-checkboxes-transfer": _checkboxes,
    "click-option": _option, "click-scroll-list": _list, "form-sequence": _form_sequence,
    "form-sequence-2": _form_sequence_2, "form-sequence-3": _form_sequence_3,
    "use-slider": _slider, "use-slider-2": _sliders, "use-spinner": _spinner,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done with a mail."""

    what: str
    sender: str
    detail: str = ""
    """Text of the reply, or whom to forward to."""


def fulfil(page: ExpertView, wish: Wish) -> Move:
    """Find the sender in the list, then press what the wish needs."""
    send = page.hinted(f"#send-{wish.what}")
    if send is not None:
        fields = [one for one in page.all("textbox") if "#forward-text" not in one.hint]
        return fill_in((first(fields), wish.detail)) or click(send)
    lines = list(page.elements)
    opened = page.named(wish.what.capitalize())
    if page.hinted("#close-email") is not None:
        return click(opened or first(one for one in lines if f"email-{wish.what}" in one.hint))
    place = next(
        (i for i, one in enumerate(lines) if one.name == wish.sender and one.role == "text"), None
    )
    if place is None:
        return "wait", {}
    if wish.what in ("trash", "star"):
        return click(first(one for one in lines[place:] if wish.what in one.hint))
    return click(lines[place])


def _read(goal: str) -> Wish:
    sender = re.findall(r"email by (.+?) and", goal)
    if "trash" in goal:
        return Wish("trash", sender[0])
    if "star icon" in goal:
        return Wish("star", sender[0])
    if "reply" in goal:
        return Wish("reply", sender[0], re.findall(r'text "(.*)"', goal)[0])
    return Wish("forward", sender[0], re.findall(r"forward that email to (.+)\.$", goal)[0])


MAIL: dict[str, Expert] = {
    f"email-inbox{suffix}": lambda page: fulfil(page, _read(page.goal))
    for suffix in ("", "-delete", "-forward", "-important", "-noscroll", "-reply", "-star-reply")
}
