"""How an expert works in the tracker. Like an agent it acts on what the pages show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill
from turngym.environments.web.observation import Element

_HOME = "http://tracker.test"
_STOP: Move = ("stop", {})


def edit_tickets(numbers: Sequence[int], changes: Mapping[str, str], comment: str) -> Expert:
    """Return an expert who edits one ticket after the other and stops."""

    def expert(page: ExpertView) -> Move:
        opened = page.count("goto")
        if opened == 0:
            return _go(f"ticket/{numbers[0]}")
        if "#comment" in page.view.url:  # the last one was sent
            return _go(f"ticket/{numbers[opened]}") if opened < len(numbers) else _STOP
        if page.named("Summary:") is None:
            return click(page.named("Modify Ticket"))
        return _fill(page, changes, comment) or click(page.named("Submit changes"))

    return expert


def _fill(page: ExpertView, changes: Mapping[str, str], comment: str) -> Move | None:
    """Return the next change in the form; None when it says all."""
    fields = {k: v for k, v in changes.items() if k not in ("status", "resolution", "owner")}
    for name, text in fields.items():
        field = page.named(f"{name}:", "select", "textbox")
        if field is not None and field.value != text:
            return _set(field, text)
    if changes.get("status") == "closed":
        move = _action(page, "resolve", "#action_resolve", changes["resolution"])
    elif changes.get("status") == "reopened":
        move = _action(page, "reopen", "", "")
    elif "owner" in changes:
        move = _action(page, "reassign", "#action_reassign", changes["owner"])
    else:
        move = None
    if move is not None:
        return move
    box = page.named("You may use WikiFormatting here.", "textbox")
    return fill(box, comment) if comment and box is not None and box.value != comment else None


def _action(page: ExpertView, name: str, hint: str, text: str) -> Move | None:
    radio = page.named(name, "radio")
    if radio is not None and "checked" not in radio.states:
        return click(radio)
    field = page.hinted(hint) if hint else None
    return _set(field, text) if field is not None and field.value != text else None


def _set(field: Element, text: str) -> Move:
    if field.role == "select":
        return "select", {"mark": field.mark, "option": text}
    return fill(field, text)


def file_ticket(fields: Mapping[str, str]) -> Expert:
    """Return an expert who files a ticket and stops."""

    def expert(page: ExpertView) -> Move:
        if not page.count("goto"):
            return _go("newticket")
        if "/ticket/" in page.view.url:
            return _STOP
        return _fill(page, fields, "") or click(page.named("Create ticket"))

    return expert


def edit_page(name: str, line: str) -> Expert:
    """Return an expert who adds a line to a wiki page, new or not, and stops."""

    def expert(page: ExpertView) -> Move:
        if not page.count("goto"):
            return _go(f"wiki/{name}?action=edit")
        box = page.hinted("#text")
        if box is None:
            return _STOP
        if line in box.value:
            return click(page.named("Submit changes"))
        text = line if not box.value or box.value.endswith("\n") else f"\\n{line}"
        return "append", {"mark": box.mark, "text": text}

    return expert


def answer_after(address: str, text: str) -> Expert:
    """Return an expert who looks at one page and answers."""

    def expert(page: ExpertView) -> Move:
        return ("answer", {"text": text}) if page.count("goto") else _go(address)

    return expert


def _go(address: str) -> Move:
    return "goto", {"url": f"{_HOME}/{address}"}
