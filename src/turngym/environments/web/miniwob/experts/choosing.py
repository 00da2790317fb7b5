"""Experts of tasks with boxes to tick, lists, sliders, calendars."""

from __future__ import annotations

import re

from turngym.environments.web.miniwob.experts.clicking import ordinal
from turngym.environments.web.miniwob.scene import Expert, Move, Scene, click, fill, first

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


def _checkboxes(scene: Scene) -> Move:
    wanted = re.findall(r"Select (.*) and click", scene.goal)[0].split(", ")
    for one in scene.all("checkbox"):
        if one.name in wanted:
            wanted.remove(one.name)  # of two boxes with one name the first is as good a guess
            if "checked" not in one.states:
                return click(one)
    return click(scene.named("Submit", "button"))


def _option(scene: Scene) -> Move:
    wanted = re.findall(r"Select (.*) and click", scene.goal)[0]
    box = scene.named(wanted, "radio")
    if box is not None and "checked" not in box.states:
        return click(box)
    return click(scene.named("Submit", "button"))


def _list(scene: Scene) -> Move:
    wanted = re.findall(r"Select (.*) from the", scene.goal)[0]
    box = first(scene.all("select"))
    if box is None:
        return "wait", {}
    if "multiple" in box.states:
        left = [one for one in wanted.split(", ") if one not in box.value.split(", ")]
    else:
        left = [] if box.value == wanted else [wanted]
    if left:
        return "select", {"mark": box.mark, "option": left[0]}
    return click(scene.named("Submit", "button"))


def _slider(scene: Scene) -> Move:
    wanted = int(re.findall(r"Select (-?\d+)", scene.goal)[0])
    return _slide(scene, [wanted]) or click(scene.named("Submit", "button"))


def _sliders(scene: Scene) -> Move:
    wanted = [int(one) for one in re.findall(r"-?\d+", scene.goal.split("[")[1])]
    return _slide(scene, wanted) or click(scene.named("Submit", "button"))


def _form_sequence(scene: Scene) -> Move:
    wanted = int(re.findall(r"Select (-?\d+)", scene.goal)[0])
    move = _slide(scene, [wanted])
    if move is not None:
        return move
    box = scene.all("checkbox")[ordinal(scene.goal) - 1]
    return click(scene.named("Submit", "button") if "checked" in box.states else box)


def _slide(scene: Scene, wanted: list[int]) -> Move | None:
    """Move handles with the arrow keys until each shows its number; None when all do."""
    handles = [one for one in scene.elements if "ui-slider-handle" in one.hint]
    shown = [int(one.name) for one in scene.all("text") if re.fullmatch(r"-?\d+", one.name)]
    for handle, now, target in zip(handles, shown, wanted, strict=False):
        if now == target:
            continue
        if scene.view.focused != handle.mark:
            return click(handle)
        return "press", {"keys": "ArrowRight" if target > now else "ArrowLeft"}
    return None


def _spinner(scene: Scene) -> Move:
    wanted = int(re.findall(r"Select (-?\d+)", scene.goal)[0])
    field = first(scene.all("spinbutton"))
    if field is None or int(field.value or 0) == wanted:
        return click(scene.named("Submit", "button"))
    if scene.view.focused != field.mark:
        return click(field)
    return "press", {"keys": "ArrowUp" if int(field.value or 0) < wanted else "ArrowDown"}


def _form_sequence_2(scene: Scene) -> Move:
    which = {
        kind: int(n) for n, kind in re.findall(r"(\d)(?:st|nd|rd|th) (radio|text)", scene.goal)
    }
    radio = scene.all("radio")[which["radio"] - 1]
    if "checked" not in radio.states:
        return click(radio)
    field = scene.all("textbox")[which["text"] - 1]
    if field.value != scene.quoted[0]:
        return fill(field, scene.quoted[0])
    return click(scene.named("Submit", "button"))


def _form_sequence_3(scene: Scene) -> Move:
    wanted, button = re.findall(r'Choose (.*) from the .* labeled "(.*)"', scene.goal)[0]
    box = first(scene.all("select"))
    if box is not None and box.value != wanted:
        return "select", {"mark": box.mark, "option": wanted}
    return click(scene.named(button, "button"))


def _date(scene: Scene) -> Move:
    """Turn the pages of the calendar to the month, and click the day."""
    month, day, year = map(int, re.findall(r"(\d+)/(\d+)/(\d+)", scene.goal)[0])
    field = scene.hinted("#datepicker")
    if field is not None and field.value == f"{month:02}/{day:02}/{year}":
        return click(scene.named("Submit", "button"))
    return pick_day(scene, month, day) or click(field)


def pick_day(scene: Scene, month: int, day: int) -> Move | None:
    """Return the next click in an open calendar; None when none is open."""
    shown = next((one.name for one in scene.elements if one.name.split(" ")[0] in _MONTHS), None)
    if shown is None:
        return None
    now = _MONTHS.index(shown.split(" ")[0]) + 1
    if now != month:
        return click(scene.named("Next" if now < month else "Prev"))
    return click(scene.named(str(day), "link"))


CHOOSING: dict[str, Expert] = {
    "choose-date": _date, "choose-date-easy": _date, "choose-date-medium": _date,
    "choose-date-nodelay": _date, "choose-list": _list, "click-checkboxes": _checkboxes,
    "click-checkboxes-large": _checkboxes, "click-checkboxes-transfer": _checkboxes,
    "click-option": _option, "click-scroll-list": _list, "form-sequence": _form_sequence,
    "form-sequence-2": _form_sequence_2, "form-sequence-3": _form_sequence_3,
    "use-slider": _slider, "use-slider-2": _sliders, "use-spinner": _spinner,
}  # fmt: skip
