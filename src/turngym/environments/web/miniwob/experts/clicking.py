"""Experts of tasks that clicks on words solve."""

from __future__ import annotations

import re

from turngym.environments.web.miniwob.scene import Expert, Move, Scene, click, first
from turngym.environments.web.observation import Element


def _named_in_quotes(scene: Scene) -> Move:
    return click(scene.named(scene.quoted[-1]))


def _button_one(scene: Scene) -> Move:
    name = re.search(r"button (ONE|TWO)", scene.goal)
    return click(scene.named(name[1] if name else "ONE"))


def _one_then_two(scene: Scene) -> Move:
    return click(scene.named("TWO" if scene.count("click") else "ONE"))


def _only_button(scene: Scene) -> Move:
    return click(first(scene.all("button")))


def _color(scene: Scene) -> Move:
    wanted = re.findall(r"the (\w+) colored", scene.goal)[0]
    return click(first(one for one in scene.all("icon") if one.about == wanted))


def _dialog(scene: Scene) -> Move:
    return click(scene.named("Close", "button"))


def _dialog_2(scene: Scene) -> Move:
    name = scene.quoted[0]
    return click(scene.named("Close" if name == "x" else name, "button"))


def _tab(scene: Scene) -> Move:
    return click(scene.named(re.findall(r"Tab #\d", scene.goal)[0], "tab"))


def _link_in_tabs(scene: Scene) -> Move:
    """Look at one tab or section after the other until the link is there."""
    wanted = scene.quoted[-1]
    tabs = scene.all("tab")
    here = first(one for one in scene.elements if one.name == wanted and one.role == "text")
    if here is not None and here.mark:
        return click(here)
    unseen = [one for one in tabs if one.mark not in scene.clicked and "selected" not in one.states]
    return click(first(unseen) or first(tabs))


def _collapsible(scene: Scene) -> Move:
    section = first(scene.all("tab"))
    is_open = section is not None and "expanded" in section.states
    return click(scene.named("Submit") if is_open else section)


def _widget(scene: Scene) -> Move:
    wanted = scene.quoted[0]
    for one in scene.elements:
        is_area = "multi-line" in one.states
        kind = {"textbox": "textarea" if is_area else "text"}.get(one.role, one.role)
        if one.mark and kind == wanted:
            return click(one)
    return "wait", {}


def _focus(scene: Scene) -> Move:
    return click(first(scene.all("textbox")))


def _focus_nth(scene: Scene) -> Move:
    return click(scene.all("textbox")[ordinal(scene.goal) - 1])


def _greatest(scene: Scene) -> Move:
    if scene.count("click"):
        return click(scene.named("Submit", "button"))
    cards = [one for one in scene.all("text") if re.fullmatch(r"-?\d+", one.name)]
    return click(max(cards, key=lambda one: int(one.name)))


def _odd_or_even(scene: Scene) -> Move:
    """Press Odd, which stands before each number, or Even, which stands behind it."""
    wanted: list[Element] = []
    for before, one, after in zip(
        scene.elements, scene.elements[1:], scene.elements[2:], strict=False
    ):
        if one.role == "text" and re.fullmatch(r"-?\d+", one.name):
            wanted.append(before if int(one.name) % 2 else after)
    pressed = scene.count("click")
    return click(wanted[pressed] if pressed < len(wanted) else scene.named("Submit", "button"))


def _ticket(scene: Scene) -> Move:
    """Compare the price, or the time, of each ticket."""
    tickets = [one for one in scene.all("button") if "$" in one.name]
    best = max if re.search("longest|expensive|highest|greatest|most", scene.goal) else min
    costs = [int(re.findall(r"\$(\d+)", one.name)[0]) for one in tickets]
    if re.search("duration|longest|shortest", scene.goal):
        costs = [
            int(hours) * 60 + int(minutes)
            for one in scene.elements
            for hours, minutes in re.findall(r"^(\d+)h (\d+)m$", one.name)
        ]
    return click(tickets[costs.index(best(costs))])


def _phone_book(scene: Scene) -> Move:
    name, kind = re.findall(r"Find (.+) in the .* click on their (\w+)", scene.goal)[0]
    if scene.named(name, "heading") is None:
        return click(scene.named(">"))
    label = {"phone": "Phone:", "email": "Email:", "address": "Address:"}[kind]
    lines = list(scene.elements)
    place = next(i for i, one in enumerate(lines) if one.name.strip() == label)
    return click(lines[place + 1])


def _social(scene: Scene) -> Move:
    """Press a button of the first post by someone; some hide in the menu of the post."""
    user = re.findall(r"user (@\S+),", scene.goal)[0]
    button = scene.quoted[-1]
    post = _posts(scene, user)[0]
    icons = {"Reply": ".reply", "Retweet": ".retweet", "Like": ".like"}
    if button in icons:
        return click(next(one for one in post if icons[button] in one.hint))
    item = first(
        one
        for one in scene.elements
        if one.mark and one.role in ("item", "text", "clickable") and one.name.startswith(button)
    )
    if item is not None:
        return click(item)
    return click(next(one for one in post if ".more" in one.hint))


