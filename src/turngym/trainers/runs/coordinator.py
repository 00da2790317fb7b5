"""One of several coordinators of a run: a process with an event loop, a scheduler and a ledger.

It plays the groups whose number is its own modulo the number of coordinators, on the servers that
the main process tends, and ends when that one closes its channel or is gone.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngym import registry
from turngym.agents.build import with_parts
from turngym.agents.chat.agent import EngineModel
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.protocol import Sampling, vision_of
from turngym.agents.engine.vllm.sampling import FleetView, FollowedServers, ServerSampler
from turngym.agents.rendering import Renderer
from turngym.coroutines import SIGNALS, unforked
from turngym.environments.gym.process import end_with_parent
from turngym.errors import ConfigError, TrainingError, TurnGymError
from turngym.faults import describe
from turngym.records import Manifest
from turngym.rollouts.scheduler.groups import ReadyGroup, StoredGroup, fetch, store
from turngym.rollouts.scheduler.ledger import PART_FOLDER, Ledger
from turngym.trainers.runs.episode_runner import EpisodeRunner
from turngym.trainers.runs.group_source import GroupSource, Taken, open_ledger, open_source
from turngym.trainers.runs.policies import against
from turngym.trainers.selection.policy import build_selection
from turngym.trainers.settings.train import TrainConfig
from turngym.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 1 << 24
_SIZE_BYTES = 8
_FREED_S, _LOOK_S = 60.0, 0.2
CLOSE_S = 40.0
"""For a coordinator to end in order; its episodes and environments have ten seconds each."""


# What the main process says, besides a ``FleetView``.


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Answer with a ``PackedTaken``: the groups of the next update."""

    serial: int
    """Of the order; its answer repeats it, so that a late one is never taken for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Weights are being published: answer with ``Held`` as soon as they may be loaded."""

    serial: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """They are: go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """The weights of ``version`` are in a checkpoint."""

    version: int


# What a coordinator says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Its ledger is at the version that it was started with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Weights may be loaded."""

    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    """A request to a server failed."""

    number: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It cannot go on."""

    error: TurnGymError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTaken:
    """A ``Taken`` as it is sent: its turns as the bytes that the ledger has."""

    serial: int
    rest: Taken
    groups: tuple[StoredGroup, ...]
    extra: tuple[StoredGroup, ...]
    played: tuple[StoredGroup, ...]

    @classmethod
    def of(cls, taken: Taken, *, serial: int) -> PackedTaken:
        """Return ``taken`` packed, as the answer to order ``serial``."""
        return cls(
            serial=serial,
            rest=replace(taken, groups=(), extra=(), played=()),
            groups=_packed(taken.groups),
            extra=_packed(taken.extra),
            played=_packed(taken.played),
        )

    def unpack(self) -> Taken:
        """Return what was packed; what is in it twice is one object again."""
        groups, extra = _unpacked(self.groups, {}), _unpacked(self.extra, {})
        known = {(g.index, m.number, m.retry): m.trajectory for g in groups for m in g.members}
        played = _unpacked(self.played, known)
        return replace(self.rest, groups=groups, extra=extra, played=played)


def _packed(groups: tuple[ReadyGroup, ...]) -> tuple[StoredGroup, ...]:
    found = tuple(store(group, closed=0) for group in groups)
    for group in found:
        group.pack()
    return found


def _unpacked(
    groups: tuple[StoredGroup, ...], known: dict[tuple[int, int, int], Trajectory]
) -> tuple[ReadyGroup, ...]:
    for group in groups:
        for member in group.members:
            member.live = known.get((group.index, member.number, member.retry))
    return tuple(fetch(group, None) for group in groups)


class Channel:
    """One end of a connection of two event loops: whole messages, in order; sending never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, end: socket.socket) -> Channel:
        """Return the channel of one end of a pair of sockets."""
        return cls(*await asyncio.open_connection(sock=end, limit=_BUFFER_BYTES))

    def send(self, message: object) -> None:
        """Send ``message``; one to a process that is gone is lost."""
        content = pickle.dumps(message)
        self._writer.write(len(content).to_bytes(_SIZE_BYTES, "big") + content)

    async def receive(self) -> Any:  # one of the messages above
        """Return the next message.

        Raises:
            EOFError: The other side closed the channel.
            OSError: It is gone.
        """
        size = int.from_bytes(await self._reader.readexactly(_SIZE_BYTES), "big")
        return pickle.loads(await self._reader.readexactly(size))

    async def flush(self) -> None:
        """Wait until everything is sent, or can never be, and send no more."""
        with suppress(OSError):
            self._writer.write_eof()
            await self._writer.drain()

    async def close(self) -> None:
        """Let go of the connection. Safe to call twice."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a coordinator is started with."""

    config: TrainConfig
    """Of the run."""
    folder: Path
    """Of the run."""
    number: int
    version: int
    """Of the weights now."""
    counted: Sequence[int]
    """Groups of the run that wait for an update, and are in its metrics."""
    kept: int | None
    """See ``Ledger.kept``."""
    weights: str
    """What labels of the run's weights begin with."""
    tokenizer: PreTrainedTokenizerBase
    end_ids: tuple[int, ...]
    """Tokens that end an action."""


