"""Tasks in a real issue tracker, done by an expert and judged on its database."""

from __future__ import annotations

from random import Random

from turngym.environments.web.expert_view import ExpertView, Move, Stage, click, fill, press, visit
from turngym.environments.web.observation import Element
from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import TRACKER
from turngym.environments.web.sites.data import Data, Row
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import Made, question

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


def _write(data: Data, name: str, line: str) -> list[Stage]:
    """Add a line to a wanted page, new or not; return how an expert does it."""
    if data.all("pages", name=name):
        data.one("pages", name=name)["text"] += f"\n{line}"
    else:
        data.add("pages", name=name, text=line)

    def append(page: ExpertView) -> Move:
        box: Element | None = page.hinted("#text")
        if box is None:
            return click(None)
        text = line if not box.value or box.value.endswith("\n") else f"\\n{line}"
        return "append", {"mark": box.mark, "text": text}

    return [_visit(f"wiki/{name}?action=edit"), append, _SEND]


# Generators of problems.


def _open_tickets(data: Data, **values: str) -> list[Row]:
    return [row for row in data.all("tickets", **values) if row["status"] != "closed"]


def _some_open(data: Data, rng: Random) -> Row:
    return rng.choice(_open_tickets(data))


def _other(rng: Random, values: tuple[str, ...], now: str) -> str:
    return rng.choice([value for value in values if value != now])


def _priority(data: Data, rng: Random) -> Made:
    ticket = _some_open(data, rng)
    value = _other(rng, _PRIORITIES, ticket["priority"])
    goal = f"Set the priority of ticket #{ticket['id']} to {value}."
    return goal, _change(data, ticket, priority=value)


def _component(data: Data, rng: Random) -> Made:
    ticket = _some_open(data, rng)
    value = _other(rng, _COMPONENTS, ticket["component"])
    goal = f"Move ticket #{ticket['id']} to the component {value}."
    return goal, _change(data, ticket, component=value)


def _retarget(data: Data, rng: Random) -> Made:
    ticket = _some_open(data, rng)
    milestone = _other(rng, ("1.1", "2.0"), ticket["milestone"])
    kind = _other(rng, _TYPES, ticket["type"])
    goal = (
        f"Give ticket #{ticket['id']} the milestone {milestone} and make it a ticket of type "
        f"{kind}."
    )
    return goal, _change(data, ticket, milestone=milestone, type=kind)


def _keyword(data: Data, rng: Random) -> Made:
    ticket, word = _some_open(data, rng), rng.choice(_KEYWORDS)
    goal = f'Give ticket #{ticket["id"]} the keyword "{word}".'
    return goal, _change(data, ticket, keywords=word)


def _rename(data: Data, rng: Random) -> Made:
    ticket = _some_open(data, rng)
    text = f"{rng.choice(_SUBJECTS)} {rng.choice(_FAULTS)}"
    goal = f'Change the summary of ticket #{ticket["id"]} to "{text}".'
    return goal, _change(data, ticket, summary=text)


def _comment(data: Data, rng: Random) -> Made:
    ticket, text = _some_open(data, rng), rng.choice(_COMMENTS)
    goal = f'Add the comment "{text}" to ticket #{ticket["id"]}.'
    return goal, _change(data, ticket, text)


def _close(data: Data, rng: Random) -> Made:
    ticket, how = _some_open(data, rng), rng.choice(_RESOLUTIONS)
    goal = f"Close ticket #{ticket['id']} as {how}."
    return goal, _change(data, ticket, status="closed", resolution=how)


def _close_named(data: Data, rng: Random) -> Made:
    ticket, how = _some_open(data, rng), rng.choice(_RESOLUTIONS)
    goal = f'Find the ticket "{ticket["summary"]}" and close it as {how}.'
    return goal, _change(data, ticket, status="closed", resolution=how)


def _explain(data: Data, rng: Random) -> Made:
    ticket, how = _some_open(data, rng), rng.choice(_RESOLUTIONS)
    text = rng.choice(_COMMENTS)
    goal = f'Close ticket #{ticket["id"]} as {how}, with the comment "{text}".'
    return goal, _change(data, ticket, text, status="closed", resolution=how)


