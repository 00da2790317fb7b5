"""Say at once, with the install line, when an optional part is not installed."""

from __future__ import annotations

import importlib

from turngym.errors import missing_extra


def need_train_extra(what: str) -> None:
    """Make sure that ``what`` can load and train models, without progress bars of their own.

    Raises:
        MissingExtraError: The extra ``train`` is not installed.
    """
    try:
        for name in ("torch", "transformers", "safetensors"):
            importlib.import_module(name)
    except ImportError as error:
        raise missing_extra(what, "train") from error
    from transformers.utils import logging

    logging.disable_progress_bar()  # one for each file that is read or written
