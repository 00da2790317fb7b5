"""Arguments and options that several commands have, and what the shell offers for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Annotated, Any

import typer

from turngym import registry
from turngym.config import json_or_text
from turngym.errors import ConfigError, require_known
from turngym.tasks.base import SPLITS, Split

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SOURCES = "RECIPE|FILE.toml|KEY=VALUE"
SOURCES_HELP = (
    "A recipe ('turngym config recipes' lists them) or TOML files, and key.path=value to override; "
    "later ones win."
)


def complete_env(incomplete: str) -> list[str]:
    """Return the short names of environments that begin with ``incomplete``."""
    return [e.short_name for e in registry.entries() if e.short_name.startswith(incomplete)]


Env = Annotated[
    str, typer.Argument(metavar="ENV", help=f"{registry.FORMS}.", autocompletion=complete_env)
]


EnvOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--env-option", metavar="KEY=VALUE", help="An argument of the environment; again for more."
    ),
]


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes and blocks of settings that begin with ``incomplete``."""
    from turngym.trainers.settings.train import TrainConfig, recipes

    offered = [*recipes(), *(f"{name}=" for name in TrainConfig.model_fields)]
    return [name for name in offered if name.startswith(incomplete)]


Sources = Annotated[
    list[str], typer.Argument(metavar=SOURCES, help=SOURCES_HELP, autocompletion=complete_recipe)
]
MaybeSources = Annotated[
    list[str] | None,
    typer.Argument(metavar=SOURCES, help=SOURCES_HELP, autocompletion=complete_recipe),
]


def split_of(name: str) -> Split:
    """Return the split called ``name``.

    Raises:
        UnknownNameError: There is none.
    """
    require_known("split", name, SPLITS)
    return "train" if name == "train" else "test"


def key_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the ``KEY=VALUE`` pairs that were given with ``option``, which messages name.

    Raises:
        ConfigError: One is no pair, or a key is there twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{option} {text!r}: wanted KEY=VALUE")
        if key in found:
            raise ConfigError(f"{option} {text!r}: {key!r} is there twice")
        found[key] = value
    return found


def env_options(settings: Sequence[str] | None) -> dict[str, Any]:
    """Return the pairs of ``--env-option``; a value is JSON if it reads as JSON, else text."""
    options = key_values("--env-option", settings or [])
    return {key: json_or_text(text) for key, text in options.items()}


def counted(advance: Callable[[int, str], None]) -> Callable[[str], None]:
    """Return a function of a name that reports one more unit of work to ``advance``."""
    numbers = count(1)
    return lambda name: advance(next(numbers), name)
