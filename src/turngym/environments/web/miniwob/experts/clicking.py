"""Experts of tasks that clicks on words solve."""

from __future__ import annotations

import re
from itertools import pairwise

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, first
from turngym.environments.web.observation import Element


def _named_in_quotes(page: ExpertView) -> Move:
    return click(page.named(page.quoted[-1]))


def _button_one(page: ExpertView) -> Move:
    name = re.search(r"button (ONE|TWO)", page.goal)
    return click(page.named(name[1] if name else "ONE"))


def _color(page: ExpertView) -> Move:
    wanted = re.findall(r"the (\w+) colored", page.goal)[0]
    return click(first(one for one in page.all("icon") if one.about == wanted))


def _dialog_2(page: ExpertView) -> Move:
    name = page.quoted[0]
    return click(page.named("Close" if name == "x" else name, "button"))


def _link_in_tabs(page: ExpertView) -> Move:
    """Look at one tab or section after the other until the link is there."""
    wanted = page.quoted[-1]
    tabs = page.all("tab")
    here = first(one for one in page.elements if one.name == wanted and one.role == "text")
    if here is not None and here.mark:
        return click(here)
    unseen = [one for one in tabs if one.mark not in page.clicked and "selected" not in one.states]
    return click(first(unseen) or first(tabs))


def _collapsible(page: ExpertView) -> Move:
    section = first(page.all("tab"))
    is_open = section is not None and "expanded" in section.states
    return click(page.named("Submit") if is_open else section)


def _widget(page: ExpertView) -> Move:
    wanted = page.quoted[0]
    for one in page.elements:
        is_area = "multi-line" in one.states
        kind = {"textbox": "textarea" if is_area else "text"}.get(one.role, one.role)
        if one.mark and kind == wanted:
            return click(one)
    return "wait", {}


def _greatest(page: ExpertView) -> Move:
    if page.count("click"):
        return page.submit()
    cards = [one for one in page.all("text") if re.fullmatch(r"-?\d+", one.name)]
    return click(max(cards, key=lambda one: int(one.name)))


def _odd_or_even(page: ExpertView) -> Move:
    """Press Odd, which stands before each number, or Even, which stands behind it."""
    wanted: list[Element] = []
    for before, one, after in zip(
        page.elements, page.elements[1:], page.elements[2:], strict=False
    ):
        if one.role == "text" and re.fullmatch(r"-?\d+", one.name):
            wanted.append(before if int(one.name) % 2 else after)
    return page.click_all(wanted)


def _ticket(page: ExpertView) -> Move:
    """Compare the price, or the time, of each ticket."""
    tickets = [one for one in page.all("button") if "$" in one.name]
    best = max if re.search("longest|expensive|highest|greatest|most", page.goal) else min
    costs = [int(re.findall(r"\$(\d+)", one.name)[0]) for one in tickets]
    if re.search("duration|longest|shortest", page.goal):
        costs = [
            int(hours) * 60 + int(minutes)
            for one in page.elements
            for hours, minutes in re.findall(r"^(\d+)h (\d+)m$", one.name)
        ]
    return click(tickets[costs.index(best(costs))])


def _phone_book(page: ExpertView) -> Move:
    name, kind = re.findall(r"Find (.+) in the .* click on their (\w+)", page.goal)[0]
    if page.named(name, "heading") is None:
        return click(page.named(">"))
    label = f"{kind.capitalize()}:"
    return click(next(after for one, after in pairwise(page.elements) if one.name.strip() == label))


def _social(page: ExpertView) -> Move:
    """Press a button of the first post by someone; some hide in the menu of the post."""
    user = re.findall(r"user (@\S+),", page.goal)[0]
    button = page.quoted[-1]
    post = _posts(page, user)[0]
    icons = {"Reply": ".reply", "Retweet": ".retweet", "Like": ".like"}
    if button in icons:
        return click(next(one for one in post if icons[button] in one.hint))
    item = first(
        one
        for one in page.elements
        if one.mark and one.role in ("item", "text", "clickable") and one.name.startswith(button)
    )
    if item is not None:
        return click(item)
    return click(next(one for one in post if ".more" in one.hint))


def _social_many(page: ExpertView) -> Move:
    user = re.findall(r"by (@\S+)", page.goal)[0]
    number = re.findall(r"on (\d+) posts?", page.goal)
    posts = _posts(page, user)
    posts = posts[: int(number[0])] if number else posts
    hint = "." + page.quoted[0].lower()
    return page.click_all([first(one for one in post if hint in one.hint) for post in posts])


