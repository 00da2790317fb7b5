"""Tasks in a real issue tracker, done by an expert and judged on its database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from turngym.environments.web.expert_view import ExpertView, Move, Stage, click, fill, press, visit
from turngym.environments.web.observation import Element
from turngym.environments.web.settings import LOCAL
from turngym.environments.web.sites.catalogue import TRACKER
from turngym.environments.web.sites.data import Data, Row
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import Generator, Made, question

_PRIORITIES = ("blocker", "critical", "major", "minor", "trivial")
_TYPES = ("defect", "enhancement", "task")
_COMPONENTS = ("account", "cart", "mobile", "payment", "search")
_OWNERS = ("ada", "ben", "cleo", "dan", "eva")
_RESOLUTIONS = ("duplicate", "invalid", "wontfix", "worksforme")
_COMMENTS = (
    "Seen again today", "Please try the new version", "This blocks the release",
    "The customer agrees", "Screenshots will follow", "Not urgent for us",
)  # fmt: skip
_KEYWORDS = ("regression", "layout", "speed", "wording", "security", "beginner")
_SUBJECTS = ("Login page", "Export", "Filter", "Basket", "Address form", "Voucher")
_FAULTS = ("shows a wrong date", "is empty at night", "cannot be closed", "has two scroll bars")
_LINES = (
    "Wednesday: cleo", "Thursday: dan", "Friday: eva", "Ask in the channel first",
    "Reviewed in April", "See the roadmap",
)  # fmt: skip
_OLD_PAGES = ("Conventions", "OnCall", "ReleasePlan")
_NEW_PAGES = ("FirstSteps", "HouseRules", "MeetingNotes", "ReleaseNotes", "TeamLunch", "TestMatrix")
_COMMENT = "You may use WikiFormatting here."
_SEND = press("Submit changes")


# How an expert works in the tracker. Like an agent it acts on what the pages show.


def _visit(address: str) -> Stage:
    return visit(f"http://tracker.test/{address}")


def _set(name: str, text: str) -> Stage:
    """Write into a field, or choose from it; a name with ``#`` is the beginning of its id."""

    def stage(page: ExpertView) -> Move:
        field = page.hinted(name) if name[0] == "#" else page.named(name, "select", "textbox")
        if field is not None and field.role == "select":
            return "select", {"mark": field.mark, "option": text}
        return fill(field, text)

    return stage


def _change(data: Data, ticket: Row, comment: str = "", **changes: str) -> list[Stage]:
    """Change fields of a wanted ticket, and comment on it; return how an expert does it."""
    ticket.update(changes)
    status, owner = changes.pop("status", ""), changes.pop("owner", "")
    how = changes.pop("resolution", "")
    do = [_visit(f"ticket/{ticket['id']}"), press("Modify Ticket")]
    do += [_set(f"{name}:", text) for name, text in changes.items()]
    if status == "closed":
        do += [press("resolve", "radio"), _set("#action_resolve", how)]
    elif status == "reopened":
        do.append(press("reopen", "radio"))
    elif owner:
        do += [press("reassign", "radio"), _set("#action_reassign", owner)]
    if comment:
        data.add("comments", ticket=ticket["id"], text=comment)
        do.append(_set(_COMMENT, comment))
    return [*do, _SEND]


# Generators of problems.


def _open_tickets(data: Data, **values: str) -> list[Row]:
    return [row for row in data.all("tickets", **values) if row["status"] != "closed"]


def _changed(goal: str, **values: str | Sequence[str]) -> Generator:
    """Return the generator that changes fields of a ticket that is open, or of one to reopen.

    ``values`` are fields and what they are set to: the text, or one of several other than now;
    ``comment`` is added. ``goal`` names what the ticket has, and then ``values``, in braces.
    """

    def generator(data: Data, rng: Random) -> Made:
        is_closed = values.get("status") == "reopened"
        rows = data.all("tickets", status="closed") if is_closed else _open_tickets(data)
        ticket, new = rng.choice(rows), dict[str, str]()
        for name, of in values.items():
            others = [value for value in of if value != ticket.get(name)]
            new[name] = of if isinstance(of, str) else rng.choice(others)
        return goal.format(**{**ticket, **new}), _change(data, ticket, **new)

    return generator


_priority = _changed("Set the priority of ticket #{id} to {priority}.", priority=_PRIORITIES)
_component = _changed("Move ticket #{id} to the component {component}.", component=_COMPONENTS)
_retarget = _changed(
    "Give ticket #{id} the milestone {milestone} and make it a ticket of type {type}.",
    milestone=("1.1", "2.0"),
    type=_TYPES,
)
_keyword = _changed('Give ticket #{id} the keyword "{keywords}".', keywords=_KEYWORDS)
_comment = _changed('Add the comment "{comment}" to ticket #{id}.', comment=_COMMENTS)
_closing = partial(_changed, status="closed", resolution=_RESOLUTIONS)
_close = _closing("Close ticket #{id} as {resolution}.")
_close_named = _closing('Find the ticket "{summary}" and close it as {resolution}.')
_explain = _closing(
    'Close ticket #{id} as {resolution}, with the comment "{comment}".', comment=_COMMENTS
)
_reopen = _changed(
    'Reopen ticket #{id} with the comment "{comment}".',
    comment=_COMMENTS,
    status="reopened",
    resolution="",
)
_assign = _changed("Reassign ticket #{id} to {owner}.", owner=_OWNERS, status="assigned")


