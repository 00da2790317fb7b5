"""An Android phone or emulator as a ``Device``, over adb."""

from __future__ import annotations

import re
import shlex
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from string import ascii_lowercase
from typing import Any, ClassVar
from xml.etree import ElementTree

from turngym.environments.core.pictures import decode
from turngym.environments.core.spaces import Image
from turngym.environments.desktop.device import Phone, untypable
from turngym.environments.desktop.observation import Element, View, marked
from turngym.errors import EnvironmentFault
from turngym.plugins import import_extra

ANSWER_S = 20.0
"""How long a device may take to answer one command."""
_CONNECT_S = 3.0
MAX_FILE_BYTES = 16 << 20
_END = "turngym-status-"
"""Written after every command, since a cut connection looks like the end of a short answer."""


class AndroidGone(EnvironmentFault):
    """The device was unplugged, switched off or does not answer; nothing was judged."""


class Wire:
    """What goes to a device and comes back. Used from one thread at a time.

    Args:
        serial: As ``adb devices`` lists it.
        host: Where the adb server runs.
        port: Its port.

    Raises:
        MissingExtraError: ``adbutils`` is not installed.
    """

    def __init__(self, serial: str, host: str, port: int) -> None:
        self.serial = serial
        self._address = host, port
        self._client = _adbutils().AdbClient(host, port, socket_timeout=ANSWER_S)
        self._device = self._client.device(serial)

    def execute(self, command: str) -> bytes:
        """Return what a line of the device's shell writes, raw.

        Raises:
            AndroidGone: The device is gone, does not answer, or went away in the middle.
        """
        return self.ran(command)[0]

    def ask(self, *command: str) -> str:
        """Return what a command writes, as text without blanks around it."""
        return self.execute(shlex.join(command)).decode(errors="replace").strip()

    def status(self, *command: str) -> int:
        """Return the exit status of a command."""
        return self.ran(shlex.join(command))[1]

    def ran(self, command: str) -> tuple[bytes, int]:
        """Return output and exit status; what comes without its end mark is not the whole of it."""
        what = command.split(" ", 1)[0]
        with self._attached(what), self._client.make_connection(ANSWER_S) as connection:
            for request in (f"host:transport:{self.serial}", f"exec:{command}; echo {_END}$?"):
                connection.send_command(request)
                connection.check_okay()
            output, mark, status = connection.read_until_close(None).rpartition(_END.encode())
            if not mark or not status.strip().isdigit():
                raise EOFError("it went away in the middle of a command")
            return output, int(status)

    def push(self, path: str, data: bytes) -> None:
        """Write a file."""
        with self._attached("push"):
            self._device.sync.push(data, path, 0o644)

    def pull(self, path: str) -> bytes | None:
        """Return a file; None when it is no plain file of sane size. Links are not followed."""
        with self._attached("pull"):
            about = self._device.sync.stat(path)
            if not stat.S_ISREG(about.mode) or about.size > MAX_FILE_BYTES:
                return None
            content: bytes = self._device.sync.read_bytes(path)
            return content

    def entries(self, folder: str) -> list[tuple[str, int]]:
        """Return name and mode of what is in ``folder``."""
        with self._attached("list"):
            found = [(one.path, one.mode) for one in self._device.sync.iter_directory(folder)]
        return sorted((name, mode) for name, mode in found if name not in (".", ".."))

    @contextmanager
    def _attached(self, what: str) -> Iterator[None]:
        """Say that the device is gone when the wire to it breaks, and start no server by chance."""
        host, port = self._address
        try:
            socket.create_connection(self._address, _CONNECT_S).close()
        except OSError as error:
            raise AndroidGone(
                f"android: {what}: no adb server at {host}:{port} ({error}): adb start-server"
            ) from error
        try:
            yield
        except (_adbutils().AdbError, OSError, EOFError, ValueError, struct.error) as error:
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise AndroidGone(
                f"android: {what}: device {self.serial} is gone ({reason}): see adb devices"
            ) from error


def _adbutils() -> Any:
    return import_extra("adbutils", "an Android device", "android")


# The device itself.


