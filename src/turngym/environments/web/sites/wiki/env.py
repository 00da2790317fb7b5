"""Tasks in a real wiki, done by an expert and judged on its database."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from random import Random

from turngym.environments.web.expert_view import ExpertView, click, fill
from turngym.environments.web.settings import Settings
from turngym.environments.web.sites.catalogue import WIKI
from turngym.environments.web.sites.data import Data, Row, read_queries
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import (
    Problem,
    ProblemGenerator,
    Stage,
    enter,
    press,
    question,
    script,
)
from turngym.environments.web.sites.program import storage_with

ME = "Ada"
_ISLANDS = ("Nordra", "Sulka", "Vesper")
_LINES = (
    "The ferry runs twice a day.", "There is a small museum.", "The school has forty pupils.",
    "The harbour freezes in February.", "A market is held on Mondays.", "The old mill was sold.",
)  # fmt: skip
_SECTIONS = ("Roads", "Weather", "Sports", "Wildlife")
_SUBJECTS = ("Wrong picture", "Sources needed", "Spelling of the name", "Merge this page")
_NEW = ("Amber Inn", "Bog Road", "Crow Bridge", "Drift Beach", "Elder Farm", "Flint Quarry")
_MAYORS = ("Paul Winter", "Rita Lund", "Sven Ahl", "Tove Brandt")
_CATEGORIES = ("Harbours", "Places to stay", "Islands in winter", "To be checked")
_NAMES = tuple(
    f"{first} {last}"
    for first in ("Ada", "Adele", "Adeline")
    for last in ("Berg", "Karlsen", "Miller", "de Vries")
)
_MAIN, _TALK = 0, 1
_EDITOR = "Wikitext source editor"
_SEARCH = "Search Island wiki"
_ACTIONS = "Page actions"


def _look_up(title: str) -> Stage:
    """Go to a page by its name."""

    def stage(page: ExpertView) -> tuple[str, dict[str, object]]:
        box = page.named(_SEARCH, "searchbox")
        return click(None) if box is None else ("submit", {"mark": box.mark, "text": title})

    return stage


def _action(name: str) -> Stage:
    return press(name, "link", after=_ACTIONS)


def _write(text: str) -> Stage:
    """Replace what is in the editor."""
    return lambda page: fill(page.named(_EDITOR, "textbox"), text.replace("\n", "\\n"))


def _edit(title: str, text: str, *, to: str = "edit") -> list[Stage]:
    save = "Save changes" if to == "edit" else "Save page"
    return [_look_up(title), _action(to), _write(text), press(save, "button")]


def _villages(data: Data) -> list[Row]:
    return [row for row in data.all("pages", space=_MAIN) if "is a village on" in row["text"]]


def _lights(data: Data) -> list[Row]:
    return [row for row in data.all("pages", space=_MAIN) if "is a lighthouse" in row["text"]]


def _any(data: Data, rng: Random) -> Row:
    return rng.choice([*_villages(data), *_lights(data)])


def _value(row: Row, name: str) -> str:
    """Return what a line such as ``Mayor: Jon Marsh`` says."""
    found = re.search(rf"^{name}: (.+)$", row["text"], re.MULTILINE)
    assert found is not None
    return found[1].split()[0] if name == "Height" else found[1]


def _island(row: Row) -> str:
    return next(name for name in _ISLANDS if f"[[{name}]]" in row["text"])


def _changed(data: Data, title: str, text: str, user: str = ME, space: int = _MAIN) -> Data:
    wanted = data.copy()
    row = wanted.one("pages", space=space, title=title)
    row.update(text=text, editor=user)
    return wanted


def _made(data: Data, title: str, text: str, *, space: int = _MAIN, redirect: int = 0) -> Data:
    wanted = data.copy()
    wanted.add("pages", space=space, title=title, redirect=redirect, text=text, editor=ME)
    return wanted


def _problem(goal: str, wanted: Data, *stages: Stage) -> Problem:
    return Problem(goal=goal, wanted=wanted, expert=script(*stages))


def _append(data: Data, rng: Random) -> Problem:
    row, line = _any(data, rng), rng.choice(_LINES)
    text = f"{row['text']}\n{line}"
    goal = f'Add the line "{line}" at the end of the page "{row["title"]}".'
    return _problem(goal, _changed(data, row["title"], text), *_edit(row["title"], text))


def _section(data: Data, rng: Random) -> Problem:
    row, name, line = _any(data, rng), rng.choice(_SECTIONS), rng.choice(_LINES)
    text = f"{row['text']}\n== {name} ==\n{line}"
    goal = (
        f'Add a section "{name}" with the text "{line}" at the very end of the page '
        f'"{row["title"]}".'
    )
    return _problem(goal, _changed(data, row["title"], text), *_edit(row["title"], text))


def _create(data: Data, rng: Random) -> Problem:
    title, line = rng.choice(_NEW), rng.choice(_LINES)
    goal = f'Create the page "{title}" with the text "{line}".'
    do = [_look_up(title), press(title, "link", after="Create the page")]
    return _problem(goal, _made(data, title, line), *do, _write(line), press("Save page", "button"))


def _redirect(data: Data, rng: Random) -> Problem:
    title, row = rng.choice(_NEW), _any(data, rng)
    text = f"#REDIRECT [[{row['title']}]]"
    goal = f'Make a page "{title}" that redirects to the page "{row["title"]}".'
    do = [_look_up(title), press(title, "link", after="Create the page"), _write(text)]
    wanted = _made(data, title, text, redirect=1)
    return _problem(goal, wanted, *do, press("Save page", "button"))


def _update(data: Data, rng: Random) -> Problem:
    row, people = rng.choice(_villages(data)), rng.randint(80, 1900)
    text = row["text"].replace(f"Population: {_value(row, 'Population')}", f"Population: {people}")
    goal = f"Correct the population of {row['title']}: it is {people}."
    return _problem(goal, _changed(data, row["title"], text), *_edit(row["title"], text))


def _mayors(data: Data, rng: Random) -> Problem:
    """Edit two or three pages that one page links to."""
    island, new = rng.choice(_ISLANDS), rng.choice(_MAYORS)
    rows = [row for row in _villages(data) if _island(row) == island]
    old = _value(rng.choice(rows), "Mayor")
    rows = [row for row in rows if _value(row, "Mayor") == old]
    if not 2 <= len(rows) <= 3:
        return _mayors(data, rng)
    wanted, do = data.copy(), []
    for row in rows:
        text = row["text"].replace(f"Mayor: {old}", f"Mayor: {new}")
        wanted = _changed(wanted, row["title"], text)
        do += _edit(row["title"], text)
    goal = f"Every village on {island} whose mayor was {old} has a new one, {new}; change it."
    return _problem(goal, wanted, *do)


def _search(data: Data, rng: Random) -> Problem:
    """Find a village by what its page says."""
    row, line = rng.choice(_villages(data)), rng.choice(_LINES)
    food = row["text"].split("is known for its ")[1].split(".")[0]
    mayor = _value(row, "Mayor")
    same = [one for one in _villages(data) if food in one["text"] and mayor in one["text"]]
    if len(same) > 1:
        return _search(data, rng)
    text = f"{row['text']}\n{line}"
    goal = (
        f'Add the line "{line}" at the end of the page of the village with the mayor {mayor} that '
        f"is known for its {food}."
    )
    do = [_look_up(f"{mayor} {food}"), press(row["title"], "link"), _action("edit")]
    wanted = _changed(data, row["title"], text)
    return _problem(goal, wanted, *do, _write(text), press("Save changes", "button"))


def _category(data: Data, rng: Random) -> Problem:
    row, name = _any(data, rng), rng.choice(_CATEGORIES)
    text = f"{row['text']}\n[[Category:{name}]]"
    goal = f'Add the page "{row["title"]}" to the category "{name}", below its other category.'
    return _problem(goal, _changed(data, row["title"], text), *_edit(row["title"], text))


def _discuss(data: Data, rng: Random) -> Problem:
    row, subject, line = _any(data, rng), rng.choice(_SUBJECTS), rng.choice(_LINES)
    wanted = _made(data, row["title"], f"== {subject} ==\n{line}", space=_TALK)
    goal = (
        f'Start a discussion on the talk page of "{row["title"]}": subject "{subject}", text '
        f'"{line}".'
    )
    do = [_look_up(row["title"]), _action("discussion"), _action("+")]
    do += [enter("Subject:", subject), _write(line), press("Save page", "button")]
    return _problem(goal, wanted, *do)


def _move(data: Data, rng: Random) -> Problem:
    row, new, leaves = _any(data, rng), rng.choice(_NEW), rng.random() < 0.5
    old = row["title"]
    wanted = data.copy()
    wanted.one("pages", space=_MAIN, title=old).update(title=new, editor=ME)
    for watched in wanted.all("watched", title=old):
        wanted.add("watched", **{**watched, "title": new})
    if leaves:
        wanted = _made(wanted, old, f"#REDIRECT [[{new}]]", redirect=1)
    goal = f'Move the page "{old}" to "{new}"{"" if leaves else ", without leaving a redirect"}.'
    box = ".oo-ui-inputWidget-input"
    do = [_look_up(old), _action("move"), lambda page: fill(page.hinted(box), new)]
    do += [] if leaves else [press("Leave a redirect behind", "checkbox")]
    return _problem(goal, wanted, *do, press("Move page", "button"))


def _delete(data: Data, rng: Random) -> Problem:
    row = _any(data, rng)
    wanted = data.copy()
    wanted.drop("pages", space=_MAIN, title=row["title"])
    goal = f'Delete the page "{row["title"]}".'
    do = [_look_up(row["title"]), _action("delete"), press("Delete page", "button")]
    return _problem(goal, wanted, *do)


def _protect(data: Data, rng: Random) -> Problem:
    row = _any(data, rng)
    level, words = rng.choice(
        (
            ("sysop", "Allow only administrators"),
            ("autoconfirmed", "Allow only autoconfirmed users"),
        )
    )
    wanted = _changed(data, row["title"], row["text"])
    for kind in ("edit", "move"):
        wanted.add("protected", space=_MAIN, title=row["title"], type=kind, level=level)
    who = words.removeprefix("Allow only ")
    goal = f'Protect the page "{row["title"]}" so that only {who} can edit and move it.'
    do = [_look_up(row["title"]), _action("protect"), press(".oo-ui-dropdownWidget-handle")]
    return _problem(goal, wanted, *do, press(words, "option"), press("Confirm", "button"))


def _block(data: Data, rng: Random) -> Problem:
    user, days = rng.choice(("Ben", "Cleo", "Dan")), rng.randint(2, 9)
    wanted = data.copy()
    wanted.add("blocked", user=user, everywhere=1, days=days)
    goal = f"Block the user {user} from editing for {days} days."

    def until(page: ExpertView) -> tuple[str, dict[str, object]]:
        lines = page.elements
        start = next(i for i, one in enumerate(lines) if one.name == "Expiration:")
        boxes = [one for one in lines[start:] if one.role == "textbox" and "input" in one.hint]
        return fill(boxes[0] if boxes else None, f"{days} days")

    do = [_look_up(f"Special:Block/{user}"), until, press("Block this user", "button")]
    return _problem(goal, wanted, *do)


def _watching(data: Data, rng: Random, *, is_watched: bool) -> Row:
    watched = {row["title"] for row in data.all("watched", user=ME)}
    rows = [*_villages(data), *_lights(data)]
    return rng.choice([row for row in rows if (row["title"] in watched) == is_watched])


def _watch(data: Data, rng: Random) -> Problem:
    wanted, titles, do = data.copy(), [], []
    for _ in range(2):
        title = _watching(wanted, rng, is_watched=False)["title"]
        for space in (_MAIN, _TALK):
            wanted.add("watched", user=ME, space=space, title=title)
        titles.append(title)
        do += [_look_up(title), _action("watch")]
    goal = f'Put the pages "{titles[0]}" and "{titles[1]}" on your watchlist.'
    return _problem(goal, wanted, *do)


def _unwatch(data: Data, rng: Random) -> Problem:
    row, line = _watching(data, rng, is_watched=True), rng.choice(_LINES)
    text = f"{row['text']}\n{line}"
    wanted = _changed(data, row["title"], text)
    wanted.drop("watched", user=ME, title=row["title"])
    goal = (
        f'Take the page "{row["title"]}" off your watchlist, and add the line "{line}" at its end.'
    )
    do = [_look_up(row["title"]), _action("unwatch"), _action("edit"), _write(text)]
    return _problem(goal, wanted, *do, press("Save changes", "button"))


def _undo(data: Data, rng: Random) -> Problem:
    row = rng.choice([row for row in _villages(data) if "Every winter" in row["text"]])
    text = row["text"].replace("Every winter", "Every summer")
    seen = _watching(data, rng, is_watched=False)["title"]
    goal = f'Put the page "{seen}" on your watchlist, and undo the last edit of "{row["title"]}".'
    do = [_look_up(seen), _action("watch"), _look_up(row["title"])]
    do += [_action("history"), press("undo", "link"), press("Save changes", "button")]
    wanted = _changed(data, row["title"], text)
    for space in (_MAIN, _TALK):
        wanted.add("watched", user=ME, space=space, title=seen)
    return _problem(goal, wanted, *do)


def _real_name(data: Data, rng: Random) -> Problem:
    name = rng.choice(_NAMES)
    wanted = data.copy()
    wanted.one("users", user=ME).update(real_name=name)
    goal = f'Give "{name}" as your real name in the preferences.'

    def write(page: ExpertView) -> tuple[str, dict[str, object]]:
        boxes = [one for one in page.all("textbox") if one.name.startswith("Real name:")]
        return fill(boxes[0] if boxes else None, name)

    return _problem(goal, wanted, press("preferences", "link"), write, press("Save", "button"))


def _as_other(data: Data, rng: Random) -> Problem:
    row, line, user = _any(data, rng), rng.choice(_LINES), rng.choice(("Ben", "Cleo", "Dan"))
    text = f"{row['text']}\n{line}"
    goal = (
        f'Log in as {user} with the password "{user.lower()}-secret" and add the line "{line}" at '
        f'the end of the page "{row["title"]}".'
    )
    do = [
        press("log in", "link"), enter("Username", user),
        enter("Password", f"{user.lower()}-secret"), press("Log in", "button"),
    ]  # fmt: skip
    wanted = _changed(data, row["title"], text, user)
    expert = script(*do, *_edit(row["title"], text))
    return Problem(goal=goal, wanted=wanted, expert=expert, signed_in=False)


def _mayor(data: Data, rng: Random) -> Problem:
    row = rng.choice(_villages(data))
    goal = f"Who is the mayor of {row['title']}? Answer with the name."
    return question(data, goal, _value(row, "Mayor"), [_look_up(row["title"])])


def _last_editor(data: Data, rng: Random) -> Problem:
    row = _any(data, rng)
    goal = f'Who made the last edit of the page "{row["title"]}"? Answer with the user name.'
    look = [_look_up(row["title"]), _action("history")]
    return question(data, goal, row["editor"], look)


def _most(rows: Callable[[Data], list[Row]], value: str, asked: str) -> ProblemGenerator:
    """Return the generator that compares a number on three pages."""

    def generator(data: Data, rng: Random) -> Problem:
        # The winner is sampled first: of three at random it would mostly be the same one.
        ranked = sorted(rows(data), key=lambda row: int(_value(row, value)))
        rank = rng.randrange(2, len(ranked))
        three = [ranked[rank], *rng.sample(ranked[:rank], 2)]
        best = three[0]["title"]
        rng.shuffle(three)
        names = ", ".join(row["title"] for row in three)
        goal = f"{asked}: {names}? Answer with its name."
        return question(data, goal, best, [_look_up(row["title"]) for row in three])

    return generator


GENERATORS: dict[str, ProblemGenerator] = {
    "append": _append, "as-other": _as_other, "block": _block, "category": _category,
    "create": _create, "delete": _delete, "discuss": _discuss,
    "highest": _most(_lights, "Height", "Which of these lighthouses is the highest"),
    "largest": _most(_villages, "Population", "Which of these villages has the most people"),
    "last-editor": _last_editor, "mayor": _mayor, "mayors": _mayors, "move": _move,
    "protect": _protect, "real-name": _real_name, "redirect": _redirect, "search": _search,
    "section": _section, "undo": _undo, "unwatch": _unwatch, "update": _update, "watch": _watch,
}  # fmt: skip
"""Kind of task to what makes one."""


# The environment.


_HEADING = re.compile(r"^(=+)\s*(.*?)\s*=+$", re.MULTILINE)


class WikiEnv(SiteEnv):
    """A wiki: the program MediaWiki, with 21 pages on three islands. See ``SiteEnv``."""

    site = "wiki"
    program = WIKI
    generators = GENERATORS
    queries = read_queries("wiki")
    start = "/wiki/Main_Page"
    looks = Settings(ignore="#mw-notification-area")  # it goes after a while
    signed_in = storage_with(
        "wiki", {"wikiUserID": "3", "wikiUserName": "Ada", "wikiToken": "f00d" * 8}
    )

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Data:
        data: Data = super().read(connection)
        for page in data.tables["pages"]:  # blanks in a heading do not matter
            page["text"] = _HEADING.sub(r"\1 \2 \1", page["text"])
        return data
