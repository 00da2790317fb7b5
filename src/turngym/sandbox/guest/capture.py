"""Keep the start and the end of a stream of any length, and its true length."""


class Capture:
    """The first and last bytes of a stream, at most ``limit`` bytes in all."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        """Bytes seen, kept or not."""
        self._head_limit = (limit + 1) // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in the next piece of the stream."""
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_limit:
            self._tail = bytearray(data[len(data) - self._tail_limit :])
        elif data:
            self._tail += data
            # Cut only now and then: cutting at each small piece would copy the tail each time.
            if len(self._tail) > 2 * self._tail_limit:
                del self._tail[: len(self._tail) - self._tail_limit]

    def kept(self) -> bytes:
        """Return what was kept; shorter than ``total`` exactly when something was dropped."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._tail_limit) :])
