"""Frames survive a round trip, and nothing a guest writes can do more than be refused."""

import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngym.errors import SandboxClosed, SandboxDied, SandboxFileError
from turngym.sandbox.backends.channel import Channel, to_int
from turngym.sandbox.guest import wire
from turngym.sandbox.guest.jobs import Capture
from turngym.sandbox.trees import is_safe_name, safe_links


@given(st.lists(st.binary()))
def test_fields_survive_a_round_trip(fields: list[bytes]) -> None:
    assert wire.load(wire.dump(fields)) == fields


@given(st.binary())
def test_any_bytes_are_fields_or_a_value_error(data: bytes) -> None:
    try:
        fields = wire.load(data)
    except ValueError:
        return
    assert wire.dump(fields) == data


@given(st.lists(st.binary()), st.integers(0, 50))
def test_a_capture_keeps_both_ends_and_the_true_length(parts: list[bytes], limit: int) -> None:
    capture, whole = Capture(limit), b"".join(parts)
    for part in parts:
        capture.feed(part)
    kept = capture.kept()
    assert capture.total == len(whole)
    assert len(kept) == min(limit, len(whole))
    head = (limit + 1) // 2
    assert kept == (
        whole if len(whole) <= limit else whole[:head] + whole[len(whole) - limit + head :]
    )


class Guest:
    """The other end of a channel, saying what a test has it say."""

    def __init__(self, *frames: bytes) -> None:
        self.data = b"".join(frames)
        self.more = asyncio.Event()
        self.is_closed = False

    async def read_exactly(self, size: int) -> bytes:
        while len(self.data) < size:
            self.more.clear()
            await self.more.wait()
            if self.is_closed:
                raise EOFError
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    async def write(self, data: bytes) -> None:
        pass

    def say(self, data: bytes) -> None:
        self.data += data
        self.more.set()

    def close(self) -> None:
        self.is_closed = True
        self.more.set()


HELLO = wire.frame([b"0", b"hello", b"pid=1"])


async def test_answers_go_to_who_asked() -> None:
    guest = Guest(HELLO)
    channel = Channel(guest, "x")
    assert await channel.open() == {"pid": "1"}
    first = asyncio.ensure_future(channel.call("a"))
    second = asyncio.ensure_future(channel.call("b"))
    await asyncio.sleep(0)
    guest.say(wire.frame([b"2", b"ok", b"two"]) + wire.frame([b"1", b"2", b"gone"]))
    assert await second == [b"two"]
    with pytest.raises(SandboxFileError, match="gone"):
        await first
    await channel.close()
    with pytest.raises(SandboxClosed):
        await channel.call("c")


@pytest.mark.parametrize(
    "frame",
    [
        (wire.MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        (3).to_bytes(4, "big") + b"abc",
        wire.frame([b"1"]),
        wire.frame([]),
    ],
)
async def test_a_guest_that_breaks_the_protocol_is_dead(frame: bytes) -> None:
    guest = Guest(HELLO)
    channel = Channel(guest, "x")
    await channel.open()
    waiting = asyncio.ensure_future(channel.call("a"))
    await asyncio.sleep(0)
    guest.say(frame)
    with pytest.raises(SandboxDied, match="protocol"):
        await waiting
    await channel.close()


async def test_answers_nobody_waits_for_are_dropped() -> None:
    guest = Guest(HELLO, wire.frame([b"77", b"ok"]), wire.frame([b"\xff", b"\xfe"]))
    channel = Channel(guest, "x")
    await channel.open()
    waiting = asyncio.ensure_future(channel.call("a"))
    await asyncio.sleep(0)
    guest.say(wire.frame([b"1", b"ok", b"fine"]))
    assert await waiting == [b"fine"]
    await channel.close()


async def test_a_guest_that_greets_otherwise_did_not_start() -> None:
    with pytest.raises(SandboxDied, match="greeting"):
        await Channel(Guest(wire.frame([b"0", b"nonsense"])), "x").open()


@pytest.mark.parametrize("field", [b"", b"-1", b"1e3", b"9" * 30, b"\xff"])
def test_what_is_no_number_is_refused(field: bytes) -> None:
    with pytest.raises(SandboxDied):
        to_int(field)


@pytest.mark.parametrize("name", [b"", b"/a", b"a/", b"a//b", b"..", b"a/../b", b".", b"a\0b"])
def test_names_that_lead_elsewhere_are_not_safe(name: bytes) -> None:
    assert not is_safe_name(name)


@pytest.mark.parametrize(
    ("name", "target", "is_safe"),
    [
        (b"l", b"a", True),
        (b"d/l", b"../a", True),
        (b"d/l", b"../../a", False),
        (b"l", b"..", False),
        (b"l", b"/a", False),
        (b"l", b"", False),
        (b"d/l", b"x/../../y", True),
        (b"d/l", b"../../d/x", False),
        (b"l", b"a\0", False),
    ],
)
def test_links_are_safe_when_they_stay_inside(name: bytes, target: bytes, is_safe: bool) -> None:
    assert (name in safe_links({name: target})) is is_safe


@pytest.mark.parametrize(
    ("links", "safe"),
    [
        ({b"x/y/top": b"../..", b"leak": b"x/y/top/../s"}, {b"x/y/top"}),
        ({b"a": b"b/..", b"b": b"c", b"c": b"d/e"}, {b"a", b"b", b"c"}),
        ({b"a": b"b/..", b"b": b"c", b"c": b"."}, {b"b", b"c"}),
        ({b"a": b"b", b"b": b"a", b"c": b"a/x"}, set()),
        ({b"a": b"a/x"}, set()),
        ({b"self": b".", b"a": b"self/self/self/f"}, {b"self", b"a"}),
        ({b"out": b"/etc", b"a": b"out/../x"}, set()),
        ({b"d/up": b"..", b"a": b"d/up/d/up/f", b"b": b"d/up/../f"}, {b"d/up", b"a"}),
        ({b"%d" % n: b"%d" % (n + 1) for n in range(30_000)}, {b"%d" % n for n in range(30_000)}),
        ({b"l": b"/".join([b"."] * 500)}, set()),
    ],
)
def test_links_are_followed_through_the_links_beside_them(
    links: dict[bytes, bytes], safe: set[bytes]
) -> None:
    assert safe_links(links) == safe


def test_a_link_ends_where_the_kernel_says(tmp_path: Path) -> None:
    """Random trees of links: what is called safe ends inside, and the rest is none of ours."""
    lottery = random.Random(4)
    for number in range(60):
        root = tmp_path / str(number)
        for folder in ("", "a", "a/b", "c"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        links: dict[bytes, bytes] = {}
        for name in ("l", "m", "a/l", "a/b/l", "a/b/m", "c/l", "c/m"):
            words = lottery.choices(["..", "..", "a", "b", "c", "l", "m", "none"], k=4)
            links[name.encode()] = "/".join(words).encode()
        safe = safe_links(links)
        for link in safe:
            (root / os.fsdecode(link)).symlink_to(os.fsdecode(links[link]))
        for link in safe:
            end = Path(os.path.realpath(root / os.fsdecode(link)))
            assert end.is_relative_to(root), (links, link)
