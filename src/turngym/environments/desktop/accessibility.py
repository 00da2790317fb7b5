"""What applications say about themselves: the AT-SPI tree, read over their own message bus.

Questions are sent in batches, one batch a level of the tree, so that an application is woken a
few times instead of once per element.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jeepney import DBusAddress, HeaderFields, MessageType, new_method_call
from jeepney.io.blocking import DBusConnection

from turngym.environments.desktop.display import DisplayGone
from turngym.environments.desktop.observation import Element

_ROOT = "/org/a11y/atspi/accessible/root"
_IFACE = "org.a11y.atspi"
_MAX_NODES = 1_500
_MAX_DEPTH = 40
_MAX_TEXT = 2_000
_MAX_NAME = 120
_ANSWER_S = 2.0
_AGAIN_S = 0.2
"""The same for an application that has just let us wait."""
_GREETING_S = 60.0
"""By the wall clock: a bus that is gone is known at once, one that got no processor is not gone."""

ROLES = {
    7: "check box", 8: "menu item", 9: "dialog", 10: "column header", 11: "combo box",
    16: "dialog", 19: "dialog", 22: "dialog", 23: "window", 26: "icon",
    27: "image", 29: "label", 31: "list", 32: "list item", 33: "menu", 34: "menu bar",
    35: "menu item", 37: "tab", 38: "tab list", 39: "panel", 40: "password field", 42: "progress",
    43: "button", 44: "radio button", 45: "menu item", 48: "scroll bar", 51: "slider",
    52: "spin button", 54: "status bar", 55: "table", 56: "cell", 57: "column header",
    60: "text", 61: "text", 62: "toggle button", 65: "tree", 66: "tree table",
    69: "window", 79: "text", 91: "tree item", 98: "icon", 116: "label", 2: "dialog",
}  # fmt: skip
"""Numbers of AT-SPI roles that say something, and their words."""
_SILENT = {
    "image", "list", "menu bar", "panel", "scroll bar", "status bar", "tab list", "table", "tree",
    "tree table",
}  # fmt: skip
"""Roles that only hold others."""
_READ = {"column header", "dialog", "label", "progress", "window"}
_HINTED = {"button", "check box", "combo box", "icon", "radio button", "text", "toggle button"}
_TEXTS = {"text", "password field", "spin button"}
_HIDDEN_CHILDREN = {"combo box", "scroll bar"}

_ACTIVE, _CHECKED, _ENABLED, _EXPANDED, _FOCUSED, _SELECTED, _SENSITIVE, _SHOWING, _VISIBLE = (
    1, 4, 8, 10, 12, 23, 24, 25, 30,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Ref:
    """An accessible object: whose, and where in it."""

    bus: str
    path: str


@dataclass(slots=True)
class _Node:
    ref: _Ref
    depth: int
    order: tuple[int, ...]
    role: str = ""
    name: str = ""
    states: int = 0
    children: tuple[_Ref, ...] = ()
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    value: str = ""
    window: str = ""


class Accessibility:
    """A connection to the message bus of one desktop. Used from one thread at a time.

    Args:
        root: The desktop's file system as the host reaches it.
        clock: Tells the time by which programs are late; not fast where they get no processor.

    Raises:
        DisplayGone: The bus does not answer.
    """

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        try:
            self._bus = _connection(root / "run/user/bus")
        except (OSError, ValueError) as error:
            raise DisplayGone(f"desktop: its message bus is gone ({error})") from error
        self._names: dict[str, str] = {}
        self._silent: set[str] = set()

    def close(self) -> None:
        """Give up the connection."""
        self._bus.close()

    def elements(self) -> tuple[list[Element], list[str]]:
        """Return what is shown of all applications, and the names of those that do not answer.

        Elements come in reading order; those that can be acted on have the mark 1.

        Raises:
            DisplayGone: The registry of applications is gone.
        """
        registry = _Ref(f"{_IFACE}.Registry", _ROOT)
        answer = self._ask([_call(registry, "Accessible", "GetChildren")])[0]
        if answer is None:
            raise DisplayGone("desktop: its accessibility registry is gone")
        found: list[Element] = []
        silent: list[str] = []
        for ref in _refs(answer):
            wait = _AGAIN_S if ref.bus in self._silent else _ANSWER_S
            until = self._clock() + wait
            self._silent.add(ref.bus)  # until it has answered: a cancelled look must not wait again
            try:
                if ref.bus not in self._names:
                    name = self._ask([_get(ref, "Accessible", "Name")], until)[0]
                    self._names[ref.bus] = _text(name)
                found += self._tree(ref, until)
            except TimeoutError:
                silent.append(self._names.get(ref.bus, "A program"))
                continue
            self._silent.discard(ref.bus)
        return found, silent

    def _tree(self, ref: _Ref, until: float) -> list[Element]:
        children = self._ask([_call(ref, "Accessible", "GetChildren")], until)[0]
        level = [_Node(ref, -1, (), children=_refs(children))]
        nodes = 0
        found: list[_Node] = []
        while level and nodes < _MAX_NODES and len(level[0].order) < _MAX_DEPTH:
            below = [
                _Node(child, n.depth + _speaks(n), (*n.order, i), window=n.window)
                for n in level
                for i, child in enumerate(n.children)
            ]
            level = self._describe(below[: _MAX_NODES - nodes], until)
            nodes += len(level)
            found += level
            # A list that is closed says that its entries are shown; they are not.
            level = [n for n in level if n.role not in _HIDDEN_CHILDREN]
        found.sort(key=lambda node: node.order)
        return [_element(node) for node in found if _speaks(node)]

    def _describe(self, nodes: list[_Node], until: float) -> list[_Node]:
        """Return those of ``nodes`` that are shown, with what they are."""
        states = self._ask([_call(n.ref, "Accessible", "GetState") for n in nodes], until)
        for node, state in zip(nodes, states, strict=True):
            node.states = 0 if state is None else state[0][0] | state[0][1] << 32
        shown = [n for n in nodes if n.states >> _SHOWING & 1 and n.states >> _VISIBLE & 1]
        questions = [
            question
            for n in shown
            for question in (
                _call(n.ref, "Accessible", "GetRole"),
                _get(n.ref, "Accessible", "Name"),
                _call(n.ref, "Accessible", "GetChildren"),
                _call(n.ref, "Component", "GetExtents", "u", (0,)),
            )
        ]
        answers = self._ask(questions, until)
        for i, node in enumerate(shown):
            role, name, children, box = answers[4 * i : 4 * i + 4]
            node.role = ROLES.get(role[0] if role else 0, "")
            node.name = _text(name)[:_MAX_NAME]
            node.children = _refs(children)
            if node.role in ("window", "dialog"):
                node.window = node.name
            node.box = tuple(box[0]) if box else (0, 0, 0, 0)
        self._read_words(shown, until)
        return shown

    def _read_words(self, nodes: list[_Node], until: float) -> None:
        """Read values, and call what has no name by the hint that it shows under the mouse."""
        bare = [n for n in nodes if not n.name and n.role in _HINTED]
        texts = [n for n in nodes if n.role in _TEXTS]
        sliders = [n for n in nodes if n.role == "slider"]
        answers = iter(
            self._ask(
                [
                    *(_get(n.ref, "Accessible", "Description") for n in bare),
                    *(_call(n.ref, "Text", "GetText", "ii", (0, _MAX_TEXT)) for n in texts),
                    *(_get(n.ref, "Value", "CurrentValue") for n in sliders),
                ],
                until,
            )
        )
        for node in bare:
            node.name = _text(next(answers))[:_MAX_NAME]
        for node in texts:
            answer = next(answers)
            node.value = answer[0] if answer else ""
        for node in sliders:
            answer = next(answers)
            node.value = f"{answer[0][1]:g}" if answer else ""

    def _ask(self, questions: Sequence[Any], until: float | None = None) -> list[Any]:
        """Send all at once; return one body each, None where the answer is an error."""
        until = self._clock() + _ANSWER_S if until is None else until
        serials = {next(self._bus.outgoing_serial): i for i, _ in enumerate(questions)}
        answers: list[Any] = [None] * len(questions)
        data = b"".join(
            question.serialise(serial=serial)
            for serial, question in zip(serials, questions, strict=True)
        )
        try:
            self._bus.sock.sendall(data)
            while serials:
                try:
                    message = self._bus.receive(timeout=_AGAIN_S)
                except TimeoutError:
                    if self._clock() >= until:
                        raise
                    continue
                # In any order, with late answers to questions of an earlier look in between.
                place = serials.pop(message.header.fields.get(HeaderFields.reply_serial, -1), None)
                if place is not None and message.header.message_type is MessageType.method_return:
                    answers[place] = message.body
        except TimeoutError:
            raise
        except OSError as error:
            raise DisplayGone(f"desktop: its message bus is gone ({error})") from error
        return answers


def _connection(path: Path) -> DBusConnection:
    """Connect without a name: the bus asks the kernel who we are, inside and not outside."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_GREETING_S)
        sock.connect(str(path))
        for line in (b"\0AUTH EXTERNAL\r\n", b"DATA\r\n"):
            sock.sendall(line)
            answer = sock.recv(256)
        if not answer.startswith(b"OK "):
            raise ValueError(f"it answered {answer[:60]!r}")
        sock.sendall(b"BEGIN\r\n")
        sock.settimeout(None)
        return DBusConnection(sock)
    except BaseException:
        sock.close()
        raise