KEYCODES: dict[str, int] = {
    **{letter: 29 + i for i, letter in enumerate(ascii_lowercase)},
    **{str(digit): 7 + digit for digit in range(10)},
    "home": 3, "back": 4, "recent": 187, "menu": 82, "search": 84, "power": 26,
    "volume_up": 24, "volume_down": 25, "enter": 66, "tab": 61, "space": 62, "escape": 111,
    "backspace": 67, "delete": 112, "up": 19, "down": 20, "left": 21, "right": 22,
    "page_up": 92, "page_down": 93, "move_home": 122, "end": 123, "insert": 124,
    "ctrl": 113, "shift": 59, "alt": 57, "meta": 117,
}  # fmt: skip
"""Name to the number that ``input keyevent`` takes; ``home`` is the button, not the key."""


_HOME = "/sdcard/Documents/turngym"
"""Below it files are written and read."""
_DUMP = "/data/local/tmp/turngym.xml"
_DUMPS = 3
"""Times that a screen is asked for which does not keep still."""
_AGAIN_S = 0.3
_LONG_MS, _SWIPE_MS = 900, 400
_CHUNK = 400
"""Characters of one ``input text``."""
_MAX_ENTRIES = 2_000
_FOCUS = re.compile(r"mCurrentFocus=Window\{\S+ \S+ (.+?)\}")
_TURNED = re.compile(r'<hierarchy [^>]*rotation="[13]"')
"""A dump, and touches, of a screen on its side; ``wm size`` says how it stands upright."""
_TROUBLE = {
    "Application Not Responding: ": "does not answer.",
    "Application Error: ": "has crashed.",
}
"""How the system calls the dialogs that it shows about programs, and what is shown to the agent."""