def _reopen(data: Data, rng: Random) -> Made:
    ticket, text = rng.choice(data.all("tickets", status="closed")), rng.choice(_COMMENTS)
    goal = f'Reopen ticket #{ticket["id"]} with the comment "{text}".'
    return goal, _change(data, ticket, text, status="reopened", resolution="")


def _assign(data: Data, rng: Random) -> Made:
    ticket = _some_open(data, rng)
    owner = _other(rng, _OWNERS, ticket["owner"])
    goal = f"Reassign ticket #{ticket['id']} to {owner}."
    return goal, _change(data, ticket, owner=owner, status="assigned")


def _bulk(data: Data, rng: Random) -> Made:
    """Change all open tickets of one component and owner: two or three pages."""
    while True:
        component, owner = rng.choice(_COMPONENTS), rng.choice(_OWNERS)
        value = rng.choice(_PRIORITIES)
        tickets = _open_tickets(data, component=component, owner=owner)
        others = [one for one in tickets if one["priority"] != value]
        if 2 <= len(others) <= 3:
            break
    goal = (
        f"Set the priority of every ticket of the component {component} that {owner} owns and "
        f"that is not closed to {value}."
    )
    return goal, [stage for one in others for stage in _change(data, one, priority=value)]


def _file(data: Data, rng: Random) -> Made:
    summary = f"{rng.choice(_SUBJECTS)} {rng.choice(_FAULTS)}"
    fields = {
        "summary": summary, "type": rng.choice(_TYPES), "priority": rng.choice(_PRIORITIES),
        "component": rng.choice(_COMPONENTS),
    }  # fmt: skip
    goal = (
        f'File a ticket "{summary}" of type {fields["type"]} with priority {fields["priority"]} '
        f"for the component {fields['component']}; leave everything else as it is."
    )
    rows = data.all("tickets")
    rest = {"id": max(row["id"] for row in rows) + 1, "reporter": "anonymous", "status": "new"}
    data.add("tickets", **{**dict.fromkeys(rows[0], ""), **rest, **fields})
    do = [_set(f"{name}:", text) for name, text in fields.items()]
    return goal, [_visit("newticket"), *do, press("Create ticket")]


def _append(data: Data, rng: Random) -> Made:
    page, line = rng.choice(("Conventions", "OnCall", "ReleasePlan")), rng.choice(_LINES)
    goal = f'Add the line "{line}" at the end of the wiki page {page}.'
    return goal, _write(data, page, line)


def _page(data: Data, rng: Random) -> Made:
    page, line = rng.choice(_NAMES), rng.choice(_LINES)
    return f'Create the wiki page {page} with the text "{line}".', _write(data, page, line)


def _owner(data: Data, rng: Random) -> Made:
    ticket = _some_open(data, rng)
    goal = f'Who owns the ticket "{ticket["summary"]}"? Answer with the name.'
    return question(goal, ticket["owner"], [_visit(f"ticket/{ticket['id']}")])


def _count(data: Data, rng: Random) -> Made:
    owner, component = rng.choice(_OWNERS), rng.choice(_COMPONENTS)
    number = len(_open_tickets(data, owner=owner, component=component))
    goal = (
        f"How many tickets of the component {component} that are not closed does {owner} own? "
        "Answer with the number."
    )
    look = _visit(f"query?status=!closed&owner={owner}&component={component}")
    return question(goal, str(number), [look])


def _compare(data: Data, rng: Random) -> Made:
    while True:
        tickets = rng.sample(_open_tickets(data), 3)
        ranks = [_PRIORITIES.index(one["priority"]) for one in tickets]
        if ranks.count(min(ranks)) == 1:
            break
    best = tickets[ranks.index(min(ranks))]["id"]
    names = ", ".join(f"#{one['id']}" for one in tickets)
    goal = f"Which of the tickets {names} has the highest priority? Answer with its number alone."
    return question(goal, str(best), [_visit(f"ticket/{best}")])


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
    looks = Settings(init_script=_WITHOUT_EXPANDER)
