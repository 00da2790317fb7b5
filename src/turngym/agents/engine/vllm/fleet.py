"""All servers of a run: which of them serve, which one a request goes to, and how they come back.

One task tends each server. Whatever happened to it (it is new, there are new weights, it failed),
the task does the same: start the process where it is ours, wait for a sign of life, load the newest
weights, measure that they are there, and let requests in. So a server never gets a request before
it samples with the newest weights, and one that failed half way is simply done again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm.children import Child, RayChild
from turngym.agents.engine.vllm.replica import Facts, Publication, Replica, ReplicaError
from turngym.agents.engine.vllm.transfer import Transfer
from turngym.errors import EnginesLost, PolicyFault

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_SILENT_S = 120.0
"""For a sign of life of a server that was up a moment ago. On a machine with too much to do half a
minute passes, and another start would take longer."""
_LONGEST_WAIT_S = 40.0
_RESTARTS_WITHIN_S = 600.0
_CROWDED = 1.5
"""A session leaves the server that knows its prefix when that one has so many times the work."""
_SPARE = 8
_ROUNDING, _BOUND = 3.0, 10.0
"""What is taken for rounding: so many times the largest gap so far, and at most so many times the
largest of the settings."""
_LONGER = 4.0
"""What keeps a server of others away is said again when it has been so many times as long away."""
_NEARER = 2.0
"""Log-probs so many times nearer to those of the weights before are not those of the new ones."""


@dataclass(slots=True, eq=False)
class Member:
    """One server, and what is known of it."""

    replica: Replica
    child: Child | RayChild | None = None
    serves: Publication | None = None
    """What it samples with; None while it gets no requests."""
    in_flight: int = 0
    cause: str = ""
    """Why it does not serve: what failed last."""
    first_cause: str = ""
    """What failed first since it served; the rest may follow from it."""
    ever_served: bool = False
    is_left_out: bool = False
    failures: deque[float] = field(default_factory=deque)
    last_seen: float = field(default_factory=time.monotonic)
    said_s: float = 0.0
    """How long it had been away when that was logged last."""
    transfer: Transfer | None = None
    """What carries weights in flight; None before the first, after a failure, and for files."""

    @property
    def why(self) -> str:
        """What failed since it served, first and last."""
        later = f"; later {self.cause}" if self.cause != self.first_cause else ""
        return self.first_cause + later

    def failed_by(self, cause: str) -> None:
        """Note one more failure."""
        self.cause, self.first_cause = cause, self.first_cause or cause

    def disconnect(self) -> None:
        """Let go of what carries weights; the next ones are sent over a new connection."""
        if self.transfer is not None:
            self.transfer.close()
            self.transfer = None


def favoured(serving: Sequence[Member], liked: Member | None) -> Member:
    """Return the server for a request, unless it is crowded the one that is ``liked``.

    Args:
        serving: One or more.
        liked: The one that knows the session's prefix.
    """
    least = min(serving, key=lambda one: one.in_flight)
    most = _SPARE + _CROWDED * least.in_flight
    return liked if liked is not None and liked in serving and liked.in_flight <= most else least


class Fleet:
    """Keeps servers at the newest weights, and hands out the one for a request.

    Args:
        members: The servers.
        config: Limits.
        write_token: Returns name and content of a file that it wrote where weights go.
        context: Longest sequence in tokens.
    """

    def __init__(
        self,
        members: Sequence[Member],
        config: VllmEngineConfig,
        write_token: Callable[[], tuple[str, str]],
        *,
        context: int = 0,
    ) -> None:
        self.members = members
        self._context = context
        self._config = config
        self._write_token = write_token
        self._newest: Publication | None = None
        self.on_change: Callable[[], None] | None = None
        """Called whenever one serves or no longer does."""
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_held = False
        self._rounding: float | None = None
        """Largest gap of a server that had loaded its weights."""
        self.counts = {"engine/restarts": 0.0, "engine/ejected": 0.0, "engine/reloads": 0.0}

    async def publish(self, new: Publication) -> None:
        """Have all servers sample with ``new``; return when the first one does.

        The others get no new requests until they do, too.

        Raises:
            EnginesLost: None is left that could.
        """
        self._newest = new
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._tend(one)) for one in self.members]
            for task in self._tasks:
                task.add_done_callback(lambda _: self._wake())
        self._wake()
        await self._until_serving()

    async def pick(self, liked: Member | None) -> Member:
        """Return the server for a request, as soon as one serves the newest weights.

        Args:
            liked: The one that knows the session's prefix.

        Raises:
            EnginesLost: None is left.
        """
        serving = await self._until_serving()
        return favoured(serving, liked)

    def suspect(self, member: Member, error: Exception) -> None:
        """Send ``member`` nothing until it was looked at: a request failed with ``error``."""
        if member.serves is not None:
            logger.warning("engine %s: %s", member.replica.url, error)
            member.serves = None
            member.failed_by(str(error))
            self._wake()

    async def hold(self, is_held: bool) -> None:
        """Stop all sampling, or let it go on."""
        self._is_held = is_held
        path = "/pause?mode=keep&clear_cache=false" if is_held else "/resume"
        serving = [one for one in self.members if one.serves is not None]
        results = await asyncio.gather(
            *(one.replica.post(path) for one in serving), return_exceptions=True
        )
        for one, result in zip(serving, results, strict=True):
            if isinstance(result, Exception):
                self.suspect(one, result)
        self._wake()

    async def close(self) -> None:
        """Let go of all servers; end those that are ours."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self.members:
            one.disconnect()
            await one.replica.close()
        await asyncio.gather(*(one.child.end() for one in self.members if one.child is not None))

    async def _until_serving(self) -> list[Member]:
        while True:
            if serving := self.serving():
                return serving
            if self.lost:
                raise EnginesLost(self.lost)
            for task in self._tasks:
                if task.done():
                    task.result()  # a bug of ours: it ends for no other reason
            await self._changed.wait()

    def serving(self) -> list[Member]:
        """Return the servers that get requests now."""
        if self._is_held or self._newest is None:
            return []
        return [one for one in self.members if one.serves is self._newest]

    @property
    def lost(self) -> str:
        """Why none will ever serve again; empty while one may."""
        is_lost = all(one.is_left_out for one in self.members)
        return f"no engine is left: {self.table()}" if is_lost else ""

    def table(self) -> str:
        """Return where each server is, and why it does not serve."""
        return "; ".join(f"{one.replica.url}: {one.why or 'serves'}" for one in self.members)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self.on_change is not None:
            self.on_change()

    # What tends one server.

    async def _tend(self, member: Member) -> None:
        while member.child is None or not member.is_left_out:  # others may start theirs again
            try:
                if member.serves is not self._newest:
                    async with asyncio.timeout(self._config.start_timeout_s):
                        await self._bring_up(member)
                await self._until_needed(member)
            except (ReplicaError, PolicyFault, TimeoutError, OSError) as error:
                await self._failed(member, str(error) or "did not come up in time")

    async def _bring_up(self, member: Member) -> None:
        """Start, load, measure, and let requests in.

        One that serves older weights is not asked who it is: each request of an update waits for a
        processor on both sides, which on a busy machine is what an update takes.
        """
        is_known, patience_s = member.serves is not None, _SILENT_S
        if member.child is not None and member.child.has_died:  # a request that failed came first
            raise ReplicaError(await member.child.died())
        if member.child is not None and not member.child.is_running:
            if member.failures:
                self.counts["engine/restarts"] += 1
            member.disconnect()
            await member.child.start()
            text = "engine %s: starts, which can take minutes; its output goes to %s"
            logger.warning(text, member.replica.url, member.child.log)
            is_known, patience_s = False, self._config.start_timeout_s
        if not is_known:
            found = await self._until_alive(member, patience_s)
            if found.context < self._context:  # one of others may come back as another
                raise ReplicaError(f"has a context of {found.context}, wanted {self._context}")
        new = self._newest
        assert new is not None
        for last_try in (False, True):
            await self._load(member, new, is_known=is_known and not last_try)
            if not (far := self._measured(*await member.replica.gaps(new))):
                break
            what = f"after update {new.label} its log-probs are {far}: not, or not all, loaded"
            if last_try:
                raise ReplicaError(what)
            self.counts["engine/reloads"] += 1
            logger.warning("engine %s: %s; loading again", member.replica.url, what)
        member.serves, member.last_seen = new, time.monotonic()
        member.cause = member.first_cause = ""
        member.ever_served, member.is_left_out = True, False
        self._wake()

    def _measured(self, gap: float, before: float) -> str:
        """Return what is wrong with a server whose log-probs are so far from those of its weights.

        ``before`` is how far they are from those of the weights before.
        How much is rounding depends on model, device and precision: on an H200 SmolLM2-135M is 0.06
        to 0.09 away in bfloat16, and 0.004 in float32, where attention multiplies in TF32. So the
        first publication says how much that is, within a bound, and those after it how much it has
        become: the surer a policy is, the further are tokens of no sense.
        """
        largest = self._config.largest_gap
        rounding = gap if self._rounding is None else self._rounding
        if self._config.probe is None and gap > largest:
            if _NEARER * before < gap:
                return f"{gap:.3g} from those of the weights, and {before:.3g} from those before"
            largest = max(largest, min(_ROUNDING * rounding, _BOUND * largest))
        if gap > largest:
            return f"{gap:.3g} from those of the weights, more than {largest:.3g}"
        self._rounding = max(rounding, gap) if gap > self._config.largest_gap else rounding
        return ""

    async def _load(self, member: Member, new: Publication, *, is_known: bool) -> None:
        """Have a server take ``new``, and before that see where it comes from, unless it has."""
        send = None
        if new.weights is None and not is_known:
            name, text = await asyncio.to_thread(self._write_token)
            seen = {"init_info": {"name": name, "text": text}}
            await member.replica.post("/init_weight_transfer_engine", seen)
        if new.weights is not None:
            if member.transfer is None:
                member.transfer = await Transfer.open(member.replica, self._config.weights)
            send = member.transfer.send
        await member.replica.load(new, running=self._config.running, send=send)

    async def _until_alive(self, member: Member, patience_s: float) -> Facts:
        """Return what it is at a sign of life; its process may end, or be silent for too long."""
        until = time.monotonic() + patience_s
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    return await member.replica.describe()
            except (ReplicaError, TimeoutError):
                if member.child is None or time.monotonic() > until:
                    raise
                if not member.child.is_running:
                    raise ReplicaError(await member.child.died()) from None
                await asyncio.sleep(_LOOK_S)

    async def _until_needed(self, member: Member) -> None:
        """Wait until there are newer weights, or the server failed or ended."""
        while member.serves is self._newest:
            waits: list[asyncio.Task[object]] = [asyncio.create_task(self._changed.wait())]
            if member.child is not None:
                waits.append(asyncio.create_task(member.child.died()))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if len(waits) == 2 and waits[1].done():
                    raise ReplicaError(str(waits[1].result()))
            finally:
                for wait in waits:
                    wait.cancel()

    async def _failed(self, member: Member, cause: str) -> None:
        """Take a server out, and wait before it is tried again; in the end leave it out."""
        now = time.monotonic()
        if member.serves is not None:
            member.last_seen, member.serves = now, None
        self.counts["engine/ejected"] += 1
        member.disconnect()
        if member.child is not None:
            cause = await member.child.give_up(cause)
        away_s, is_new = now - member.last_seen, cause != member.cause
        if member.child is not None or is_new or away_s >= _LONGER * member.said_s:
            logger.warning("engine %s: %s", member.replica.url, cause)
            member.said_s = away_s
        member.failed_by(cause)
        member.failures.append(now)
        while now - member.failures[0] > _RESTARTS_WITHIN_S:
            member.failures.popleft()
        if member.child is None:
            member.is_left_out = now - member.last_seen > self._config.patience_s
        else:
            most = self._config.restarts if member.ever_served else 0
            member.is_left_out = len(member.failures) > most
            if member.is_left_out and most:
                logger.warning(
                    "engine %s: is not started again (engine.restarts)", member.replica.url
                )
        self._wake()
        if member.child is None or not member.is_left_out:
            await asyncio.sleep(min(_LONGEST_WAIT_S, _LOOK_S * 2.0 ** len(member.failures)))
