"""The X side of one desktop: pixels, mouse and keyboard, windows, clipboard. No other process.

Input goes through the XTEST extension, which applications cannot distinguish from real devices.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from Xlib import XK, X, display, error
from Xlib.protocol import display as connection
from Xlib.protocol import event
from Xlib.support import unix_connect

from turngym.environments.core.spaces import Image
from turngym.environments.desktop.display import DisplayGone

_CONNECTING = threading.Lock()
_SPARE_KEYS = 8
"""Keycodes lent to characters that the keyboard lacks."""
_SETTLE_S = 0.02
_HOLD_S = 0.02
"""A button is held so long: the window manager sees a press first, raises and focuses the window,
and a release in that very moment is lost on some buttons."""
_BUTTONS = {"left": 1, "middle": 2, "right": 3}

KEYS = {
    "alt": "Alt_L", "backspace": "BackSpace", "capslock": "Caps_Lock", "control": "Control_L",
    "ctrl": "Control_L", "del": "Delete", "delete": "Delete", "down": "Down", "end": "End",
    "enter": "Return", "esc": "Escape", "escape": "Escape", "home": "Home", "insert": "Insert",
    "left": "Left", "menu": "Menu", "pagedown": "Next", "pageup": "Prior", "return": "Return",
    "right": "Right", "shift": "Shift_L", "space": "space", "super": "Super_L", "tab": "Tab",
    "up": "Up", **{f"f{n}": f"F{n}" for n in range(1, 13)},
}  # fmt: skip
"""Names of keys in actions, lower-cased, and what X calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of an application."""

    id: int
    title: str
    pid: int
    """Inside the sandbox; 0 when it does not say."""
    x: int
    y: int
    width: int
    height: int
    is_active: bool


def keysym_of(key: str) -> int:
    """Return the X keysym of a key's name or of one character; 0 when there is none."""
    if len(key) == 1:
        return _keysym_of_char(key)
    name = KEYS.get(key.lower())
    return int(XK.string_to_keysym(name)) if name else 0


def _keysym_of_char(char: str) -> int:
    code = ord(char)
    if char == "\n":
        return int(XK.XK_Return)
    if char == "\t":
        return int(XK.XK_Tab)
    if code < 0x20 or 0x7F <= code < 0xA0:
        return 0
    return code if code < 0x100 else 0x01000000 | code