def main(end: socket.socket, sources: list[str], setup: bytes) -> None:
    """Be a coordinator until the other side ends it or is gone; of a process of its own.

    Args:
        end: Of the channel.
        sources: Of ``registry.sources`` in the main process.
        setup: A pickled ``Setup``.
    """
    for number in (
        *SIGNALS,
        signal.SIGHUP,
    ):  # the main process decides; and what is started here gets them as ever
        signal.signal(number, unforked(lambda number, frame: None))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=end_with_parent, args=(CLOSE_S,), daemon=True).start()
    asyncio.run(_coordinate(end, sources, setup))


async def _coordinate(end: socket.socket, sources: list[str], packed: bytes) -> None:
    channel = await Channel.of(end)
    try:
        with registry.loaded(sources):
            setup: Setup = pickle.loads(packed)
            runner = EpisodeRunner(setup.config, setup.folder)
        try:
            await Coordinator(setup, runner, channel).run()
        finally:
            runner.close()
    except TurnGymError as error:
        channel.send(Failed(error=error))
    except Exception as error:
        logger.exception("a coordinator")
        channel.send(Failed(error=TrainingError(f"coordinator: {describe(error)}")))
    finally:
        await channel.flush()
        await channel.close()


class Coordinator:
    """Plays its groups of a run, as the main process says.

    Args:
        setup: What it was started with.
        runner: Knows the environments.
        channel: To the main process.
    """

    def __init__(self, setup: Setup, runner: EpisodeRunner, channel: Channel) -> None:
        config, engine = setup.config, setup.config.engine
        assert isinstance(engine, VllmEngineConfig)
        count, share = config.rollout.coordinators, config.rollout.share(setup.number)
        self._setup = setup
        self._runner = runner
        self._channel = channel
        self._orders: asyncio.Queue[Any] = asyncio.Queue()  # messages of several types
        self._servers = FollowedServers(
            engine.model_copy(update={"max_requests": max(1, engine.max_requests // count)}),
            lambda number, error: channel.send(Suspected(number=number, error=error)),
        )
        self._engine = ServerSampler(
            self._servers,
            setup.weights,
            end_ids=setup.end_ids,
            context=config.model.context,
            max_sessions=share.concurrency * (1 + config.agent.asks_the_model) * runner.selves,
            routing=engine.routing,
            vision=vision_of(setup.tokenizer),
        )

    async def run(self) -> None:
        """Play until the channel is closed."""
        task = asyncio.current_task()
        assert task is not None
        listening = asyncio.create_task(self._listen(task))
        try:
            await self._play()
        except asyncio.CancelledError:
            if not listening.done():  # somebody else cancelled it
                raise
        finally:
            listening.cancel()
            await self._engine.close()
            await self._servers.close()

    async def _listen(self, playing: asyncio.Task[Any]) -> None:
        """Sort messages until the channel is closed, and end ``playing`` then."""
        try:
            while True:
                message = await self._channel.receive()
                if isinstance(message, FleetView):  # at once, whatever else is under way
                    self._servers.follow(message)
                else:
                    self._orders.put_nowait(message)
        except asyncio.CancelledError:  # by ``run``
            return
        except (EOFError, OSError):
            playing.cancel()

    async def _play(self) -> None:
        setup, config = self._setup, self._setup.config
        rollout = config.rollout
        sampling = Sampling(temperature=rollout.temperature, max_new_tokens=rollout.max_new_tokens)
        renderer = Renderer(setup.tokenizer, tool_calls=config.agent.tool_calls)
        model = EngineModel(self._engine, renderer, sampling=sampling)
        selection = build_selection(config, self._runner.pool)
        place, kept = (setup.folder, setup.number), config.run.keep_checkpoints
        async with await open_part(*place, setup.version, checkpoints=kept) as ledger:
            ledger.kept = setup.kept
            ledger.mark_share(f"{setup.number}/{rollout.coordinators}")
            await ledger.flush()  # it is read next
            async with open_source(
                config,
                self._runner,
                selection,
                against(with_parts(model, config.agent), rollout.opponent),
                ledger=ledger,
                version=setup.version,
                counted=setup.counted,
                number=setup.number,
            ) as source:
                self._channel.send(Resumed())
                while True:
                    await obey(await self._orders.get(), source, self._channel, self._orders.get)


async def open_part(
    run: Path, number: int, version: int, *, checkpoints: int | None = None
) -> Ledger:
    """Return the ledger of coordinator ``number``, when a process that was killed lets go of it.

    Args:
        run: Folder of the run.
        number: Of the coordinator.
        version: Updates done.
        checkpoints: As for ``Ledger``.

    Raises:
        ConfigError: Another process keeps it open.
        RecordError: It is damaged, or empty although there were updates.
    """
    folder = run / f"{PART_FOLDER}{number}"
    folder.mkdir(exist_ok=True)
    until = asyncio.get_running_loop().time() + _FREED_S
    while True:
        try:
            return open_ledger(folder, Manifest(folder), version, checkpoints=checkpoints)
        except ConfigError:
            if asyncio.get_running_loop().time() > until:
                raise
            await asyncio.sleep(_LOOK_S)


async def obey(
    order: object, source: GroupSource, channel: Channel, following: Callable[[], Awaitable[object]]
) -> None:
    """Do what the main process says.

    Args:
        order: One of its messages.
        source: Of the coordinator.
        channel: To the main process.
        following: Waits for the next order.
    """
    match order:
        case Take():
            channel.send(PackedTaken.of(await source.take(), serial=order.serial))
        case Publish():
            async with source.scheduler.publishing(order.version):
                channel.send(Held(serial=order.serial))
                answer = await following()
                assert isinstance(answer, Published)
        case Checkpointed():
            source.scheduler.mark_checkpointed(order.version)
