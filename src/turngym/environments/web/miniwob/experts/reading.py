"""Experts of tasks that ask in the words of people, or for what words mean."""

from __future__ import annotations

import re

from turngym.environments.web.expert_view import Expert, ExpertView, Move, click, first
from turngym.environments.web.miniwob.experts.choosing import Wish, fulfil

_LIKE = tuple(
    frozenset(line.split())
    for line in """
    big large huge enormous gigantic
    small tiny little mini petite
    red scarlet crimson vermillion
    happy cheerful joyful gleeful delighted
    sad unhappy sorrowful miserable tragic
    angry mad furious irritated
    evil wicked immoral sinful corrupt depraved
    wrong incorrect mistaken erroneous
    real genuine actual
    strange odd peculiar unusual weird
    stop cease halt end finish
    scared terrified panicked fearful frightened afraid
    quiet calm peaceful serene mild
    old aged archaic
    love like adore favor
    kill murder assassinate
    keep retain preserve sustain maintain
    hide conceal camouflage
    hate despise loathe detest dislike
    funny humorous amusing comical laughable
    fat fleshy plump chubby
    stupid dumb dull unwise
    delicious savory delectable appetizing
    cut slice carve chop
    brave courageous fearless
    begin start initiate launch
    answer reply response
    television televisions TV TVs
    house houses home homes
    fire fires flame flames
    pig pork swine
    rabbit rabbits bunny bunnies
    car cars automobile automobiles vehicle vehicles
    water
    """.strip().splitlines()
)
"""What an expert knows of English: words of a line mean about the same."""


def _synonyms(page: ExpertView) -> Move:
    asked = re.findall(r"similar to (.*) and click", page.goal)[0].split(", ")
    meant = frozenset[str]().union(*(words for words in _LIKE if words & set(asked)))
    boxes = (one for one in page.all("checkbox") if one.name in meant)
    return page.tick(first(one for one in boxes if "checked" not in one.states))


def _button_delay(page: ExpertView) -> Move:
    """Wait between two clicks; a wait is one second."""
    seconds = int(re.findall(r"wait (\d+) seconds", page.goal)[0])
    if not page.past:
        return click(page.named("ONE", "button"))
    return click(page.named("TWO", "button")) if page.count("wait") >= seconds else ("wait", {})


_SUBMENU = "Playback"


def _menu(page: ExpertView) -> Move:
    """Open the menu, then find the item by its name or by its icon, also in the menu below."""
    items = page.all("menuitem")
    if not items:
        return click(page.named("Menu", "button"))
    icon = re.findall(r"with the (\S+) icon", page.goal)
    for one in items:
        if (one.about == icon[0]) if icon else (one.name == page.quoted[-1]):
            return click(one)
    submenu = page.named(_SUBMENU)
    return ("wait", {}) if submenu is None else ("hover", {"mark": submenu.mark})


_NO_NAMES = frozenset(
    word
    for line in """
    alexa answer ask automatically can change copy could create delete email find first flag
    forward foward give go hi highlight if important in jend just let locate look make mark may
    no open please primary pull put remind replay reply resend respond save say search select send
    set show simply siri star tag take tell text thanks the there throw to trash tuesday will write
    you
    """.splitlines()
    for word in line.split()
)
"""Words that begin sentences of people, and others with a capital that name no sender."""
_DOUBLE = "Dee Dee|Jo Ann|La Verne|Miof Mela"
"""Names of two words, all that the pages have."""
_AWAY = r"delet|trash|remove|\brid\b|throw away|recycling|don't want|out of my inbox"


def _mail(page: ExpertView) -> Move:
    """Read what is wished, and by whom the mail is."""
    quoted = re.findall(r'"(.*)"', page.goal)
    words = page.goal.split('"')[0] + " " + page.goal.split('"')[-1]
    listed = {one.name for one in page.all("text") if one.mark}
    names = [one[:-1] if one[:-1] in listed else one for one in _names(words, listed)]
    known = [one for one in names if one in listed] or names
    known = known or [one for one in listed if one and one in words]
    sender = max(known, key=lambda one: _is_sender(one, words), default="")
    others = [one for one in names if one != sender]
    if quoted:
        return fulfil(page, Wish("reply", sender, quoted[0].strip('" ')))
    if re.search(_AWAY, words, re.IGNORECASE):
        return fulfil(page, Wish("trash", sender))
    if others:
        return fulfil(page, Wish("forward", sender, others[0]))
    return fulfil(page, Wish("star", sender))


def _names(words: str, listed: set[str]) -> list[str]:
    """Return the names in a text, in order; a word of sentences may be the name of a sender."""
    found = list(dict.fromkeys(re.findall(rf"{_DOUBLE}|[A-Z][a-z]+(?:-[A-Z]?[a-z]+)?", words)))
    certain = set(re.findall(rf"\b(?:to|by) ({_DOUBLE}|[A-Z][a-z]+)", words))
    certain |= {one for one in listed if re.search(rf"[a-z,] {re.escape(one)}\b", words)}
    return [one for one in found if one in certain or one.lower() not in _NO_NAMES]


def _is_sender(name: str, words: str) -> int:
    """Return how much speaks for ``name`` being who wrote, rather than who is to get it."""
    name = re.escape(name)
    signs = {
        rf"\b(from|by) {name}\b": 3, rf"{name}(?<=s) (last )?email": 2, rf"{name}'?s\b": 2,
        rf"{name} (sent|wrote|email)": 2,
        rf"\bto {name}\b": -2, rf"\b(send|give|forward|email|let) {name}\b(?!')": -1,
    }  # fmt: skip
    return sum(value for sign, value in signs.items() if re.search(sign, words, re.IGNORECASE))


READING: dict[str, Expert] = {
    "button-delay": _button_delay, "click-checkboxes-soft": _synonyms, "click-menu-2": _menu,
    "email-inbox-forward-nl": _mail, "email-inbox-forward-nl-turk": _mail,
    "email-inbox-nl-turk": _mail,
}  # fmt: skip