class Screen:
    """A connection to the X server of one desktop. Used from one thread at a time.

    Args:
        root: The desktop's file system as the host reaches it.
        width: Of the screen, in pixels.
        height: Of the screen, in pixels.
        hold: Waits until programs have seen that a button is down.

    Raises:
        DisplayGone: The X server does not answer.
    """

    def __init__(self, root: Path, width: int, height: int, *, hold: Callable[[], None]) -> None:
        self._hold = hold
        self.width, self.height = width, height
        with self._boundary():
            self._display = _connect(root / "tmp/.X11-unix/X0")
            self._root = self._display.screen().root
            self._pixels = _map_pixels(root / "run/screen/Xvfb_screen0", width, height)
            self._atoms = {n: self._display.intern_atom(n) for n in _ATOMS}
            # Pongs and the clipboard are reported to us by messages to windows.
            self._root.change_attributes(event_mask=X.SubstructureNotifyMask)
            self._own = self._root.create_window(-10, -10, 1, 1, 0, X.CopyFromParent)
            self._read_keymap()
        self._pings = 0

    def close(self) -> None:
        """Give up the connection."""
        with suppress(error.ConnectionClosedError, OSError):
            self._display.close()

    # Pixels.

    def pixels(self) -> Image:
        """Return the screen, uint8 [height, width, 3]."""
        return self._pixels[:, :, 2::-1].copy()

    # Mouse and keyboard.

    def move(self, x: int, y: int) -> None:
        """Put the pointer at ``x``, ``y``."""
        with self._boundary():
            self._fake(X.MotionNotify, x=x, y=y)
            self._display.sync()

    def click(self, x: int, y: int, *, button: str = "left", times: int = 1) -> None:
        """Click at ``x``, ``y``.

        Args:
            x: In pixels.
            y: In pixels.
            button: ``"left"``, ``"middle"`` or ``"right"``.
            times: 2 for a double click.
        """
        with self._boundary():
            self._fake(X.MotionNotify, x=x, y=y)
            self._display.sync()
            self._hold()
            for _ in range(times):
                self._fake(X.ButtonPress, _BUTTONS[button])
                self._display.sync()
                if times == 1:
                    self._hold()
                else:  # what comes too late is no second click
                    time.sleep(_HOLD_S)
                self._fake(X.ButtonRelease, _BUTTONS[button])
                self._display.sync()

    def drag(self, start: tuple[int, int], end: tuple[int, int], *, steps: int = 12) -> None:
        """Press at ``start``, move to ``end`` and release."""
        with self._boundary():
            self._fake(X.MotionNotify, x=start[0], y=start[1])
            self._fake(X.ButtonPress, 1)
            self._display.sync()
            for n in range(1, steps + 1):
                x = start[0] + (end[0] - start[0]) * n // steps
                y = start[1] + (end[1] - start[1]) * n // steps
                self._fake(X.MotionNotify, x=x, y=y)
                self._display.sync()
                time.sleep(_SETTLE_S)  # a drag begins and is followed by timers of the toolkits
            self._fake(X.ButtonRelease, 1)
            self._display.sync()

    def scroll(self, x: int, y: int, *, up: bool, notches: int) -> None:
        """Turn the wheel over ``x``, ``y`` by so many ``notches``, ``up`` or down."""
        with self._boundary():
            self._fake(X.MotionNotify, x=x, y=y)
            for _ in range(notches):
                self._fake(X.ButtonPress, 4 if up else 5)
                self._fake(X.ButtonRelease, 4 if up else 5)
            self._display.sync()

    def press(self, keysyms: Sequence[int]) -> None:
        """Press the keys in order, and release them in reverse order."""
        self._press([keysyms])

    def type(self, text: str) -> None:
        """Type ``text``, key by key. Every character must have a keysym."""
        self._press([_keysym_of_char(char)] for char in text)

    def _press(self, chords: Iterable[Sequence[int]]) -> None:
        with self._boundary():
            for keysyms in chords:
                codes = [self._keycode(keysym) for keysym in keysyms]
                held = [code for code, needs_shift in codes]
                if any(needs_shift for _, needs_shift in codes) and self._shift not in held:
                    held.insert(0, self._shift)
                for code in held:
                    self._fake(X.KeyPress, code)
                for code in reversed(held):
                    self._fake(X.KeyRelease, code)
            self._display.sync()

    # Windows.

    def is_managed(self) -> bool:
        """Say whether a window manager is there."""
        with self._boundary():
            return len(self._property(self._root, "_NET_SUPPORTING_WM_CHECK")) > 0

    def windows(self) -> list[Window]:
        """Return the windows of applications, the topmost last."""
        with self._boundary():
            active = self._property(self._root, "_NET_ACTIVE_WINDOW")
            ids = self._property(self._root, "_NET_CLIENT_LIST_STACKING")
            found = [self._window(int(one), list(active)[:1]) for one in ids]
            return [one for one in found if one is not None]

    def ping(self, window: int, timeout_s: float) -> bool:
        """Ask the owner of ``window`` whether it has handled all input so far; wait for it.

        The question travels behind the input, so the answer comes after it was handled.
        """
        with self._boundary():
            self._pings += 1
            target = self._display.create_resource_object("window", window)
            try:
                protocols = self._property(target, "WM_PROTOCOLS")
            except error.XError:  # it went meanwhile
                return True
            if self._atoms["_NET_WM_PING"] not in protocols:
                return True
            data = (32, [self._atoms["_NET_WM_PING"], self._pings, window, 0, 0])
            message = event.ClientMessage(
                window=target, client_type=self._atoms["WM_PROTOCOLS"], data=data
            )
            target.send_event(message, onerror=_ignore)
            self._display.flush()
            return any(
                one.type == X.ClientMessage and list(one.data[1])[1] == self._pings
                for one in self._events(timeout_s)
            )

    def activate(self, window: int) -> None:
        """Have the window manager raise ``window`` and give it the focus.

        Waits until it has, but no longer than two seconds: a window that is just closing never
        gets it, and the next look sees so.
        """
        with self._boundary():
            target = self._display.create_resource_object("window", window)
            kind, from_pager = self._atoms["_NET_ACTIVE_WINDOW"], 2
            data = (32, [from_pager, X.CurrentTime, 0, 0, 0])
            message = event.ClientMessage(window=target, client_type=kind, data=data)
            mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
            self._root.send_event(message, event_mask=mask, onerror=_ignore)
            self._display.sync()
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                if list(self._property(self._root, "_NET_ACTIVE_WINDOW"))[:1] == [window]:
                    return
                time.sleep(0.005)

    def place(self, window: int, x: int, y: int, width: int, height: int) -> None:
        """Move and size ``window``, frame not counted."""
        with self._boundary():
            target = self._display.create_resource_object("window", window)
            target.configure(x=x, y=y, width=width, height=height, onerror=_ignore)
            self._display.sync()

    # Clipboard.

    def clipboard(self, timeout_s: float) -> str | None:
        """Return the text on the clipboard; None when there is none.

        Raises:
            TimeoutError: Its owner is silent.
        """
        with self._boundary():
            target, utf8 = self._atoms["_TURNGYM_CLIP"], self._atoms["UTF8_STRING"]
            self._own.delete_property(target)
            self._own.convert_selection(self._atoms["CLIPBOARD"], utf8, target, X.CurrentTime)
            self._display.flush()
            for one in self._events(timeout_s):
                if one.type == X.SelectionNotify:
                    if one.property == X.NONE:
                        return None
                    found = self._own.get_full_property(target, X.AnyPropertyType)
                    return None if found is None else bytes(found.value).decode(errors="replace")
        raise TimeoutError

    # How.

    def _fake(self, kind: int, detail: int = 0, *, x: int = 0, y: int = 0) -> None:
        self._display.xtest_fake_input(kind, detail, x=x, y=y)

    def _keycode(self, keysym: int) -> tuple[int, bool]:
        """Return the key of ``keysym``, and whether Shift belongs to it."""
        known = self._keymap.get(keysym)
        if known is None:
            known = self._lend_key(keysym)
        return known

    def _lend_key(self, keysym: int) -> tuple[int, bool]:
        """Put ``keysym`` on a spare key, the one lent longest ago."""
        self._display.sync()
        if self._lent:
            time.sleep(_SETTLE_S)  # who still reads the old meaning must have done so
        code = self._spare[self._lent % len(self._spare)]
        self._lent += 1
        for old in [k for k, (c, _) in self._keymap.items() if c == code]:
            del self._keymap[old]
        # Programs read the new meaning when they handle the event that the server sends them now.
        self._display.change_keyboard_mapping(code, [[keysym] * 2])
        self._display.sync()
        self._keymap[keysym] = code, False
        return code, False

    def _read_keymap(self) -> None:
        low, high = self._display.display.info.min_keycode, self._display.display.info.max_keycode
        table = self._display.get_keyboard_mapping(low, high - low + 1)
        self._keymap: dict[int, tuple[int, bool]] = {}
        self._spare: list[int] = []
        self._lent = 0
        for code, keysyms in enumerate(table, start=low):
            if not any(keysyms):
                self._spare.append(code)
            for level, keysym in enumerate(list(keysyms)[:2]):
                if keysym:
                    self._keymap.setdefault(int(keysym), (code, level == 1))
        self._spare = self._spare[-_SPARE_KEYS:]
        self._shift = self._keymap[XK.XK_Shift_L][0]

    def _window(self, id: int, active: list[int]) -> Window | None:
        window = self._display.create_resource_object("window", id)
        try:
            size = window.get_geometry()
            place = window.translate_coords(self._root, 0, 0)
            title = bytes(self._property(window, "_NET_WM_NAME")).decode(errors="replace")
            pid = self._property(window, "_NET_WM_PID")
        except error.XError:  # it went while we looked
            return None
        return Window(
            id=id, title=title, pid=int(pid[0]) if len(pid) else 0, x=-place.x, y=-place.y,
            width=size.width, height=size.height, is_active=id in active,
        )  # fmt: skip

    def _property(self, window: Any, name: str) -> Any:
        found = window.get_full_property(self._atoms[name], X.AnyPropertyType)
        return () if found is None else found.value

    def _events(self, timeout_s: float) -> Iterator[Any]:
        import select

        until = time.monotonic() + timeout_s
        while True:
            while self._display.pending_events():
                yield self._display.next_event()
            left = until - time.monotonic()
            if left <= 0:
                return
            select.select([self._display], [], [], left)

    @contextmanager
    def _boundary(self) -> Iterator[None]:
        try:
            yield
        except (error.ConnectionClosedError, error.DisplayError, OSError) as problem:
            raise DisplayGone(f"desktop: the X server is gone ({problem})") from problem


