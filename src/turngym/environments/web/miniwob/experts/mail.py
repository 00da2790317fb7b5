"""Experts of the mail tasks: delete, star, reply to or forward the mail of one sender."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill, first


@dataclass(frozen=True, slots=True)
class _Wish:
    what: str
    sender: str
    detail: str = ""
    """Text of the reply, or whom to forward to."""


def _mail(page: ExpertView) -> Move:
    """Find the sender in the list, then press what the wish needs."""
    wish = _read(page.goal)
    send = page.hinted(f"#send-{wish.what}")
    if send is not None:
        fields = [one for one in page.all("textbox") if "#forward-text" not in one.hint]
        field = first(fields)
        if field is not None and field.value != wish.detail:
            return fill(field, wish.detail)
        return click(send)
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


def _read(goal: str) -> _Wish:
    sender = re.findall(r"email by (.+?) and", goal)
    if "trash" in goal:
        return _Wish("trash", sender[0])
    if "star icon" in goal:
        return _Wish("star", sender[0])
    if "reply" in goal:
        return _Wish("reply", sender[0], re.findall(r'text "(.*)"', goal)[0])
    return _Wish("forward", sender[0], re.findall(r"forward that email to (.+)\.$", goal)[0])


MAIL: dict[str, Expert] = {
    f"email-inbox{suffix}": _mail
    for suffix in ("", "-delete", "-forward", "-important", "-noscroll", "-reply", "-star-reply")
}
