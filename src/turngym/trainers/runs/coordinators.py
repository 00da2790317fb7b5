"""Batches from several processes that play: each has its groups, an update takes those of all.

The learner publishes a version to all of them before the next update, and a checkpoint is marked
in every ledger. A process that dies is started again: it resumes its own ledger at the version of
now, and is asked again what it was asked since, with the same answers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import pickle
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

from turngym import registry
from turngym.agents.engine.vllm.engine import VllmEngine
from turngym.coroutines import SIGNALS
from turngym.errors import TrainingError, TurnGymError
from turngym.trainers.runs.coordinator import (
    CLOSE_S,
    Channel,
    Checkpointed,
    Failed,
    Held,
    PackedTaken,
    Publish,
    Published,
    Resumed,
    Setup,
    Suspected,
    Take,
    main,
    open_part,
)
from turngym.trainers.runs.group_source import Taken
from turngym.trainers.runs.run import Run

logger = logging.getLogger(__name__)

_MOST_DEATHS = 5
"""Of one coordinator within one update."""


class SplitBatches:
    """What a ``BatchSource`` takes from ``rollout.coordinators`` processes.

    Args:
        run: Its engine is one on servers.
    """

    def __init__(self, run: Run) -> None:
        engine = run.engine
        assert isinstance(engine, VllmEngine)  # as the settings demand
        self._children = [
            _Child(run, engine, number) for number in range(run.config.rollout.coordinators)
        ]
        self._engine = engine
        engine.watch(self._tell_of_servers)

    async def take(self) -> Sequence[Taken]:
        """Return what each process has for the next update, as soon as it is enough.

        Raises:
            TrainingError: A coordinator failed, or one has nothing left to play.
        """
        found = await asyncio.gather(*(child.take() for child in self._children))
        return await asyncio.to_thread(lambda: [one.unpack() for one in found])

    @asynccontextmanager
    async def publishing(self, version: int) -> AsyncIterator[None]:
        """Return the context in which the weights of ``version`` are put into the engine."""
        await asyncio.gather(*(child.hold(version) for child in self._children))
        yield
        for child in self._children:
            child.published(version)

    def mark_checkpointed(self, version: int) -> None:
        """Note in every ledger that the weights of ``version`` are in a checkpoint."""
        for child in self._children:
            child.mark_checkpointed(version)

    async def close(self) -> None:
        """Have all coordinators end in order, and wait for it."""
        self._engine.watch(None)
        await asyncio.gather(*(child.close() for child in self._children))

    def _tell_of_servers(self) -> None:
        view = self._engine.view()
        for child in self._children:
            child.send(view)


class _Child:
    """One coordinator, whichever process it is."""

    def __init__(self, run: Run, engine: VllmEngine, number: int) -> None:
        self._run, self._engine, self._number = run, engine, number
        self._version = run.state.step
        self._kept = run.state.step
        self._has_resumed = False
        """Whether its ledger knows of no weights that are lost."""
        self._orders: list[Take | Publish] = []
        """Since the last version; a new process gets all of them again."""
        self._serials = itertools.count(1)
        self._answers: dict[int, PackedTaken | Held] = {}
        self._deaths = 0
        self._failure: BaseException | None = None
        self._channel: Channel | None = None
        self._process: SpawnProcess | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._tend())

    async def take(self) -> PackedTaken:
        """Return its part of the next update.

        Raises:
            TrainingError: It cannot go on.
        """
        found: PackedTaken = await self._answered(Take(serial=next(self._serials)))
        return found

    async def hold(self, version: int) -> None:
        """Wait until it has weights of ``version`` loaded; errors as in ``take``."""
        await self._answered(Publish(serial=next(self._serials), version=version))

    def published(self, version: int) -> None:
        """Let it go on with the weights of ``version``."""
        self._version, self._deaths = version, 0
        self._orders.clear()
        self._answers.clear()
        self.send(Published())

    async def _answered(self, order: Take | Publish) -> Any:  # the message that answers it
        """Give an order and return its answer, from another process if this one dies."""
        self._orders.append(order)
        self.send(order)
        while (answer := self._answers.pop(order.serial, None)) is None:
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()
        return answer

    def mark_checkpointed(self, version: int) -> None:
        """Have it note that the weights of ``version`` are in a checkpoint."""
        self._kept = version
        self.send(Checkpointed(version=version))

    def send(self, message: object) -> None:
        """Send a message; a process that is starting learns of it otherwise."""
        if self._channel is not None:
            self._channel.send(message)

    async def close(self) -> None:
        """End the process in order; kill one that does not end."""
        self._fail(TrainingError("the run ends"))
        if self._channel is not None:
            await self._channel.flush()
        await asyncio.wait({self._task}, timeout=CLOSE_S)
        if self._process is not None:
            self._process.kill()
        await self._task
        if self._deaths or (self._process is not None and self._process.exitcode):
            await self._mark_here()

    async def _mark_here(self) -> None:
        """Note what is in a checkpoint for a process that may have died before it could."""
        try:
            async with await open_part(self._run.folder.path, self._number, 0) as ledger:
                ledger.mark_checkpointed(self._kept)
        except TurnGymError as error:
            logger.warning("coordinator %s: %s", self._number, error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _tend(self) -> None:
        """Keep a process running until the run ends or cannot go on."""
        try:
            while self._failure is None:
                code = await self._one_process()
                if self._failure is None:
                    self._died(code)
        except Exception as error:  # noqa: BLE001 - who asks gets it
            self._fail(error)

    def _died(self, code: int | None) -> None:
        self._deaths += 1
        what = f"coordinator {self._number} ended with code {code}"
        if self._deaths >= _MOST_DEATHS:
            self._fail(
                TrainingError(f"{what}, {self._deaths} times in one update: it says why above")
            )
        else:
            logger.warning("%s; it is started again and resumes its ledger", what)

    async def _one_process(self) -> int | None:
        """Start a process, listen until it is gone, and return its exit code."""
        ours, theirs = socket.socketpair()
        channel = await Channel.of(ours)
        with theirs:  # from here to the next wait nothing can change what it is started with
            self._process = process = self._start(theirs)
        self._channel = channel
        for message in (self._engine.view(), *self._orders):
            channel.send(message)
        try:
            while True:
                self._hear(await channel.receive())
        except (EOFError, OSError):
            pass
        finally:
            self._channel = None
            await channel.close()
        await asyncio.to_thread(process.join, CLOSE_S)
        process.kill()
        process.join()
        return process.exitcode

    def _start(self, end: socket.socket) -> SpawnProcess:
        setup = Setup(
            config=self._run.config,
            folder=self._run.folder.path,
            number=self._number,
            version=self._version,
            counted=self._run.state.counted,
            kept=self._kept if self._has_resumed else None,
            weights=self._engine.run,
            tokenizer=self._run.renderer.tokenizer,
            end_ids=self._engine.end_ids,
        )
        work = (end, registry.sources(), pickle.dumps(setup))
        process = multiprocessing.get_context("spawn").Process(
            target=main, args=work, name=f"coordinator {self._number}"
        )
        # A child inherits what is blocked: no signal can end it before it has handlers of its own.
        resource_tracker.ensure_running()  # which starting would do, and unblock them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process

    def _hear(self, message: object) -> None:
        match message:
            case Resumed():
                self._has_resumed = True
            case Suspected():
                self._engine.suspect(message.number, message.error)
            case Failed():
                self._fail(message.error)
            case PackedTaken() | Held():
                self._answers = {message.serial: message}  # of earlier orders none is waited for
                self._wake()
