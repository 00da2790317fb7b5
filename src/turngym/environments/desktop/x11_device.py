"""A desktop as a ``Device``: a private X display with real applications."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from html import unescape

from turngym.environments.core.spaces import Image
from turngym.environments.desktop import files
from turngym.environments.desktop.accessibility import Accessibility
from turngym.environments.desktop.activity import Activity
from turngym.environments.desktop.device import Screened, untypable
from turngym.environments.desktop.display import HOME, Display, DisplayGone
from turngym.environments.desktop.observation import Element, View, marked
from turngym.environments.desktop.x11 import Screen, keysym_of
from turngym.errors import EnvironmentFault

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 30, 12, 40
_MAX_BYTES = 4 << 20
_TITLE = re.compile(r"\*?([^*/]+\.gnumeric) - Gnumeric")
_SHEET = re.compile(r"<gnm:Cells>(.*?)</gnm:Cells>", re.DOTALL)
_CELL = re.compile(r"<gnm:Cell\b([^>]*?)(?:/>|>([^<]*)</gnm:Cell>)")
_PLACE = re.compile(r'\b(Row|Col)="(\d{1,6})"')


def contents(titles: Iterable[str], read_file: Callable[[str], bytes | None]) -> tuple[str, ...]:
    """Return the cells of the workbooks that windows called ``titles`` show, as lines.

    A spreadsheet says nothing about its cells through AT-SPI. These are those of the file: what was
    changed and not saved is not among them, and is said to be missing where the title has its star.

    Args:
        titles: Of windows.
        read_file: Returns a file below home, None when there is none.
    """
    lines: list[str] = []
    for title in titles:
        named = _TITLE.fullmatch(title)
        data = read_file(named[1]) if named else None
        if named and data is not None:
            changed = "; changed since" if title.startswith("*") else ""
            lines.append(f"Cells of {named[1]} as last saved{changed}:")
            lines += _table(cells(data))
    return tuple(lines)


def cells(data: bytes) -> dict[tuple[int, int], str]:
    """Return what stands in the first sheet of a workbook, by row and column from 0."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, _MAX_BYTES)
        except zlib.error:
            return {}
    sheet = _SHEET.search(data.decode(errors="replace"))
    found: dict[tuple[int, int], str] = {}
    for about, text in _CELL.findall(sheet[1]) if sheet else ():
        place = dict(_PLACE.findall(about))
        if place.keys() == {"Row", "Col"}:
            text = text or "(a formula of another cell)" * ("ExprID" in about)
            found[int(place["Row"]), int(place["Col"])] = " ".join(unescape(text).split())
    return found


def _table(found: dict[tuple[int, int], str]) -> list[str]:
    if not found:
        return ["  (empty)"]
    rows, columns = (max(place[axis] for place in found) + 1 for axis in (0, 1))
    shown = range(min(columns, MAX_COLUMNS))
    lines = ["     " + " | ".join(chr(ord("A") + column) for column in shown)]
    for row in range(min(rows, MAX_ROWS)):
        texts = [found.get((row, column), "") for column in shown]
        cut = [one if len(one) <= MAX_CELL else one[: MAX_CELL - 3] + "..." for one in texts]
        lines.append(f"  {row + 1:<2} {' | '.join(cut)}".rstrip())
    if rows > MAX_ROWS or columns > MAX_COLUMNS:
        lines.append(f"  ... {rows} rows and {columns} columns in all; the table is cut here")
    return lines


# The desktop.


_WINDOW_S = 60.0
"""How long an application that does not end may take to show a window, on a busy machine too."""
_PING_S = 2.0
_PING_AGAIN_S = 0.2
"""The same for a window whose owner has just let us wait."""
_QUIET_S = 0.045
_TICK_S = 0.015
_CAP_S = 2.0
"""Longest wait for a screen that keeps changing."""
_DIALOG_QUIET_S = 0.3
"""Dialogs look at files and at what was typed by timers."""
_LAUNCH_QUIET_S = 0.25
_NOTCHES = 3
_RUN_S = 10.0
_CHUNK = 200
"""Characters typed before we wait for the application to follow."""
_KEYPAD = "galculator"
"""Title of a window in which keys press buttons, and one that is down takes no other press."""


