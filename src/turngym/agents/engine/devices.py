"""Where models run."""

from __future__ import annotations

import os

import torch

from turngym.agents.engine.config import DeviceName, DtypeName
from turngym.errors import ConfigError

DTYPES: dict[DtypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def device_of(wanted: DeviceName, *, setting: str, number: int | None = None) -> torch.device:
    """Return the device that a setting names; ``auto`` is a GPU where torch finds one.

    Of several GPUs each process of a group on one node takes the one of its own number.

    Args:
        wanted: The setting.
        setting: Its full name, for the error.
        number: Of the process on this node; None for what its launcher says.

    Raises:
        ConfigError: There is no GPU, or fewer than processes.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0")) if number is None else number
    if number >= count:
        found = f"finds {count or 'no'} GPU{'s' * (count > 1)}"
        here = f", and process {number} of this node wants one of its own" if number else ""
        raise ConfigError(
            f"{setting}={wanted!r}: torch {torch.__version__} {found}{here}; set {setting}=cpu"
        )
    return torch.device("cuda", number)