_ATOMS = (
    "CLIPBOARD", "UTF8_STRING", "WM_PROTOCOLS", "_NET_ACTIVE_WINDOW", "_NET_CLIENT_LIST_STACKING",
    "_NET_WM_NAME", "_NET_WM_PID", "_NET_SUPPORTING_WM_CHECK", "_NET_WM_PING", "_TURNGYM_CLIP",
)  # fmt: skip
_XWD_HEADER = struct.Struct(">25I")


def _connect(socket: Path) -> display.Display:
    """Connect to the X server behind ``socket``; the library itself knows display numbers only."""
    path = str(socket)

    def get_socket(*_: object) -> Any:
        return unix_connect._get_unix_socket(path)

    with (
        _CONNECTING
    ):  # the library's connect is a module's global: one thread at a time replaces it
        usual = connection.connect
        connection.connect = SimpleNamespace(
            get_display=usual.get_display, get_socket=get_socket, get_auth=lambda *_: (b"", b"")
        )
        try:
            return display.Display("unix/:0")
        finally:
            connection.connect = usual


def _map_pixels(path: Path, width: int, height: int) -> Image:
    """Return the X server's own picture memory, uint8 [height, width, 4] as blue, green, red, 0."""
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _XWD_HEADER.unpack_from(whole)
    size, row, colours = header[0], header[12], header[19]
    start = size + 12 * colours
    flat = np.frombuffer(whole, dtype=np.uint8, count=row * height, offset=start)
    return flat.reshape(height, row // 4, 4)[:, :width]


def _ignore(*_: object) -> int:
    """Take an X error that only says that a window is gone."""
    return 1