class X11Device(Screened):
    """One desktop, from its start to ``close``. See ``Device``.

    Args:
        width: Of the screen, in pixels.
        height: Of the screen, in pixels.

    Raises:
        EnvironmentFault: It could not be started.
    """

    def __init__(self, width: int = 1024, height: int = 768) -> None:
        self.width, self.height = width, height
        self.display = Display(width, height)
        self._activities = self.display.activities
        self._names: dict[int, str] = {}
        """Programs by the number of their launch."""
        self._silent: set[str] = set()
        """Titles of windows whose owner did not answer."""
        try:
            self.screen = Screen(self.display.root, width, height, hold=self._calm)
            self._accessibility = Accessibility(self.display.root, self._now)
            # What is mapped before the window manager is there may stay unmanaged.
            until = self._now() + _WINDOW_S
            while not self.screen.is_managed():
                if self._now() > until:
                    raise EnvironmentFault("desktop: the window manager did not start")
                time.sleep(_TICK_S)
            self.screen.move(width - 1, height - 1)  # out of the way of windows and their hints
        except BaseException:
            self.close()
            raise

    def is_sound(self) -> bool:
        """Say whether everything that a desktop needs is there and answers."""
        try:
            self.display.ended()
            self._accessibility.elements()
            return self.screen.is_managed()
        except (EnvironmentFault, OSError):
            return False

    def look(self) -> View:
        """Return windows and their parts once the screen is quiet."""
        notes = self._settle()
        elements, silent = self._accessibility.elements()
        if any(one.role == "dialog" for one in elements):
            self._quiet(_DIALOG_QUIET_S)
            elements, silent = self._accessibility.elements()
        notes = notes or [f"{name} does not answer." for name in silent]
        windows = self.screen.windows()
        active = next((one.title for one in windows if one.is_active), "")
        shown = {active, *(one.window for one in elements)}
        others = tuple(one.title for one in windows if one.title not in shown)
        return View(
            active=active, windows=others, notes=(*self._ended(), *notes),
            elements=marked(elements, self.width, self.height),
            contents=contents((one.title for one in windows), self.read_file),
        )  # fmt: skip

    def rest(self) -> None:
        """Wait longer than between actions, until programs have finished what they do."""
        self._settle()
        self._quiet(_DIALOG_QUIET_S)

    def pixels(self) -> Image:
        self._check()
        return self.screen.pixels()

    def reveal(self, element: Element) -> None:
        """Raise the window of ``element`` where another one lies over it."""
        x, y = element.center
        windows = self.screen.windows()
        over = [w for w in windows if w.x <= x < w.x + w.width and w.y <= y < w.y + w.height]
        own = [w for w in over if w.title == element.window]
        if own and over[-1].title != element.window:
            self.screen.activate(own[-1].id)
            self._settle()

    def click(self, x: int, y: int, *, button: str = "left", times: int = 1) -> str | None:
        if (problem := self._outside(x, y)) is None:
            self.screen.click(x, y, button=button, times=times)
        return problem

    def move(self, x: int, y: int) -> str | None:
        if (problem := self._outside(x, y)) is None:
            self.screen.move(x, y)
        return problem

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> str | None:
        problem = self._outside(*start) or self._outside(*end)
        if problem is None:
            self.screen.drag(start, end)
        return problem

    def scroll(self, x: int, y: int, *, up: bool) -> str | None:
        """Turn the mouse wheel over a place by three notches, ``up`` or down."""
        if (problem := self._outside(x, y)) is None:
            self.screen.scroll(x, y, up=up, notches=_NOTCHES)
        return problem

    def type_text(self, text: str) -> str | None:
        """Type ``text`` key by key, not faster than the application reads."""
        if problem := untypable(text, lambda char: bool(keysym_of(char))):
            return problem
        active = [one for one in self.screen.windows() if one.is_active]
        if len(text) <= _CHUNK and any(one.title == _KEYPAD for one in active):
            for char in text:
                self.screen.type(char)
                self.rest()
            return None
        for start in range(0, len(text), _CHUNK):
            self.screen.type(text[start : start + _CHUNK])
            if len(text) > _CHUNK and not all(
                self._ping(one.id, _PING_S) for one in self.screen.windows() if one.is_active
            ):
                return f"The window stopped answering after {start + _CHUNK} characters."
        return None

    def press(self, keys: str) -> str | None:
        names = ["+"] if keys == "+" else keys.replace(" ", "").split("+")
        if names[-2:] == ["", ""]:  # such as ctrl++
            names[-2:] = ["+"]
        keysyms = [keysym_of(name.lower() if len(names) > 1 else name) for name in names]
        if not all(keysyms) or len(keysyms) > 4:
            return f"Unknown key {keys[:40]!r}; keys are such as enter, f2, a or ctrl+shift+s."
        self.screen.press(keysyms)
        return None

    def launch(self, *command: str) -> None:
        """Start a program and wait until its window is there and quiet.

        Raises:
            EnvironmentFault: It shows none.
        """
        before = {one.id for one in self.screen.windows()}
        number = self.display.launch(*command)
        self._names[number] = command[0]
        until = self._now() + _WINDOW_S
        while not (new := [w for w in self.screen.windows() if w.id not in before]):
            status = next(
                (one.status for one in self.display.ended() if one.number == number), None
            )
            if self._now() > until or status is not None:
                said = self.run_output(f"/run/app{number}.log").decode(errors="replace")
                raise EnvironmentFault(
                    f"desktop: {command[0]} showed no window (exit status {status}): "
                    f"{said.strip()[-200:]}"
                )
            time.sleep(_TICK_S)
        self._ping(new[-1].id, _PING_S)
        self._quiet(_LAUNCH_QUIET_S)

    def arrange(self, boxes: Mapping[int, tuple[int, int, int, int]]) -> None:
        """Move and size windows, by their order of stacking: left, top, width, height."""
        windows = self.screen.windows()
        for place, (x, y, width, height) in boxes.items():
            self.screen.place(windows[place].id, x, y, width, height)
        self._settle()

    def run(self, *command: str) -> int | None:
        """Run a program inside, without a window, to its end."""
        number = self.display.launch(*command)
        until = self._now() + _RUN_S
        while self._now() < until:
            for one in self.display.ended():
                if one.number == number:
                    return one.status
            time.sleep(_TICK_S)
        return None

    def run_output(self, path: str) -> bytes:
        """Return a file that a program wrote outside home; b"" for none."""
        folder, _, name = path.rpartition("/")
        return files.read_file(self.display.root, folder, name) or b""

    def write_files(self, files_: Mapping[str, bytes | None]) -> None:
        """Write files below home. Only before the first program was started."""
        files.write_files(self.display.root, HOME, files_)

    def read_file(self, path: str) -> bytes | None:
        self._check()
        return files.read_file(self.display.root, HOME, path)

    def tree(self) -> dict[str, bytes | None]:
        self._check()
        return files.read_tree(self.display.root, HOME)

    def clipboard(self) -> str | None:
        """Return the text on the clipboard; None also when its owner hangs."""
        until = self._now() + _PING_S
        while True:
            try:
                return self.screen.clipboard(_PING_AGAIN_S)
            except TimeoutError:
                if self._now() >= until:
                    return None

    def close(self) -> None:
        with suppress(Exception):  # it may be gone already
            self.screen.close()
        with suppress(Exception):
            self._accessibility.close()
        self.display.close()

    # Waiting.

    def _settle(self) -> list[str]:
        """Wait until input was handled and the screen is quiet; return notes on who hangs."""
        notes, silent = [], set()
        for window in self.screen.windows():
            wait = _PING_AGAIN_S if window.title in self._silent else _PING_S
            if not self._ping(window.id, wait):
                notes.append(f"{window.title!r} does not answer.")
                silent.add(window.title)
        self._silent = silent
        self._quiet(_QUIET_S)
        return notes

    def _quiet(self, quiet_s: float) -> None:
        """Wait until no program has run for ``quiet_s``, and none is about to.

        So a slow machine makes it wait longer, and not see less.
        """
        until = self._now() + _CAP_S
        turns, since = -1, time.monotonic()
        while self._now() < until:
            fresh, now = self._look(), time.monotonic()
            if fresh.is_busy or fresh.has_alarm or fresh.turns != turns:
                turns, since = fresh.turns, now
            elif now - since >= quiet_s:  # a look says so: time that passes between looks does not
                return
            time.sleep(_TICK_S)

    def _calm(self) -> None:
        """Wait until no process runs at all, whatever it intends to do later."""
        until, turns = self._now() + _CAP_S, -1
        while True:
            time.sleep(_TICK_S)
            fresh = self._look()
            if (not fresh.is_busy and fresh.turns == turns) or self._now() > until:
                return
            turns = fresh.turns

    def _look(self) -> Activity:
        try:
            return self._activities.look()
        except OSError as error:
            raise DisplayGone("desktop: its sandbox is gone") from error

    def _now(self) -> float:
        """Return the time by the desktop's own clock, which stands while it gets no processor."""
        try:
            return self._activities.now()
        except OSError as error:
            raise DisplayGone("desktop: its sandbox is gone") from error

    def _ping(self, window: int, timeout_s: float) -> bool:
        """Ask a window's owner whether it has handled all input; False when it hangs."""
        until = self._now() + timeout_s
        while not self.screen.ping(window, _PING_AGAIN_S):
            if self._now() >= until:
                return False
        return True

    def _ended(self) -> list[str]:
        return [
            f"{self._names[one.number]} ended"
            + (f" with exit status {one.status}." if one.status else ".")
            for one in self.display.ended()
            if one.number in self._names
        ]

    def _check(self) -> None:
        if not self.display.is_alive:
            raise DisplayGone("desktop: its sandbox is gone")
