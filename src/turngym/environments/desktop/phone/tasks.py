"""Tasks on the phone, judged on what its applications keep."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from turngym.environments.core.actions import Action
from turngym.environments.desktop.names import PHONE_TASK_TYPES
from turngym.environments.desktop.observation import View
from turngym.environments.desktop.phone.site import State
from turngym.environments.desktop.problems import (
    DeviceProblem,
    DeviceWorld,
    Script,
    click,
    find,
    key,
    typed,
)
from turngym.environments.desktop.tasks.words import NOUNS, TOPICS, lines, sentence
from turngym.errors import require_known
from turngym.tasks.sets import GeneratedSet

_NAMES = (
    "Ada", "Bela", "Carla", "Dana", "Edgar", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lena",
    "Milo", "Nora", "Otto", "Pia", "Rosa", "Sven", "Tara", "Uwe", "Vera", "Willa", "Yann", "Zoe",
)  # fmt: skip
_SWITCHES = (
    "Airplane mode", "Automatic updates", "Bluetooth", "Dark theme", "Data saver",
    "Do not disturb", "Hotspot", "Location", "Touch sounds", "Wi-Fi",
)  # fmt: skip
_CHOICES = {
    "Language": ("Deutsch", "English", "Espanol", "Francais", "Polski"),
    "Ringtone": ("Bells", "Chime", "Harp", "Marimba", "Whistle"),
    "Screen timeout": ("15 seconds", "1 minute", "5 minutes", "30 minutes"),
    "Text size": ("Small", "Normal", "Large"),
}


@dataclass(frozen=True, kw_only=True)
class PhoneWorld(DeviceWorld):
    """What the applications keep."""

    state: State


@dataclass(frozen=True, kw_only=True)
class PhoneProblem(DeviceProblem[PhoneWorld]):
    """One problem on the phone; its expert scrolls down to what is not on the screen."""

    start: State
    """What the applications keep at first."""
    wanted: State
    """What they must keep in the end, all of it."""

    @property
    def content(self) -> str:
        """Prompt and start."""
        return f"{self.prompt}\n{self.start}"

    async def judge(self, world: PhoneWorld) -> float:
        is_answered = self.truth is None or _plain(world.answer or "") == _plain(self.truth)
        return float(_shown(world.state) == _shown(self.wanted) and is_answered)


def _shown(state: State) -> State:
    """Return the state with contacts in the order in which they are shown, however it came."""
    return {**state, "contacts": sorted(state["contacts"], key=lambda one: one["name"])}


def _plain(number: str) -> str:
    """Return a number as it is dialled, however it is written."""
    return re.sub(r"[\s().-]", "", number)


def phone_tasks(kind: str) -> GeneratedSet[PhoneProblem]:
    """Return the problems of a kind.

    Raises:
        ConfigError: There is no such kind.
    """
    require_known("kind of phone task", kind, PHONE_TASK_TYPES)
    change: Callable[[Random, State], Made] = globals()[f"_{kind.replace('-', '_')}"]

    def generator(rng: Random) -> PhoneProblem:
        start = _start(rng)
        wanted = copy.deepcopy(start)
        prompt, script, truth = change(rng, wanted)
        return PhoneProblem(prompt=prompt, start=start, wanted=wanted, script=script, truth=truth)

    return GeneratedSet(f"phone-{kind}", generator, seed_name="")


Made = tuple[str, Script, str | None]
"""Goal, script and answer; a generator changes the state to what is wanted."""


def _start(rng: Random) -> State:
    names = sorted(rng.sample(_NAMES, 14))
    return {
        "clock": [{"time": time, "on": rng.random() < 0.5} for time in _times(rng, 4)],
        "contacts": [{"name": name, "number": _number(rng)} for name in names],
        "messages": {
            name: [{"mine": False, "text": f"Please {sentence(rng)}."}]
            for name in rng.sample(names, 6)
        },
        "notes": [{"title": topic, "text": sentence(rng)} for topic in rng.sample(TOPICS, 5)],
        "settings": {
            "switches": {name: rng.random() < 0.5 for name in _SWITCHES},
            "choices": {
                name: {"value": rng.choice(options), "options": list(options)}
                for name, options in _CHOICES.items()
            },
        },
        "shopping": [{"item": noun, "bought": rng.random() < 0.3} for noun in rng.sample(NOUNS, 6)],
    }


def _times(rng: Random, n: int) -> list[str]:
    found: set[str] = set()
    while len(found) < n:
        found.add(f"{rng.randint(0, 23):02}:{rng.choice(range(0, 60, 5)):02}")
    return sorted(found)


def _number(rng: Random) -> str:
    return f"0{rng.randint(10, 99)} {rng.randint(100_000, 999_999)}"


# Words of scripts.


def _open(app: str) -> Script:
    return click(app, "link")


def _fill(name: str, text: str, *, clear: bool = False) -> Script:
    return (*click(name, "textbox"), *(key("ctrl+a") if clear else ()), *typed(text))


# Kinds.


def _alarm_add(rng: Random, state: State) -> Made:
    taken = {one["time"] for one in state["clock"]}
    time = next(one for one in _times(rng, 5) if one not in taken)
    hour, minute = time.split(":")
    state["clock"].append({"time": time, "on": True})
    steps = (*_open("Clock"), *click("New alarm"), *_fill("Hour", hour), *_fill("Minute", minute))
    return f"Set a new alarm for {time}.", (*steps, *click("Save")), None


def _alarm_switch(rng: Random, state: State) -> Made:
    alarm = rng.choice(state["clock"])
    alarm["on"] = not alarm["on"]
    goal = f"Turn the alarm at {alarm['time']} {'on' if alarm['on'] else 'off'}."
    return goal, (*_open("Clock"), *click(f"Alarm {alarm['time']}")), None


def _contact_add(rng: Random, state: State) -> Made:
    taken = {one["name"] for one in state["contacts"]}
    name, number = rng.choice([name for name in _NAMES if name not in taken]), _number(rng)
    state["contacts"].append({"name": name, "number": number})
    steps = (*_open("Contacts"), *click("New contact"), *_fill("Name", name))
    goal = f'Add the contact "{name}" with the number "{number}".'
    return goal, (*steps, *_fill("Number", number), *click("Save")), None


def _contact_change(rng: Random, state: State) -> Made:
    person, number = rng.choice(state["contacts"]), _number(rng)
    person["number"], name = number, person["name"]
    steps = (*_open("Contacts"), *click(name), *click("Edit"))
    goal = f'Change the number of {name} to "{number}".'
    return goal, (*steps, *_fill("Number", number, clear=True), *click("Save")), None


def _contact_delete(rng: Random, state: State) -> Made:
    name = rng.choice(state["contacts"])["name"]
    state["contacts"] = [one for one in state["contacts"] if one["name"] != name]
    return f"Delete the contact {name}.", (*_open("Contacts"), *click(name), *click("Delete")), None


def _contact_find(rng: Random, state: State) -> Made:
    person = rng.choice(state["contacts"])
    goal = f"Find the number of {person['name']}, and answer with it."
    return goal, (*_open("Contacts"), *click(person["name"])), person["number"]


def _message_number(rng: Random, state: State) -> Made:
    to = rng.choice(list(state["messages"]))
    person = rng.choice([one for one in state["contacts"] if one["name"] != to])
    state["messages"][to].append({"mine": True, "text": person["number"]})
    steps = (*_open("Contacts"), *click(person["name"]), *key("home"), *_open("Messages"))
    goal = f"Look up the number of {person['name']}, and send it to {to} as a message."
    return goal, (*steps, *click(to), *_fill("Message", person["number"]), *click("Send")), None


def _message_send(rng: Random, state: State) -> Made:
    to, text = rng.choice(list(state["messages"])), sentence(rng)
    state["messages"][to].append({"mine": True, "text": text})
    steps = (*_open("Messages"), *click(to), *_fill("Message", text), *click("Send"))
    return f'Send "{text}" to {to}.', steps, None


def _note_add(rng: Random, state: State) -> Made:
    title = rng.choice([t for t in TOPICS if t not in {one["title"] for one in state["notes"]}])
    first, second = lines(rng, 2)
    state["notes"].append({"title": title, "text": f"{first}\n{second}"})
    steps = (*_open("Notes"), *click("New note"), *_fill("Title", title))
    goal = f'Write a note with the title "{title}" and two lines: "{first}" and "{second}".'
    return goal, (*steps, *_fill("Text", f"{first}\n{second}"), *click("Save")), None


def _note_change(rng: Random, state: State) -> Made:
    note, text = rng.choice(state["notes"]), sentence(rng)
    note["text"] = text
    steps = (*_open("Notes"), *click(note["title"]), *_fill("Text", text, clear=True))
    goal = f'Replace the text of the note "{note["title"]}" with "{text}".'
    return goal, (*steps, *click("Save")), None


def _note_delete(rng: Random, state: State) -> Made:
    note = rng.choice(state["notes"])
    state["notes"].remove(note)
    hold = click(note["title"], "button", action="right_click")
    steps = (*_open("Notes"), *hold, *click("Delete note"))
    return f'Delete the note "{note["title"]}". Holding a note shows what can be done.', steps, None


def _setting_choose(rng: Random, state: State) -> Made:
    name, choice = rng.choice(list(state["settings"]["choices"].items()))
    old, new = choice["value"], rng.choice([o for o in choice["options"] if o != choice["value"]])
    choice["value"] = new
    steps = (*_open("Settings"), *click(f"{name}: {old}"), *click(new, "radio"))
    return f'Set "{name}" to "{new}".', steps, None


def _setting_switch(rng: Random, state: State) -> Made:
    switches = state["settings"]["switches"]
    names = sorted(rng.sample(list(switches), 2))
    for name in names:
        switches[name] = not switches[name]
    one, two = (f'"{name}" {"on" if switches[name] else "off"}' for name in names)
    steps = tuple(step for name in names for step in click(name, "switch"))
    return f"Turn {one} and {two}.", (*_open("Settings"), *steps), None


def _shopping_add(rng: Random, state: State) -> Made:
    taken = {one["item"] for one in state["shopping"]}
    items = rng.sample([noun for noun in NOUNS if noun not in taken], 2)
    state["shopping"] += [{"item": item, "bought": False} for item in items]
    one, two = ((*_fill("New item", item), *click("Add", "button")) for item in items)
    goal = f'Put "{items[0]}" on the shopping list, and then "{items[1]}".'
    return goal, (*_open("Shopping"), *one, *two), None


def _shopping_check(rng: Random, state: State) -> Made:
    item = rng.choice(state["shopping"])
    item["bought"] = not item["bought"]
    words = "Mark" if item["bought"] else "Remove the mark from"
    goal = f"{words} {item['item']} on the shopping list{' as bought' * item['bought']}."
    return goal, (*_open("Shopping"), *click(item["item"], "checkbox")), None


def _shopping_remove(rng: Random, state: State) -> Made:
    item = rng.choice(state["shopping"])
    state["shopping"].remove(item)

    def swipe_away(view: View) -> Action:
        x, y = find(view, item["item"], "checkbox").center
        return Action(name="drag_at", arguments={"x": x + 300, "y": y, "to_x": x, "to_y": y})

    goal = f"Remove {item['item']} from the shopping list."
    return goal, (*_open("Shopping"), swipe_away), None
