"""Tasks in a real issue tracker, done by an expert and judged on its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from random import Random

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, fill
from turngym.environments.web.observation import Element
from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import TRACKER
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import Problem, ProblemGenerator
from turngym.environments.web.sites.tracker.state import State, read_state

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
_NAMES = ("FirstSteps", "HouseRules", "MeetingNotes", "ReleaseNotes", "TeamLunch", "TestMatrix")


# How an expert works in the tracker. Like an agent it acts on what the pages show.

_HOME = "http://tracker.test"
_STOP: Move = ("stop", {})


def _edit_tickets(numbers: Sequence[int], changes: Mapping[str, str], comment: str) -> Expert:
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


def _file_ticket(fields: Mapping[str, str]) -> Expert:
    """Return an expert who files a ticket and stops."""

    def expert(page: ExpertView) -> Move:
        if not page.count("goto"):
            return _go("newticket")
        if "/ticket/" in page.view.url:
            return _STOP
        return _fill(page, fields, "") or click(page.named("Create ticket"))

    return expert


def _edit_page(name: str, line: str) -> Expert:
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


def _answer_after(address: str, text: str) -> Expert:
    """Return an expert who looks at one page and answers."""

    def expert(page: ExpertView) -> Move:
        return ("answer", {"text": text}) if page.count("goto") else _go(address)

    return expert


def _go(address: str) -> Move:
    return "goto", {"url": f"{_HOME}/{address}"}


# Generators of problems.


def _change(
    state: State, numbers: list[int], changes: Mapping[str, str], goal: str, *, comment: str = ""
) -> Problem:
    """Return the problem of editing fields of tickets, and commenting on them."""
    wanted = state.copy()
    for number in numbers:
        wanted.tickets[number] |= changes
        if comment:
            wanted.comments.append((number, comment))
    wanted.comments.sort()
    expert = _edit_tickets(numbers, changes, comment)
    return Problem(goal=goal, wanted=wanted, expert=expert)


def _some_open(state: State, rng: Random) -> int:
    return rng.choice(state.open_tickets())


def _other(rng: Random, values: tuple[str, ...], now: str) -> str:
    return rng.choice([value for value in values if value != now])


def _priority(state: State, rng: Random) -> Problem:
    number = _some_open(state, rng)
    value = _other(rng, _PRIORITIES, state.tickets[number]["priority"])
    goal = f"Set the priority of ticket #{number} to {value}."
    return _change(state, [number], {"priority": value}, goal)


def _component(state: State, rng: Random) -> Problem:
    number = _some_open(state, rng)
    value = _other(rng, _COMPONENTS, state.tickets[number]["component"])
    goal = f"Move ticket #{number} to the component {value}."
    return _change(state, [number], {"component": value}, goal)


def _retarget(state: State, rng: Random) -> Problem:
    number = _some_open(state, rng)
    ticket = state.tickets[number]
    milestone = _other(rng, ("1.1", "2.0"), ticket["milestone"])
    kind = _other(rng, _TYPES, ticket["type"])
    goal = f"Give ticket #{number} the milestone {milestone} and make it a ticket of type {kind}."
    return _change(state, [number], {"milestone": milestone, "type": kind}, goal)


def _keyword(state: State, rng: Random) -> Problem:
    number, word = _some_open(state, rng), rng.choice(_KEYWORDS)
    goal = f'Give ticket #{number} the keyword "{word}".'
    return _change(state, [number], {"keywords": word}, goal)


def _rename(state: State, rng: Random) -> Problem:
    number = _some_open(state, rng)
    text = f"{rng.choice(_SUBJECTS)} {rng.choice(_FAULTS)}"
    goal = f'Change the summary of ticket #{number} to "{text}".'
    return _change(state, [number], {"summary": text}, goal)


def _comment(state: State, rng: Random) -> Problem:
    number, text = _some_open(state, rng), rng.choice(_COMMENTS)
    goal = f'Add the comment "{text}" to ticket #{number}.'
    return _change(state, [number], {}, goal, comment=text)


def _close(state: State, rng: Random) -> Problem:
    number, how = _some_open(state, rng), rng.choice(_RESOLUTIONS)
    goal = f"Close ticket #{number} as {how}."
    return _change(state, [number], {"status": "closed", "resolution": how}, goal)


def _close_named(state: State, rng: Random) -> Problem:
    number, how = _some_open(state, rng), rng.choice(_RESOLUTIONS)
    goal = f'Find the ticket "{state.tickets[number]["summary"]}" and close it as {how}.'
    return _change(state, [number], {"status": "closed", "resolution": how}, goal)


def _explain(state: State, rng: Random) -> Problem:
    number, how, text = _some_open(state, rng), rng.choice(_RESOLUTIONS), rng.choice(_COMMENTS)
    goal = f'Close ticket #{number} as {how}, with the comment "{text}".'
    return _change(state, [number], {"status": "closed", "resolution": how}, goal, comment=text)


def _reopen(state: State, rng: Random) -> Problem:
    closed = [n for n, ticket in state.tickets.items() if ticket["status"] == "closed"]
    number, text = rng.choice(closed), rng.choice(_COMMENTS)
    goal = f'Reopen ticket #{number} with the comment "{text}".'
    return _change(state, [number], {"status": "reopened", "resolution": ""}, goal, comment=text)


def _assign(state: State, rng: Random) -> Problem:
    number = _some_open(state, rng)
    owner = _other(rng, _OWNERS, state.tickets[number]["owner"])
    goal = f"Reassign ticket #{number} to {owner}."
    return _change(state, [number], {"owner": owner, "status": "assigned"}, goal)


def _bulk(state: State, rng: Random) -> Problem:
    """Change all open tickets of one component and owner: two or three pages."""
    while True:
        component, owner = rng.choice(_COMPONENTS), rng.choice(_OWNERS)
        value = rng.choice(_PRIORITIES)
        numbers = state.open_tickets(component=component, owner=owner)
        others = [n for n in numbers if state.tickets[n]["priority"] != value]
        if 2 <= len(others) <= 3:
            break
    goal = (
        f"Set the priority of every ticket of the component {component} that {owner} owns and "
        f"that is not closed to {value}."
    )
    return _change(state, others, {"priority": value}, goal)


def _file(state: State, rng: Random) -> Problem:
    summary = f"{rng.choice(_SUBJECTS)} {rng.choice(_FAULTS)}"
    fields = {
        "summary": summary, "type": rng.choice(_TYPES), "priority": rng.choice(_PRIORITIES),
        "component": rng.choice(_COMPONENTS),
    }  # fmt: skip
    goal = (
        f'File a ticket "{summary}" of type {fields["type"]} with priority {fields["priority"]} '
        f"for the component {fields['component']}; leave everything else as it is."
    )
    wanted = state.copy()
    rest = {"reporter": "anonymous", "owner": "", "status": "new"}
    empty = dict.fromkeys(next(iter(state.tickets.values())), "")
    wanted.tickets[max(state.tickets) + 1] = {**empty, **rest, **fields}
    return Problem(goal=goal, wanted=wanted, expert=_file_ticket(fields))


def _append(state: State, rng: Random) -> Problem:
    page, line = rng.choice(("Conventions", "OnCall", "ReleasePlan")), rng.choice(_LINES)
    goal = f'Add the line "{line}" at the end of the wiki page {page}.'
    wanted = state.copy()
    wanted.pages[page] += f"\n{line}"
    return Problem(goal=goal, wanted=wanted, expert=_edit_page(page, line))


def _page(state: State, rng: Random) -> Problem:
    page, line = rng.choice(_NAMES), rng.choice(_LINES)
    goal = f'Create the wiki page {page} with the text "{line}".'
    wanted = state.copy()
    wanted.pages[page] = line
    return Problem(goal=goal, wanted=wanted, expert=_edit_page(page, line))


def _asked(state: State, goal: str, answer: str, address: str) -> Problem:
    return Problem(
        goal=f"{goal} Change nothing.",
        wanted=state.copy(),
        answer=answer,
        expert=_answer_after(address, answer),
    )


def _owner(state: State, rng: Random) -> Problem:
    number = _some_open(state, rng)
    ticket = state.tickets[number]
    goal = f'Who owns the ticket "{ticket["summary"]}"? Answer with the name.'
    return _asked(state, goal, ticket["owner"], f"ticket/{number}")


def _number(state: State, rng: Random) -> Problem:
    owner, component = rng.choice(_OWNERS), rng.choice(_COMPONENTS)
    found = state.open_tickets(owner=owner, component=component)
    goal = (
        f"How many tickets of the component {component} that are not closed does {owner} own? "
        "Answer with the number."
    )
    address = f"query?status=!closed&owner={owner}&component={component}"
    return _asked(state, goal, str(len(found)), address)


def _compare(state: State, rng: Random) -> Problem:
    while True:
        numbers = rng.sample(state.open_tickets(), 3)
        ranks = [_PRIORITIES.index(state.tickets[n]["priority"]) for n in numbers]
        if ranks.count(min(ranks)) == 1:
            break
    best = numbers[ranks.index(min(ranks))]
    names = ", ".join(f"#{number}" for number in numbers)
    goal = f"Which of the tickets {names} has the highest priority? Answer with its number alone."
    return _asked(state, goal, str(best), f"ticket/{best}")


GENERATORS: dict[str, ProblemGenerator] = {
    "append": _append, "assign": _assign, "bulk": _bulk, "close": _close,
    "close-named": _close_named, "comment": _comment, "compare": _compare, "component": _component,
    "count": _number, "explain": _explain, "file": _file, "keyword": _keyword, "owner": _owner,
    "page": _page, "priority": _priority, "rename": _rename, "reopen": _reopen,
    "retarget": _retarget,
}  # fmt: skip
"""Kind of task to what makes one."""


# The environment.


_WITHOUT_EXPANDER = """new MutationObserver(() => {
  const button = document.getElementById("trac-wiki-expander");
  if (button) button.remove();
}).observe(document, { childList: true, subtree: true });"""
"""Removes a button for wide pages that is there sooner or later, as the layout falls."""


class TrackerEnv(SiteEnv):
    """An issue tracker with a wiki: the program Trac, with 40 tickets. See ``SiteEnv``."""

    site = "tracker"
    program = TRACKER
    generators = GENERATORS
    start = "/wiki"
    looks = Settings(init_script=_WITHOUT_EXPANDER)

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> State:
        return read_state(connection)
