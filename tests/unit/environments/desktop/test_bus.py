"""The message bus of a desktop is greeted with patience, and nothing stays open that failed."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from turngym.environments.desktop import accessibility
from turngym.environments.desktop.accessibility import Accessibility
from turngym.environments.desktop.display import DisplayGone

pytestmark = pytest.mark.extra("jeepney")


@pytest.fixture
def bus(tmp_path: Path) -> Callable[[bytes, float], Path]:
    def answers(text: bytes, delay_s: float) -> Path:
        path = tmp_path / "run/user/bus"
        path.parent.mkdir(parents=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            caller, _ = listener.accept()
            with listener, caller, suppress(OSError):  # the caller may be gone
                for reply in (b"DATA\r\n", text):
                    caller.recv(256)
                    time.sleep(delay_s)
                    caller.sendall(reply)
                caller.recv(256)

        Thread(target=serve, daemon=True).start()
        return tmp_path

    return answers


def test_a_bus_that_gets_no_processor_for_a_while_is_waited_for(
    bus: Callable[[bytes, float], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accessibility, "_ANSWER_S", 0.05)
    with pytest.raises(DisplayGone, match=r"reset|pipe"):  # after it has let us in
        Accessibility(bus(b"OK 1234\r\n", 0.3), time.monotonic)
    gc.collect()  # an open socket is a warning, and so an error


def test_a_bus_that_refuses_is_named_and_its_socket_closed(
    bus: Callable[[bytes, float], Path],
) -> None:
    with pytest.raises(DisplayGone, match="REJECTED"):
        Accessibility(bus(b"REJECTED\r\n", 0.0), time.monotonic)
    gc.collect()


def test_a_bus_that_stays_silent_is_named_and_its_socket_closed(
    bus: Callable[[bytes, float], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accessibility, "_GREETING_S", 0.05)
    with pytest.raises(DisplayGone, match="timed out"):
        Accessibility(bus(b"OK 1234\r\n", 0.3), time.monotonic)
    gc.collect()
