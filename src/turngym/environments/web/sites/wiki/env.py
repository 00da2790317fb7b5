"""Tasks in a real wiki, done by an expert and judged on its database."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from functools import partial
from random import Random

from turngym.environments.web.expert_view import ExpertView, Move, Stage, click, enter, fill, press
from turngym.environments.web.settings import LOCAL
from turngym.environments.web.sites.catalogue import WIKI
from turngym.environments.web.sites.data import Data, Row, plain
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import Made, question

ME = "Ada"
_COOKIES = {"wikiUserID": "3", "wikiUserName": ME, "wikiToken": "f00d" * 8}
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
_VILLAGE, _LIGHT = "is a village on", "is a lighthouse"
"""What pages of a kind say."""


def _look_up(title: str) -> Stage:

    def stage(page: ExpertView) -> Move:
        box = page.named(_SEARCH, "searchbox")
        return click(None) if box is None else ("submit", {"mark": box.mark, "text": title})

    return stage


def _action(name: str) -> Stage:
    return press(name, "link", after=_ACTIONS)


def _confirmed(name: str) -> list[Stage]:
    """Click an action; before its script is ready the wiki asks on a page whether it is meant."""
    return [_action(name), press("OK", "button")]


def _write(text: str) -> Stage:
    return lambda page: fill(page.named(_EDITOR, "textbox"), text.replace("\n", "\\n"))


def _edit(row: Row, text: str, user: str = ME) -> list[Stage]:
    """Give a wanted page another text; return how an expert does it."""
    row.update(text=_same(text), editor=user)
    save = press("Save changes", "button")
    return [_look_up(row["title"]), _action("edit"), _write(text), save]


def _create_page(data: Data, title: str, text: str, redirect: int = 0) -> list[Stage]:
    """Add a page to what is wanted; return how an expert makes it."""
    _add_page(data, title, text, redirect=redirect)
    link = press(title, "link", after="Create the page")
    return [_look_up(title), link, _write(text), press("Save page", "button")]


def _add_page(data: Data, title: str, text: str, space: int = _MAIN, redirect: int = 0) -> None:
    data.add("pages", space=space, title=title, redirect=redirect, text=text, editor=ME)


def _pages(data: Data, *kinds: str) -> list[Row]:
    """Return the pages of villages, of lighthouses, or of both."""
    rows, kinds = data.all("pages", space=_MAIN), kinds or (_VILLAGE, _LIGHT)
    return [row for row in rows if any(words in row["text"] for words in kinds)]


def _any(data: Data, rng: Random) -> Row:
    return rng.choice(_pages(data))


def _value(row: Row, name: str) -> str:
    """Return what a line such as ``Mayor: Jon Marsh`` says."""
    found = re.search(rf"^{name}: (.+)$", row["text"], re.MULTILINE)
    assert found is not None
    return found[1].split()[0] if name == "Height" else found[1]


def _append(data: Data, rng: Random) -> Made:
    row, line = _any(data, rng), rng.choice(_LINES)
    goal = f'Add the line "{line}" at the end of the page "{row["title"]}".'
    return goal, _edit(row, f"{row['text']}\n{line}")


def _section(data: Data, rng: Random) -> Made:
    row, name, line = _any(data, rng), rng.choice(_SECTIONS), rng.choice(_LINES)
    title = row["title"]
    goal = f'Add a section "{name}" with the text "{line}" at the very end of the page "{title}".'
    return goal, _edit(row, f"{row['text']}\n== {name} ==\n{line}")


def _create(data: Data, rng: Random) -> Made:
    title, line = rng.choice(_NEW), rng.choice(_LINES)
    goal = f'Create the page "{title}" with the text "{line}".'
    return goal, _create_page(data, title, line)


def _redirect(data: Data, rng: Random) -> Made:
    title, row = rng.choice(_NEW), _any(data, rng)
    goal = f'Make a page "{title}" that redirects to the page "{row["title"]}".'
    return goal, _create_page(data, title, f"#REDIRECT [[{row['title']}]]", redirect=1)


def _update(data: Data, rng: Random) -> Made:
    row, people = rng.choice(_pages(data, _VILLAGE)), rng.randint(80, 1900)
    text = row["text"].replace(f"Population: {_value(row, 'Population')}", f"Population: {people}")
    return f"Correct the population of {row['title']}: it is {people}.", _edit(row, text)


def _mayors(data: Data, rng: Random) -> Made:
    """Edit two or three pages that one page links to."""
    island, new = rng.choice(_ISLANDS), rng.choice(_MAYORS)
    rows = [row for row in _pages(data, _VILLAGE) if f"[[{island}]]" in row["text"]]
    old = _value(rng.choice(rows), "Mayor")
    rows = [row for row in rows if _value(row, "Mayor") == old]
    if not 2 <= len(rows) <= 3:
        return _mayors(data, rng)
    goal = f"Every village on {island} whose mayor was {old} has a new one, {new}; change it."
    texts = [row["text"].replace(f"Mayor: {old}", f"Mayor: {new}") for row in rows]
    return goal, [do for row, text in zip(rows, texts, strict=True) for do in _edit(row, text)]


def _search(data: Data, rng: Random) -> Made:
    """Find a village by what its page says."""
    row, line = rng.choice(_pages(data, _VILLAGE)), rng.choice(_LINES)
    food = row["text"].split("is known for its ")[1].split(".")[0]
    mayor = _value(row, "Mayor")
    same = [one for one in _pages(data, _VILLAGE) if food in one["text"] and mayor in one["text"]]
    if len(same) > 1:
        return _search(data, rng)
    goal = (
        f'Add the line "{line}" at the end of the page of the village with the mayor {mayor} that '
        f"is known for its {food}."
    )
    edit = _edit(row, f"{row['text']}\n{line}")[1:]
    return goal, [_look_up(f"{mayor} {food}"), press(row["title"], "link"), *edit]


def _category(data: Data, rng: Random) -> Made:
    row, name = _any(data, rng), rng.choice(_CATEGORIES)
    goal = f'Add the page "{row["title"]}" to the category "{name}", below its other category.'
    return goal, _edit(row, f"{row['text']}\n[[Category:{name}]]")


def _discuss(data: Data, rng: Random) -> Made:
    title, subject, line = _any(data, rng)["title"], rng.choice(_SUBJECTS), rng.choice(_LINES)
    _add_page(data, title, f"== {subject} ==\n{line}", space=_TALK)
    goal = f'Start a discussion on the talk page of "{title}": subject "{subject}", text "{line}".'
    do = [_look_up(title), _action("discussion"), _action("+")]
    do += [enter("Subject:", subject), _write(line), press("Save page", "button")]
    return goal, do


def _move(data: Data, rng: Random) -> Made:
    row, new, leaves = _any(data, rng), rng.choice(_NEW), rng.random() < 0.5
    old = row["title"]
    row.update(title=new, editor=ME)
    for watched in data.all("watched", title=old):
        data.add("watched", **{**watched, "title": new})
    if leaves:
        _add_page(data, old, f"#REDIRECT [[{new}]]", redirect=1)
    goal = f'Move the page "{old}" to "{new}"{"" if leaves else ", without leaving a redirect"}.'
    box = ".oo-ui-inputWidget-input"
    do = [_look_up(old), _action("move"), lambda page: fill(page.hinted(box), new)]
    do += [] if leaves else [press("Leave a redirect behind", "checkbox")]
    return goal, [*do, press("Move page", "button")]


def _delete(data: Data, rng: Random) -> Made:
    title = _any(data, rng)["title"]
    data.drop("pages", space=_MAIN, title=title)
    do = [_look_up(title), _action("delete"), press("Delete page", "button")]
    return f'Delete the page "{title}".', do


def _protect(data: Data, rng: Random) -> Made:
    row, who = _any(data, rng), {"sysop": "administrators", "autoconfirmed": "autoconfirmed users"}
    level = rng.choice(list(who))
    row["editor"] = ME
    for kind in ("edit", "move"):
        data.add("protected", space=_MAIN, title=row["title"], type=kind, level=level)
    goal = f'Protect the page "{row["title"]}" so that only {who[level]} can edit and move it.'
    do = [_look_up(row["title"]), _action("protect"), press(".oo-ui-dropdownWidget-handle")]
    return goal, [*do, press(f"Allow only {who[level]}", "option"), press("Confirm", "button")]


def _block(data: Data, rng: Random) -> Made:
    user, days = rng.choice(("Ben", "Cleo", "Dan")), rng.randint(2, 9)
    data.add("blocked", user=user, everywhere=1, days=days)

    def until(page: ExpertView) -> Move:
        lines = page.elements
        start = next(i for i, one in enumerate(lines) if one.name == "Expiration:")
        boxes = [one for one in lines[start:] if one.role == "textbox" and "input" in one.hint]
        return fill(boxes[0] if boxes else None, f"{days} days")

    do = [_look_up(f"Special:Block/{user}"), until, press("Block this user", "button")]
    return f"Block the user {user} from editing for {days} days.", do


def _watching(data: Data, rng: Random, *, is_watched: bool) -> Row:
    watched = {row["title"] for row in data.all("watched", user=ME)}
    return rng.choice([row for row in _pages(data) if (row["title"] in watched) == is_watched])


def _watch_another(data: Data, rng: Random) -> tuple[str, list[Stage]]:
    """Add a page to the wanted watchlist; return its title and how an expert gets it there."""
    title = _watching(data, rng, is_watched=False)["title"]
    for space in (_MAIN, _TALK):
        data.add("watched", user=ME, space=space, title=title)
    return title, [_look_up(title), *_confirmed("watch")]


def _watch(data: Data, rng: Random) -> Made:
    (one, first), (other, second) = _watch_another(data, rng), _watch_another(data, rng)
    return f'Put the pages "{one}" and "{other}" on your watchlist.', [*first, *second]


def _unwatch(data: Data, rng: Random) -> Made:
    row, line = _watching(data, rng, is_watched=True), rng.choice(_LINES)
    data.drop("watched", user=ME, title=row["title"])
    goal = (
        f'Take the page "{row["title"]}" off your watchlist, and add the line "{line}" at its end.'
    )
    look, *edit = _edit(row, f"{row['text']}\n{line}")
    return goal, [look, *_confirmed("unwatch"), *edit]


def _undo(data: Data, rng: Random) -> Made:
    row = rng.choice([row for row in _pages(data, _VILLAGE) if "Every winter" in row["text"]])
    row.update(text=row["text"].replace("Every winter", "Every summer"), editor=ME)
    seen, do = _watch_another(data, rng)
    goal = f'Put the page "{seen}" on your watchlist, and undo the last edit of "{row["title"]}".'
    do += [_look_up(row["title"]), _action("history"), press("undo", "link")]
    return goal, [*do, press("Save changes", "button")]


def _real_name(data: Data, rng: Random) -> Made:
    name = rng.choice(_NAMES)
    data.one("users", user=ME)["real_name"] = name

    def write(page: ExpertView) -> Move:
        boxes = [one for one in page.all("textbox") if one.name.startswith("Real name:")]
        return fill(boxes[0] if boxes else None, name)

    do = [press("preferences", "link"), write, press("Save", "button")]
    return f'Give "{name}" as your real name in the preferences.', do


def _as_other(data: Data, rng: Random) -> Made:
    row, line, user = _any(data, rng), rng.choice(_LINES), rng.choice(("Ben", "Cleo", "Dan"))
    goal = (
        f'Log in as {user} with the password "{user.lower()}-secret" and add the line "{line}" at '
        f'the end of the page "{row["title"]}".'
    )
    do = [press("log in", "link"), enter("Username", user)]
    do += [enter("Password", f"{user.lower()}-secret"), press("Log in", "button")]
    return goal, [*do, *_edit(row, f"{row['text']}\n{line}", user)]


def _mayor(data: Data, rng: Random) -> Made:
    row = rng.choice(_pages(data, _VILLAGE))
    goal = f"Who is the mayor of {row['title']}? Answer with the name."
    return question(goal, _value(row, "Mayor"), [_look_up(row["title"])])


def _last_editor(data: Data, rng: Random) -> Made:
    row = _any(data, rng)
    goal = f'Who made the last edit of the page "{row["title"]}"? Answer with the user name.'
    look = [_look_up(row["title"]), _action("history")]
    return question(goal, row["editor"], look)


def _most(data: Data, rng: Random, kind: str, value: str, asked: str) -> Made:
    """Compare a number on three pages."""
    # The winner is sampled first: of three at random it would mostly be the same one.
    ranked = sorted(_pages(data, kind), key=lambda row: int(_value(row, value)))
    rank = rng.randrange(2, len(ranked))
    three = [ranked[rank], *rng.sample(ranked[:rank], 2)]
    best = three[0]["title"]
    rng.shuffle(three)
    names = ", ".join(row["title"] for row in three)
    goal = f"{asked}: {names}? Answer with its name."
    return question(goal, best, [_look_up(row["title"]) for row in three])


_highest = partial(
    _most, kind=_LIGHT, value="Height", asked="Which of these lighthouses is the highest"
)
_largest = partial(
    _most, kind=_VILLAGE, value="Population", asked="Which of these villages has the most people"
)
_HEADING = re.compile(r"^(=+)\s*(.*?)\s*=+$", re.MULTILINE)
_REDIRECT = re.compile(r"^\s*#redirect\s*:?\s*\[\[\s*(.*?)\s*\]\]", re.IGNORECASE)
_CATEGORY = re.compile(r"\[\[\s*category\s*:\s*(.*?)\s*\]\]", re.IGNORECASE)


def _title(text: str) -> str:
    return text[:1].upper() + text[1:].replace("_", " ")


def _same(text: str) -> str:
    """Return one form of what the program reads alike.

    Blanks and letter case of its own words and of titles do not matter, nor where categories stand.
    """
    text = _HEADING.sub(r"\1 \2 \1", text)
    text = _REDIRECT.sub(lambda found: f"#REDIRECT [[{_title(found[1])}]]", text)
    categories = [f"[[Category:{_title(name)}]]" for name in _CATEGORY.findall(text)]
    return str(plain("\n".join([_CATEGORY.sub("", text), *categories])))


class WikiEnv(SiteEnv):
    """A wiki: the program MediaWiki, with 21 pages on three islands. See ``SiteEnv``."""

    site = "wiki"
    program = WIKI
    start = "/wiki/Main_Page"
    looks = replace(LOCAL, ignore="#mw-notification-area")  # it goes after a while
    signed_in = _COOKIES

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> Data:
        data = super().read(connection)
        for page in data.tables["pages"]:
            page["text"] = _same(page["text"])
        return data
