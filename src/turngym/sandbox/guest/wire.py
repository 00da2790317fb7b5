"""Frames between host and guest: a 4-byte length, then fields with a 4-byte length each.

The host reads what a hostile program may have written, so nothing here can do more than raise
``ValueError``. All integers are big-endian; numbers travel as decimal text.
"""

MAX_FRAME_BYTES = 64 << 20
"""Longest frame that either side accepts."""


def dump(fields: "list[bytes]") -> bytes:
    """Return ``fields`` as one byte string that ``load`` takes apart again."""
    return b"".join([len(field).to_bytes(4, "big") + field for field in fields])


def load(body: bytes) -> "list[bytes]":
    """Return the fields of ``body``.

    Raises:
        ValueError: The lengths do not add up.
    """
    fields, at, end = [], 0, len(body)
    while at < end:
        start = at + 4
        at = start + int.from_bytes(body[at:start], "big")
        if start > end or at > end:
            raise ValueError("frame: a field is longer than the frame")
        fields.append(body[start:at])
    return fields


def frame(fields: "list[bytes]") -> bytes:
    """Return ``fields`` with the length of the whole in front, as it goes over the wire."""
    body = dump(fields)
    return len(body).to_bytes(4, "big") + body


def number(value: float) -> bytes:
    """Return an integer as decimal text."""
    return b"%d" % value