def _rename(data: Data, rng: Random) -> Made:
    ticket, text = rng.choice(_open_tickets(data)), _summary(rng)
    goal = f'Change the summary of ticket #{ticket["id"]} to "{text}".'
    return goal, _change(data, ticket, summary=text)


def _summary(rng: Random) -> str:
    return f"{rng.choice(_SUBJECTS)} {rng.choice(_FAULTS)}"


def _bulk(data: Data, rng: Random) -> Made:
    """Change all open tickets of one component and owner: two or three pages."""
    component, owner = rng.choice(_COMPONENTS), rng.choice(_OWNERS)
    value = rng.choice(_PRIORITIES)
    tickets = _open_tickets(data, component=component, owner=owner)
    others = [one for one in tickets if one["priority"] != value]
    if not 2 <= len(others) <= 3:
        return _bulk(data, rng)
    goal = (
        f"Set the priority of every ticket of the component {component} that {owner} owns and "
        f"that is not closed to {value}."
    )
    return goal, [stage for one in others for stage in _change(data, one, priority=value)]


def _file(data: Data, rng: Random) -> Made:
    fields = {"summary": _summary(rng), "type": rng.choice(_TYPES)}
    fields |= {"priority": rng.choice(_PRIORITIES), "component": rng.choice(_COMPONENTS)}
    goal = (
        'File a ticket "{summary}" of type {type} with priority {priority} for the component '
        "{component}; leave everything else as it is."
    ).format(**fields)
    rows = data.all("tickets")
    rest = {"id": max(row["id"] for row in rows) + 1, "reporter": "anonymous", "status": "new"}
    data.add("tickets", **{**dict.fromkeys(rows[0], ""), **rest, **fields})
    do = [_set(f"{name}:", text) for name, text in fields.items()]
    return goal, [_visit("newticket"), *do, press("Create ticket")]


def _written(goal: str, names: Sequence[str]) -> Generator:
    """Return the generator that adds a line to a page, new or not; ``goal`` names both."""

    def generator(data: Data, rng: Random) -> Made:
        name, line = rng.choice(names), rng.choice(_LINES)
        if old := data.all("pages", name=name):
            old[0]["text"] += f"\n{line}"
        else:
            data.add("pages", name=name, text=line)

        def append(page: ExpertView) -> Move:
            box: Element | None = page.hinted("#text")
            if box is None:
                return click(None)
            text = line if not box.value or box.value.endswith("\n") else f"\\n{line}"
            return "append", {"mark": box.mark, "text": text}

        script = [_visit(f"wiki/{name}?action=edit"), append, _SEND]
        return goal.format(page=name, line=line), script

    return generator


_append = _written('Add the line "{line}" at the end of the wiki page {page}.', _OLD_PAGES)
_page = _written('Create the wiki page {page} with the text "{line}".', _NEW_PAGES)


def _owner(data: Data, rng: Random) -> Made:
    ticket = rng.choice(_open_tickets(data))
    goal = f'Who owns the ticket "{ticket["summary"]}"? Answer with the name.'
    return question(goal, ticket["owner"], [_visit(f"ticket/{ticket['id']}")])


def _count(data: Data, rng: Random) -> Made:
    owner, component = rng.choice(_OWNERS), rng.choice(_COMPONENTS)
    number = len(_open_tickets(data, owner=owner, component=component))
    goal = f"How many tickets of the component {component} that are not closed does {owner} own?"
    look = _visit(f"query?status=!closed&owner={owner}&component={component}")
    return question(f"{goal} Answer with the number.", str(number), [look])


def _compare(data: Data, rng: Random) -> Made:
    tickets = rng.sample(_open_tickets(data), 3)
    best, other, _ = sorted(tickets, key=lambda one: _PRIORITIES.index(one["priority"]))
    if best["priority"] == other["priority"]:
        return _compare(data, rng)
    names = ", ".join(f"#{one['id']}" for one in tickets)
    goal = f"Which of the tickets {names} has the highest priority? Answer with its number alone."
    return question(goal, str(best["id"]), [_visit(f"ticket/{best['id']}")])


_WITHOUT_EXPANDER = """new MutationObserver(() => {
  const button = document.getElementById("trac-wiki-expander");
  if (button) button.remove();
}).observe(document, { childList: true, subtree: true });"""
"""Removes a button for wide pages that is there sooner or later, as the layout falls."""


class TrackerEnv(SiteEnv):
    """An issue tracker with a wiki: the program Trac, with 40 tickets. See ``SiteEnv``."""

    site = "tracker"
    program = TRACKER
    start = "/wiki"
    looks = replace(LOCAL, init_script=_WITHOUT_EXPANDER)
