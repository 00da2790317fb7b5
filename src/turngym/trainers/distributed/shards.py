"""The moments of an optimizer on the disk: each rank writes its own, and any number of them reads.

They are a distributed checkpoint of torch, without pickles of values.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from turngym.errors import CheckpointError
from turngym.trainers.update.optimizer import Optimizer


def write_shards(optimizer: Optimizer, folder: Path, control: Any) -> None:
    """Write the moments; all ranks call it.

    Args:
        optimizer: Of this rank.
        folder: Seen by all of them.
        control: Process group that messages go through.

    Raises:
        CheckpointError: A rank could not write.
    """
    with _as_ours(folder):
        save(optimizer.state(), checkpoint_id=folder, process_group=control)


def read_shards(optimizer: Optimizer, folder: Path, control: Any = None) -> dict[str, Tensor]:
    """Return what ``optimizer.state`` was, laid out as this rank has its weights.

    Args:
        optimizer: Of this rank.
        folder: Of ``write_shards``.
        control: Process group that messages go through; None for a process alone.

    Raises:
        CheckpointError: It cannot be read, or is of another model.
    """
    state = optimizer.blank_state()
    with _as_ours(folder), warnings.catch_warnings():
        # That a process alone reads what ranks wrote is meant.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(state, checkpoint_id=folder, process_group=control, no_dist=control is None)
    return state


@contextmanager
def _as_ours(folder: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise CheckpointError(f"{folder}: rank {rank} failed: {cause}") from cause
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