def _social_many(scene: Scene) -> Move:
    user = re.findall(r"by (@\S+)", scene.goal)[0]
    number = re.findall(r"on (\d+) posts?", scene.goal)
    posts = _posts(scene, user)
    posts = posts[: int(number[0])] if number else posts
    hint = "." + scene.quoted[0].lower()
    done = scene.count("click")
    if done < len(posts):
        return click(next(one for one in posts[done] if hint in one.hint))
    return click(scene.named("Submit", "button"))


def _posts(scene: Scene, user: str) -> list[list[Element]]:
    """Return the lines of each post of ``user``."""
    posts: list[list[Element]] = []
    is_theirs = False
    for one in scene.elements:
        handle = re.findall(r"@[\w.]+", one.name) if one.role == "text" else []
        if handle and not one.name.startswith(("Mute", "Block")):
            is_theirs = handle[0] == user.rstrip(".")
            if is_theirs:
                posts.append([])
        if is_theirs:
            posts[-1].append(one)
    return posts


def _tree(scene: Scene) -> Move:
    wanted = scene.quoted[-1]
    found = scene.named(wanted)
    if found is not None:
        return click(found)
    folders = [one for one in scene.elements if "hitarea" in one.hint]
    return click(first(one for one in folders if one.mark not in scene.clicked))


def _guess_menu(scene: Scene) -> Move:
    """Go down a menu by hovering over its parts."""
    path = scene.goal.removeprefix("Select ").split(">")
    for depth, name in reversed(list(enumerate(path))):
        found = scene.named(name)
        if found is not None:
            if depth == len(path) - 1:
                return click(found)
            return "hover", {"mark": found.mark}
    return "wait", {}


def _pie(scene: Scene) -> Move:
    wanted = scene.quoted[-1]
    label = first(one for one in scene.all("label") if one.name == wanted)
    if label is None or label.height < 5:
        opener = first(one for one in scene.elements if "spreader" in one.hint)
        is_opening = bool(scene.past) and scene.past[-1].name == "click"
        return ("wait", {}) if is_opening else click(opener)
    return click(label)


def _food(scene: Scene) -> Move:
    """Add dishes by name, or the first ones of a kind."""
    lines = list(scene.elements)
    adders: list[tuple[str, set[str], Element]] = []
    name, kinds = "", set[str]()
    for one in lines:
        if one.role == "text" and re.search(r"[A-Za-z]", one.name):
            name, kinds = one.name, set()
        elif one.role == "image":
            kinds.add(one.name)
        elif one.name == "+":
            adders.append((name, kinds, one))
    done = scene.count("click")
    if scene.goal.startswith("Order one"):
        wanted = [part.strip() for part in scene.goal.split(":", 1)[1].split(",")]
        chosen = [adder for dish, _, adder in adders if dish in wanted]
    else:
        number, kind = re.findall(r"Order (\d+) items that are (.+)", scene.goal)[0]
        chosen = [adder for _, kinds, adder in adders if kind in kinds][:1] * int(number)
    return click(chosen[done] if done < len(chosen) else scene.named("Order!", "button"))


def ordinal(text: str) -> int:
    """Return the number of the first ordinal in ``text``, such as 3 for ``3rd``; 1 without one."""
    found = re.findall(r"(\d+)(?:st|nd|rd|th)", text)
    return int(found[0]) if found else 1


CLICKING: dict[str, Expert] = {
    "buy-ticket": _ticket, "click-button": _named_in_quotes,
    "click-button-sequence": _one_then_two, "click-collapsible": _collapsible,
    "click-collapsible-2": _link_in_tabs, "click-collapsible-2-nodelay": _link_in_tabs,
    "click-collapsible-nodelay": _collapsible, "click-color": _color, "click-dialog": _dialog,
    "click-dialog-2": _dialog_2, "click-link": _named_in_quotes, "click-menu": _guess_menu,
    "click-pie": _pie, "click-pie-nodelay": _pie, "click-tab": _tab, "click-tab-2": _link_in_tabs,
    "click-tab-2-easy": _link_in_tabs, "click-tab-2-hard": _link_in_tabs,
    "click-tab-2-medium": _link_in_tabs, "click-test": _only_button, "click-test-2": _button_one,
    "click-test-transfer": _button_one, "click-widget": _widget, "find-greatest": _greatest,
    "focus-text": _focus, "focus-text-2": _focus_nth, "navigate-tree": _tree,
    "odd-or-even": _odd_or_even, "order-food": _food, "phone-book": _phone_book,
    "social-media": _social, "social-media-all": _social_many, "social-media-some": _social_many,
    "unicode-test": _named_in_quotes,
}  # fmt: skip