def _posts(page: ExpertView, user: str) -> list[list[Element]]:
    posts: list[list[Element]] = []
    is_theirs = False
    for one in page.elements:
        handle = re.findall(r"@[\w.]+", one.name) if one.role == "text" else []
        if handle and not one.name.startswith(("Mute", "Block")):
            is_theirs = handle[0] == user.rstrip(".")
            if is_theirs:
                posts.append([])
        if is_theirs:
            posts[-1].append(one)
    return posts


def _tree(page: ExpertView) -> Move:
    wanted = page.quoted[-1]
    found = page.named(wanted)
    if found is not None:
        return click(found)
    folders = [one for one in page.elements if "hitarea" in one.hint]
    return click(first(one for one in folders if one.mark not in page.clicked))


def _guess_menu(page: ExpertView) -> Move:
    """Go down a menu by hovering over its parts."""
    path = page.goal.removeprefix("Select ").split(">")
    for depth, name in reversed(list(enumerate(path))):
        found = page.named(name)
        if found is not None:
            if depth == len(path) - 1:
                return click(found)
            return "hover", {"mark": found.mark}
    return "wait", {}


def _pie(page: ExpertView) -> Move:
    wanted = page.quoted[-1]
    label = first(one for one in page.all("label") if one.name == wanted)
    if label is None or label.height < 5:
        opener = first(one for one in page.elements if "spreader" in one.hint)
        is_opening = bool(page.past) and page.past[-1].name == "click"
        return ("wait", {}) if is_opening else click(opener)
    return click(label)


def _food(page: ExpertView) -> Move:
    """Add dishes by name, or the first ones of a kind."""
    lines = list(page.elements)
    adders: list[tuple[str, set[str], Element]] = []
    name, kinds = "", set[str]()
    for one in lines:
        if one.role == "text" and re.search(r"[A-Za-z]", one.name):
            name, kinds = one.name, set()
        elif one.role == "image":
            kinds.add(one.name)
        elif one.name == "+":
            adders.append((name, kinds, one))
    if page.goal.startswith("Order one"):
        wanted = [part.strip() for part in page.goal.split(":", 1)[1].split(",")]
        chosen = [adder for dish, _, adder in adders if dish in wanted]
    else:
        number, kind = re.findall(r"Order (\d+) items that are (.+)", page.goal)[0]
        chosen = [adder for _, kinds, adder in adders if kind in kinds][:1] * int(number)
    return page.click_all(chosen, then="Order!")


def ordinal(text: str) -> int:
    """Return the number of the first ordinal in ``text``, such as 3 for ``3rd``; 1 without one."""
    found = re.findall(r"(\d+)(?:st|nd|rd|th)", text)
    return int(found[0]) if found else 1


CLICKING: dict[str, Expert] = {
    "buy-ticket": _ticket, "click-button": _named_in_quotes,
    "click-button-sequence": lambda page: click(
        page.named("TWO" if page.count("click") else "ONE")
    ),
    "click-collapsible": _collapsible, "click-collapsible-2": _link_in_tabs,
    "click-collapsible-2-nodelay": _link_in_tabs, "click-collapsible-nodelay": _collapsible,
    "click-color": _color, "click-dialog": lambda page: click(page.named("Close", "button")),
    "click-dialog-2": _dialog_2, "click-link": _named_in_quotes, "click-menu": _guess_menu,
    "click-pie": _pie, "click-pie-nodelay": _pie,
    "click-tab": lambda page: click(page.named(re.findall(r"Tab #\d", page.goal)[0], "tab")),
    "click-tab-2": _link_in_tabs, "click-tab-2-easy": _link_in_tabs,
    "click-tab-2-hard": _link_in_tabs, "click-tab-2-medium": _link_in_tabs,
    "click-test": lambda page: click(first(page.all("button"))), "click-test-2": _button_one,
    "click-test-transfer": _button_one, "click-widget": _widget, "find-greatest": _greatest,
    "focus-text": lambda page: click(first(page.all("textbox"))),
    "focus-text-2": lambda page: click(page.all("textbox")[ordinal(page.goal) - 1]),
    "navigate-tree": _tree, "odd-or-even": _odd_or_even, "order-food": _food,
    "phone-book": _phone_book, "social-media": _social, "social-media-all": _social_many,
    "social-media-some": _social_many, "unicode-test": _named_in_quotes,
}  # fmt: skip
