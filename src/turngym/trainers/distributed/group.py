"""The ranks of one learner: the first one says what is done, and all of them do it.

Rank 0 is the run itself: scheduler, engine, ledger, credit. The others hold their share of the
weights and obey. Every command is a function of a module and its arguments; each rank calls it with
its own trainer, and what happens inside happens at the same places on all of them.

An error inside ``agreed`` is known to all ranks before they next wait for each other. One that
strikes between two layers cannot be: that rank ends, its connections break, and so do the others.
"""

from __future__ import annotations

import faulthandler
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from turngym.agents.engine.devices import device_of
from turngym.errors import TrainingError, TurnGymError
from turngym.trainers.distributed.launch import JOINED, check_size
from turngym.trainers.distributed.sharding import broadcast, empty_models, shard, without_weights
from turngym.trainers.settings.optimizer import LearnerConfig
from turngym.trainers.update.compute import Ranks, place
from turngym.trainers.update.forward import check_packing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
logger = logging.getLogger(__name__)

_COMMAND = timedelta(days=30)
"""Between two commands episodes are played, which may take as long as it likes."""
_PASS = timedelta(minutes=30)
"""Within a command a rank that lets the others wait this long is stuck."""
_END_S = 5.0
"""For a process to end when another one is lost."""


class RankError(TrainingError):
    """An error on one rank, as the others know it."""


class Group(Ranks):
    """The ranks of a learner, from inside one of them.

    Args:
        config: Says how many there are, and what they compute on.

    Raises:
        ConfigError: There are other processes than ``learner.ranks``, or no GPU for this one.
    """

    def __init__(self, config: LearnerConfig) -> None:
        check_size(config.ranks)
        self.device = device_of(config.device, setting="learner.device")
        self.trainer: Any = None
        """What every rank trains with."""
        self._config = config
        self._sources: Mapping[str, PreTrainedModel] | None = None
        """Models with the weights to spread, on the first rank."""
        self._lock = Lock()
        self._is_in_step = True
        backend = "gloo"
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=_PASS)
        self.number, self.size = dist.get_rank(), dist.get_world_size()
        self._mesh = init_device_mesh(self.device.type, (self.size,))
        self.control = dist.new_group(backend="gloo", timeout=_COMMAND)
        """For messages between processes, whatever the weights travel by."""
        JOINED.set()

    def exchanged(self, value: T) -> Sequence[T]:
        """Return the values of all ranks in order."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.control)
        return found

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Raise after the block, on every rank, what it raised on any of them."""
        own: Exception | None = None
        try:
            yield
        except Exception as error:
            own = error
            if not isinstance(error, TurnGymError):
                logger.exception("rank %d of the learner", self.number)  # a bug, seen here alone
        names = self.exchanged(None if own is None else f"{type(own).__name__}: {own}")
        failed = [(rank, name) for rank, name in enumerate(names) if name is not None]
        if failed:
            rank, name = failed[0]
            raise RankError(f"rank {rank} of the learner: {name}") from own

    def begin(self, make: Callable[..., Any], models: Mapping[str, PreTrainedModel]) -> None:
        """Spread copies of ``models``, and make every rank's trainer of them; rank 0 calls it.

        Args:
            make: Function of a module, or a ``partial`` of one; called with the models by name and
                with ``ranks``.
            models: Whole; they stay as they are.
        """
        self._sources = models
        self.run(Group.take_on, make, without_weights(models))

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return ``function(group, *args, **kwargs)`` of rank 0, when all ranks are done.

        Raises:
            TrainingError: As the function, or a rank is gone.
        """
        # A thread may update while another one saves; ranks do one thing at a time.
        with self._lock:
            if not self._is_in_step:
                raise RankError(_LOST)
            self._is_in_step = False
            try:
                self._send((function, args, kwargs))
                result = function(self, *args, **kwargs)
            except TurnGymError:
                self._is_in_step = True  # raised by all ranks, at one place
                raise
            except RuntimeError as error:
                if _is_loss(error):
                    raise RankError(_LOST) from error
                raise
            self._is_in_step = True
            return result

    def obey(self) -> NoReturn:
        """Do what rank 0 says until it says no more, and end this process; for the other ranks.

        It ends at once: it holds nothing, and threads of torch may hang when rank 0 is gone.
        """
        try:
            while (command := self._received()) is not None:
                function, args, kwargs = command
                # Rank 0 has an error of ours too, and decides.
                with suppress(TurnGymError):
                    function(self, *args, **kwargs)
        except RuntimeError as error:
            self._is_in_step = False
            if not _is_loss(error):
                raise
            os._exit(1)  # the one that is gone has said why
        os._exit(0)

    def close(self) -> None:
        """End the other ranks in order, unless one is lost: then they end by that."""
        if not self._is_in_step:
            # What waits for the lost rank would keep this process from its end.
            quiet = os.open(os.devnull, os.O_WRONLY)
            faulthandler.dump_traceback_later(_END_S, exit=True, file=quiet)
            return
        with suppress(RuntimeError):
            if self.number == 0:
                self._send(None)
            dist.destroy_process_group()

    def _send(self, command: object) -> None:
        dist.broadcast_object_list([command], src=0, group=self.control)

    def _received(self) -> Any:
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def take_on(self, make: Callable[..., Any], content: bytes) -> None:
        """Make this rank's trainer.

        Args:
            make: Builds it from the models, by their names, and ``ranks``.
            content: The models without weights; they are filled, placed and sharded here.
        """
        self.trainer = None  # what the last one held goes first
        models = empty_models(content)
        broadcast(models, self._sources, self.control)
        self._sources = None
        for model in models.values():
            place(model, self._config, move=False)
            shard(model, self._mesh, offload=self._config.offload)
            check_packing(model)
        self.trainer = make(**models, ranks=self)


_LOST = (
    "a rank of the learner is gone, and the run with it; its own message says why. The same "
    "command resumes the run from its newest checkpoint"
)


def _is_loss(error: RuntimeError) -> bool:
    """Say whether an error of torch means that another process cannot be reached."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(
        sign in text for sign in ("connection", "socket", "peer", "timed out", "broken pipe")
    )
