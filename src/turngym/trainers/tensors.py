"""State of several parts as one flat mapping of tensors, as a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def joined(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all parts, each under ``PART/NAME``."""
    return {f"{part}/{k}": tensor for part, own in parts.items() for k, tensor in own.items()}


def below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return those of ``tensors`` under ``name/``, without it."""
    prefix = f"{name}/"
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
