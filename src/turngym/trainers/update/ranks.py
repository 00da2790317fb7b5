"""The processes that change the weights of one policy together, as the learner sees them.

Each of them has the whole batch and computes everything that is not a forward or backward pass; of
those it does its share. So ranks change nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

T = TypeVar("T")


class _Batch(Protocol):
    """A ``MicroBatch``; its file imports this one."""

    @property
    def is_filler(self) -> bool: ...


class Ranks(Protocol):
    """The processes, and the place of this one among them."""

    number: int
    """Of this process, from 0."""
    size: int

    def exchanged(self, value: T) -> Sequence[T]:
        """Return the values of all ranks in order. All of them call it at the same places."""
        ...

    def agreed(self) -> AbstractContextManager[None]:
        """Raise after the block, on every rank, what it raised on any of them.

        Inside the block ranks do not wait for each other, so that none waits for one that failed.
        """
        ...


class Alone:
    """The only process."""

    number = 0
    size = 1

    def exchanged(self, value: T) -> Sequence[T]:
        """Return the one value."""
        return (value,)

    def agreed(self) -> AbstractContextManager[None]:
        """Let errors through."""
        return nullcontext()


ALONE = Alone()


class Scorer(Protocol):
    """Gives a function the policy as it is now, on every rank where there are several."""

    def __call__(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Return ``function(model, *args, ranks=..., **kwargs)``.

        Args:
            function: Of a module; other processes look it up by its name.
            args: Are sent to them.
            kwargs: Are sent to them.
        """
        ...


def scorer_of(model: PreTrainedModel) -> Scorer:
    """Return the scorer of a policy in this process alone."""

    def score(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return function(model, *args, ranks=ALONE, **kwargs)

    return score


def backpropagate(total: Tensor, batch: _Batch, ranks: Ranks) -> None:
    """Add the gradient of one micro-batch's loss.

    Args:
        total: The loss; a sum, so that micro-batches add up.
        batch: Its tokens. A filler counts nothing: it keeps this rank in step with the others.
        ranks: Their gradients are averaged, and their sum is wanted.
    """
    factor = 0 if batch.is_filler else ranks.size
    loss = total if factor == 1 else total * factor
    loss.backward()  # type: ignore[no-untyped-call]