class AndroidDevice(Phone):
    """A phone that adb lists, from now to ``close``. One at a time holds it. See ``Device``.

    Args:
        serial: As ``adb devices`` lists it.
        host: Where the adb server runs.
        port: Its port.

    Raises:
        MissingExtraError: ``adbutils`` is not installed.
        EnvironmentFault: The device is not there, or somebody else of this process holds it.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _held: ClassVar[set[tuple[str, int, str]]] = set()

    def __init__(self, serial: str, *, host: str = "127.0.0.1", port: int = 5037) -> None:
        self._wire = Wire(serial, host, port)
        self._launched: list[str] = []
        self._place = (host, port, serial)
        with self._lock:
            if self._place in self._held:
                raise EnvironmentFault(f"android: device {serial} is in use by another environment")
            self._held.add(self._place)
        self._is_open = True
        try:
            said = self._wire.ask("wm", "size")
            found = re.findall(r"size: (\d+)x(\d+)", said)
            if not found:
                raise EnvironmentFault(
                    f"android: {self._wire.serial} reports no screen size: {said!r}"
                )
            # An override comes after the physical size.
            self._sides = int(found[-1][0]), int(found[-1][1])
            self.width, self.height = self._sides
        except BaseException:
            self._let_go()
            raise

    def look(self) -> View:
        """Return what is on the screen, once it keeps still for the system's own idle time."""
        focus = self.state("window") or ""
        notes = [
            f"{focus.removeprefix(words)} {what}"
            for words, what in _TROUBLE.items()
            if focus.startswith(words)
        ]
        for attempt in range(_DUMPS):
            command = f"uiautomator dump {_DUMP} >/dev/null 2>&1 && cat {_DUMP}; rm -f {_DUMP}"
            said = self._wire.execute(command).decode(errors="replace")
            try:
                elements = read_hierarchy(said[said.find("<?xml") :].strip())
            except ValueError:
                if attempt < _DUMPS - 1:
                    time.sleep(_AGAIN_S)
                continue
            is_turned = _TURNED.search(said) is not None
            self.width, self.height = self._sides[::-1] if is_turned else self._sides
            if is_turned:
                notes.append(
                    f"The screen is turned, {self.width} x {self.height}; pictures stay "
                    f"{self._sides[0]} x {self._sides[1]} and show no more of it."
                )
            shown = marked(elements, self.width, self.height)
            return View(active=focus, notes=tuple(notes), elements=shown)
        notes.append("The screen does not keep still, so its parts are not listed.")
        return View(active=focus, notes=tuple(notes))

    def pixels(self) -> Image:
        said = self._wire.execute("screencap -p")
        before, start, picture = said.partition(b"\x89PNG")  # it warns first, of several displays
        if not start:
            raise EnvironmentFault(
                f"android: screencap of {self._wire.serial} gave no picture: {before[:80]!r}"
            )
        return decode(start + picture, *self._sides)

    def click(self, x: int, y: int, *, button: str = "left", times: int = 1) -> str | None:
        if problem := self._outside(x, y):
            return problem
        tap = f"input tap {x} {y}"
        held = f"input swipe {x} {y} {x} {y} {_LONG_MS}"
        self._wire.execute(held if button == "right" else " && ".join([tap] * times))
        return None

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> str | None:
        problem = self._outside(*start) or self._outside(*end)
        if problem is None:
            self._swipe(start, end)
        return problem

    def scroll(self, x: int, y: int, *, up: bool) -> str | None:
        """Swipe over a place by a third of the screen; ``up`` shows what is above."""
        if problem := self._outside(x, y):
            return problem
        reach = self.height // 6
        high, low = max(0, y - reach), min(self.height - 1, y + reach)
        self._swipe((x, high if up else low), (x, low if up else high))
        return None

    def type_text(self, text: str) -> str | None:
        """Type ASCII at the focus, which is what Android's ``input`` knows; a line end is Enter."""
        if problem := untypable(
            text, lambda char: " " <= char <= "~" or char == "\n", "; adb types ASCII only"
        ):
            return problem
        for number, line in enumerate(text.split("\n")):
            if number:
                self._wire.execute(f"input keyevent {KEYCODES['enter']}")
            for piece in _pieces(line):
                self._wire.execute(f"input text {shlex.quote(piece.replace(' ', '%s'))}")
        return None

    def press(self, keys: str) -> str | None:
        names = [name.lower() for name in keys.replace(" ", "").split("+")]
        codes = [KEYCODES.get(name) for name in names]
        if None in codes or len(codes) > 4:
            return f"Unknown key {keys[:40]!r}; keys are such as back, home, enter, a or ctrl+a."
        words = " ".join(map(str, codes))
        if len(codes) == 1:
            self._wire.execute(f"input keyevent {words}")
            return None
        said = self._wire.ask("sh", "-c", f"input keycombination {words} 2>&1")
        return f"This device takes no chords: {said[:80]}" if said else None

    def launch(self, *command: str) -> None:
        """Start an application by package, an activity by component, or a link by its address.

        Raises:
            EnvironmentFault: It cannot be started.
        """
        target = command[0]
        if "://" in target:
            words = ["am", "start", "-W", "-a", "android.intent.action.VIEW", "-d", target]
        elif "/" in target:
            words = ["am", "start", "-W", "-n", target]
        else:
            words = ["monkey", "-p", target, "-c", "android.intent.category.LAUNCHER", "1"]
        said, status = self._wire.ran(f"{shlex.join([*words, *command[1:]])} 2>&1")
        text = said.decode(errors="replace").strip()
        if status or re.search("^Error|No activities found", text, re.MULTILINE):
            raise EnvironmentFault(f"android: {target} cannot be started: {text[:200]}")
        if "://" not in target:
            self._launched.append(target.split("/")[0])

    def run(self, *command: str) -> int | None:
        return self._wire.status(*command)

    def write_files(self, files: Mapping[str, bytes | None]) -> None:
        for path, data in files.items():
            folder = path if data is None else path.rpartition("/")[0]
            self._wire.ask("mkdir", "-p", f"{_HOME}/{folder}".rstrip("/"))
            if data is not None:
                self._wire.push(f"{_HOME}/{path}", data)

    def read_file(self, path: str) -> bytes | None:
        return None if ".." in path.split("/") else self._wire.pull(f"{_HOME}/{path}")

    def tree(self) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        folders = [""]
        while folders:
            prefix = folders.pop()
            for name, mode in self._wire.entries(f"{_HOME}/{prefix}".rstrip("/")):
                if name.startswith(".") or len(found) >= _MAX_ENTRIES:
                    continue
                path = prefix + name
                found[path] = self.read_file(path) if stat.S_ISREG(mode) else None
                if stat.S_ISDIR(mode):
                    folders.append(f"{path}/")
        return found

    def state(self, query: str) -> str | None:
        """Return one of ``window``, ``setting NAMESPACE KEY``, ``property KEY``, ``dump SERVICE``.

        They come from ``dumpsys window``, ``settings get``, ``getprop`` and ``dumpsys``.
        """
        match query.split():
            case ["window"]:
                found = _FOCUS.findall(self._wire.ask("dumpsys", "window", "displays"))
                return found[-1] if found else None
            case ["setting", namespace, key]:
                value = self._wire.ask("settings", "get", namespace, key)
                return None if value == "null" else value
            case ["property", key]:
                return self._wire.ask("getprop", key) or None
            case ["dump", service]:
                return self._wire.ask("dumpsys", service) or None
        return None

    def close(self) -> None:
        if not self._is_open:
            return
        with suppress(EnvironmentFault):  # it may be unplugged
            for package in dict.fromkeys(self._launched):
                self._wire.ask("am", "force-stop", package)
            self.press("home")
        self._let_go()

    def _let_go(self) -> None:
        self._is_open = False
        with self._lock:
            self._held.discard(self._place)

    def _swipe(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self._wire.execute(f"input swipe {start[0]} {start[1]} {end[0]} {end[1]} {_SWIPE_MS}")


def _pieces(line: str) -> list[str]:
    """Cut a line for ``input text``, which reads ``%s`` as a blank: never leave one whole."""
    parts = re.split(r"(?<=%)(?=s)", line)
    return [part[i : i + _CHUNK] for part in parts for i in range(0, len(part), _CHUNK)]


_ROLES = {
    "AutoCompleteTextView": "text", "Button": "button", "CheckBox": "check box",
    "CheckedTextView": "check box", "EditText": "text", "ImageButton": "button",
    "ImageView": "image", "ProgressBar": "progress", "RadioButton": "radio button",
    "SeekBar": "slider", "Spinner": "combo box", "Switch": "switch", "TextView": "label",
    "ToggleButton": "toggle button",
}  # fmt: skip
"""Last part of a class to what it is called here; anything else that can be touched is an item."""
_TOUCHED = ("clickable", "long-clickable", "checkable")
_BOUNDS = re.compile(r"\[(-?\d+),(-?\d+)\]\[(-?\d+),(-?\d+)\]")
_MAX_NAME = 120


def read_hierarchy(xml: str) -> list[Element]:
    """Return the elements of a dump in its order; those that can be acted on have the mark 1.

    What can be touched and has no words of its own, such as a row of a list, is called by the
    words in it, which are then no lines of their own.

    Raises:
        ValueError: It is no dump.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"no hierarchy of a screen: {error}") from error
    return [element for node in root for element in _elements(node, 0)]


def _elements(node: ElementTree.Element, depth: int) -> Iterator[Element]:
    own = _words(node)
    is_touched = any(_is(node, name) for name in _TOUCHED) or _role(node) == "text"
    inner = [] if own or not is_touched else list(_plain_words(node))
    if is_touched or own:
        yield _element(node, own or ", ".join(inner), is_touched, depth)
        depth += 1
    for child in node:
        if not (inner and _is_plain(child)):
            yield from _elements(child, depth)


def _element(node: ElementTree.Element, name: str, is_touched: bool, depth: int) -> Element:
    bounds = _BOUNDS.fullmatch(node.get("bounds", ""))
    left, top, right, bottom = map(int, bounds.groups()) if bounds else (0, 0, 0, 0)
    role = _role(node) or ("item" if is_touched else "label")
    value = node.get("text", "") if role == "text" else ""
    if role == "text" and name == value:
        name = node.get("content-desc", "") or node.get("hint", "")
    states = [word for word in ("checked", "focused", "selected") if _is(node, word)]
    if not _is(node, "enabled"):
        states.append("disabled")
    return Element(
        role=role, name=name[:_MAX_NAME], value=value, states=tuple(states), depth=depth,
        mark=int(is_touched), x=left, y=top, width=right - left, height=bottom - top,
        app=node.get("package", ""),
    )  # fmt: skip


def _words(node: ElementTree.Element) -> str:
    return " ".join((node.get("content-desc") or node.get("text") or "").split())


def _plain_words(node: ElementTree.Element) -> Iterator[str]:
    """Yield the words of what is in ``node`` and cannot be touched itself."""
    for child in node:
        if _is_plain(child):
            if words := _words(child):
                yield words
            yield from _plain_words(child)


def _is_plain(node: ElementTree.Element) -> bool:
    return not any(_is(one, name) for one in node.iter() for name in _TOUCHED)


def _role(node: ElementTree.Element) -> str:
    return _ROLES.get(node.get("class", "").rsplit(".", 1)[-1], "")


def _is(node: ElementTree.Element, name: str) -> bool:
    return node.get(name) == "true"
