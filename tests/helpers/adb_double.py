"""A double of an adb server with one phone attached, for tests. It is no Android.

It speaks adb's real host protocol over TCP (length-prefixed requests, OKAY and FAIL, transports,
``exec:`` and ``sync:`` services), and answers the few commands that ``AndroidDevice`` sends the way
a phone with one settings program does: taps change settings, the dump and the picture follow.
"""

from __future__ import annotations

import io
import re
import shlex
import socketserver
import stat
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from PIL import Image, ImageDraw

SERIAL = "emulator-5554"
WIDTH, HEIGHT = 360, 640
SWITCHES = {"Airplane mode": ("global", "airplane_mode_on"), "Dark theme": ("secure", "ui_night")}
ROW = 60


@dataclass
class Phone:
    """The state that commands change and questions read."""

    settings: dict[tuple[str, str], str] = field(default_factory=dict)
    files: dict[str, bytes | None] = field(default_factory=lambda: {"/sdcard": None})
    window: str = "com.launcher/.Home"
    focused: bool = False
    name: str = ""
    dumps_fail: int = 0
    turned: bool = False
    warning: bytes = b""
    """What stands before a picture."""
    plugged: bool = True
    dies_at: str = ""
    """Start of the command during which the cable is pulled."""
    log: list[str] = field(default_factory=list)

    def run(self, line: str) -> bytes:
        """Answer one line of the device's shell, all of which ask for the status at their end."""
        line, asked, end = line.partition("; echo ")
        self.log.append(line)
        if self.dies_at and line.startswith(self.dies_at):
            self.plugged = False
            return b""
        said, status = self.line(line.partition("; ")[0])
        return said + (end.replace("$?", str(status)) + "\n").encode() if asked else said

    def line(self, line: str) -> tuple[bytes, int]:
        """Answer one command or several with && between them."""
        if line.startswith("uiautomator dump"):
            self.dumps_fail -= 1
            return b"" if self.dumps_fail >= 0 else self.dump().encode(), 0
        if line == "screencap -p":
            return self.picture(), 0
        said, status = "", 0
        for command in split(shlex.split(line.removesuffix(" 2>&1")), "&&"):
            out, status = self.one(command)
            said += out
        return said.encode(), status

    def one(self, words: list[str]) -> tuple[str, int]:
        """Answer one command: what it writes, and its exit status."""
        if (said := self.told(words)) is not None:
            return f"{said}\n", 0
        match words:
            case ["settings", "put", space, key, value]:
                self.settings[space, key] = value
            case ["monkey", "-p", package, *_]:
                return self.open(package)
            case ["am", "start", "-W", "-n", component]:
                if component.endswith(".Private"):
                    return "Exception occurred while executing 'start':\n", 255
                said, status = self.open(component.split("/")[0])
                return f"Starting: Intent {{ cmp={component} }}\n{said}", status
            case ["am", "force-stop", _]:
                self.window = "com.launcher/.Home"
            case ["input", *rest]:
                return self.input(rest), 0
            case ["mkdir", "-p", path]:
                parts = path.strip("/").split("/")
                for depth in range(1, len(parts) + 1):
                    self.files.setdefault("/" + "/".join(parts[:depth]), None)
            case ["sh", "-c", inner]:
                return self.one(shlex.split(inner.removesuffix(" 2>&1")))
            case _:
                return f"{words[0]}: not found\n", 127
        return "", 0

    def told(self, words: list[str]) -> str | None:
        """Answer a question, or None where it is none."""
        match words:
            case ["wm", "size"]:
                return f"Physical size: {WIDTH}x{HEIGHT}"
            case ["dumpsys", "window", "displays"]:
                return f"  mCurrentFocus=Window{{1f2e u0 {self.window}}}"
            case ["settings", "get", space, key]:
                return self.settings.get((space, key), "null")
            case ["getprop", "ro.product.model"]:
                return "Double"
        return None

    def open(self, package: str) -> tuple[str, int]:
        """Start a program."""
        if package != "com.settings":
            return "** No activities found to run, monkey aborted.\n", 252
        self.window, self.name, self.focused = "com.settings/com.settings.Main", "", False
        return "", 0

    def input(self, words: list[str]) -> str:
        """Take a touch or a key."""
        match words:
            case ["tap", x, y]:
                self.tap(int(x), int(y))
            case ["text", text] if self.focused:
                self.name += text.replace("%s", " ")
            case ["keyevent", "67"]:
                self.name = self.name[:-1]
            case ["keyevent", "3"]:
                self.window = "com.launcher/.Home"
            case ["keycombination", *_]:
                return "Error: Unknown command: keycombination"
        return ""

    def tap(self, x: int, y: int) -> None:
        """Change what is at a place."""
        row = y // ROW
        if "settings" not in self.window:
            return
        if row < len(SWITCHES):
            key = list(SWITCHES.values())[row]
            self.settings[key] = "0" if self.settings.get(key) == "1" else "1"
        self.focused = row == len(SWITCHES)
        if row == len(SWITCHES) + 1:
            self.settings["global", "device_name"] = self.name

    def rows(self) -> list[tuple[str, str, dict[str, str]]]:
        """Return class, words and more of each row of the screen."""
        if "settings" not in self.window:
            return [("android.widget.TextView", "Settings", {"clickable": "true"})]
        rows = [
            ("android.widget.Switch", name, {
                "clickable": "true", "checkable": "true",
                "checked": str(self.settings.get(key) == "1").lower(),
            })
            for name, key in SWITCHES.items()
        ]  # fmt: skip
        edit = {"clickable": "true", "focused": str(self.focused).lower(),
                "content-desc": "Device name", "text": self.name}  # fmt: skip
        rows.append(("android.widget.EditText", "", edit))
        rows.append(("android.widget.Button", "Save", {"clickable": "true"}))
        return rows

    def dump(self) -> str:
        """Return the screen as ``uiautomator dump`` writes it."""
        nodes = ""
        for number, (kind, words, more) in enumerate(self.rows()):
            about = {"class": kind, "package": self.window.split("/")[0], "text": words,
                     "content-desc": "", "enabled": "true", **more}  # fmt: skip
            about["bounds"] = f"[0,{number * ROW}][{self.size[0]},{number * ROW + ROW}]"
            nodes += f"<node {' '.join(f'{k}={quoteattr(v)}' for k, v in about.items())} />"
        about = f'index="0" rotation="{int(self.turned)}"'
        return f"<?xml version='1.0'?><hierarchy {about}>{nodes}</hierarchy>"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the screen as it is held."""
        return (HEIGHT, WIDTH) if self.turned else (WIDTH, HEIGHT)

    def picture(self) -> bytes:
        """Return the screen as a PNG."""
        image = Image.new("RGB", self.size, "white")
        pen = ImageDraw.Draw(image)
        for number, (_, _, more) in enumerate(self.rows()):
            fill = "green" if more.get("checked") == "true" else "grey"
            pen.rectangle(
                (0, number * ROW, self.size[0] - 1, number * ROW + ROW - 1), fill, "black"
            )
        data = io.BytesIO()
        image.save(data, "PNG")
        return self.warning + data.getvalue()


def split(words: list[str], at: str) -> list[list[str]]:
    """Cut a list of words at every ``at``."""
    found: list[list[str]] = [[]]
    for word in words:
        found.append([]) if word == at else found[-1].append(word)
    return found


class AdbDouble:
    """The server; ``with AdbDouble() as double`` listens on ``double.port``."""

    def __init__(self) -> None:
        self.phone = Phone()
        phone = self.phone

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError, struct.error):  # the client went away
                    serve(self.request, phone)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> AdbDouble:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve(sock, phone: Phone) -> None:
    """Answer the requests of one connection."""
    while head := exactly(sock, 4):
        request = exactly(sock, int(head, 16)).decode()
        service, _, rest = request.partition(":")
        if service == "host":
            sock.sendall(host(rest, phone))
        else:
            sock.sendall(b"OKAY")
            if service == "sync":
                sync(sock, phone.files)
            else:  # exec and shell end with their connection
                sock.sendall(phone.run(rest))
            return


def host(request: str, phone: Phone) -> bytes:
    """Answer what is asked of the server itself."""
    found = re.fullmatch(r"(tport:serial|transport):(.+)", request)
    if request == "version":
        return b"OKAY" + block("0029")
    if found is None:
        return b"FAIL" + block(f"unknown request {request}")
    if found[2] != SERIAL or not phone.plugged:
        return b"FAIL" + block(f"device '{found[2]}' not found")
    return b"OKAY" + (b"\x01" + bytes(7) if found[1] == "tport:serial" else b"")


def sync(sock, files: dict[str, bytes | None]) -> None:
    """Answer the file service."""
    while head := exactly(sock, 8):
        kind, size = head[:4], struct.unpack("<I", head[4:])[0]
        if kind == b"QUIT":
            return
        path = exactly(sock, size).decode()
        if kind == b"STAT":
            sock.sendall(b"STAT" + struct.pack("<III", *about(files, path)))
        elif kind == b"LIST":
            for name in sorted(files):
                if name.rpartition("/")[0] == path:
                    data = name.rpartition("/")[2].encode()
                    sock.sendall(b"DENT" + struct.pack("<IIII", *about(files, name), len(data)))
                    sock.sendall(data)
            sock.sendall(b"DONE" + bytes(16))
        elif kind == b"RECV":
            data = files[path]
            sock.sendall(b"DATA" + struct.pack("<I", len(data)) + data + b"DONE" + bytes(4))
        elif kind == b"SEND":
            files[path.rpartition(",")[0]] = receive(sock)
            sock.sendall(b"OKAY" + bytes(4))


def receive(sock) -> bytes:
    """Return the content that follows SEND."""
    content = b""
    while (head := exactly(sock, 8))[:4] == b"DATA":
        content += exactly(sock, struct.unpack("<I", head[4:])[0])
    return content


def about(files: dict[str, bytes | None], path: str) -> tuple[int, int, int]:
    """Return mode, size and time of a file; zeros when there is none."""
    if path not in files:
        return 0, 0, 0
    data = files[path]
    mode = stat.S_IFDIR | 0o755 if data is None else stat.S_IFREG | 0o644
    return mode, len(data or b""), 1_767_225_600


def exactly(sock, size: int) -> bytes:
    """Return ``size`` bytes, or fewer where the other side ended."""
    data = b""
    while len(data) < size and (part := sock.recv(size - len(data))):
        data += part
    return data


def block(text: str) -> bytes:
    """Return text with its length before it."""
    return f"{len(text):04x}{text}".encode()