def _address(ref: _Ref, interface: str) -> DBusAddress:
    return DBusAddress(ref.path, bus_name=ref.bus, interface=interface)


def _call(ref: _Ref, interface: str, method: str, *arguments: Any) -> Any:
    return new_method_call(_address(ref, f"{_IFACE}.{interface}"), method, *arguments)


def _get(ref: _Ref, interface: str, name: str) -> Any:
    address = _address(ref, "org.freedesktop.DBus.Properties")
    return new_method_call(address, "Get", "ss", (f"{_IFACE}.{interface}", name))


def _refs(answer: Any) -> tuple[_Ref, ...]:
    return tuple(_Ref(bus, path) for bus, path in answer[0]) if answer else ()


def _text(answer: Any) -> str:
    return str(answer[0][1]).strip() if answer else ""


def _speaks(node: _Node) -> bool:
    """Say whether the node is a line of its own."""
    x, _, width, height = node.box
    if not node.role or node.role in _SILENT or width <= 0 or height <= 0 or x < -10_000:
        return False
    needs_words = _READ - {"dialog"} | {"cell", "icon"}
    return bool(node.name or node.value) or node.role not in needs_words


def _element(node: _Node) -> Element:
    x, y, width, height = node.box
    bits = node.states
    states = [word for bit, word in _SAID if bits >> bit & 1]
    if not bits >> _SENSITIVE & 1 and node.role not in _READ:
        states.append("disabled")
    return Element(
        role=node.role, name=node.name, value=node.value, states=tuple(states),
        depth=max(node.depth, 0), window=node.window, x=x, y=y, width=width, height=height,
        mark=0 if node.role in _READ else 1,
    )  # fmt: skip


_SAID = (
    (_CHECKED, "checked"), (_EXPANDED, "expanded"), (_FOCUSED, "focused"), (_SELECTED, "selected"),
)  # fmt: skip
