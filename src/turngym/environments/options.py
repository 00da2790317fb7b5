"""Which options an environment has: the arguments of its class, with what its docstring says."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import load_env_creator

from turngym.registry import EnvEntry

_HIDDEN = frozenset({"self", "render_mode"})
_HELP = re.compile(r"^ {4,8}(\w+): (.*(?:\n {9,}\S.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvOption:
    """One argument that ``make``, ``--env-option`` and ``[env.options]`` take."""

    name: str
    default: Any
    """What holds without it; None also where it must be given."""
    help: str
    """One line; "" where the class does not say."""


def options_of(entry: EnvEntry) -> list[EnvOption]:
    """Return the options of an environment, imported for it.

    Raises:
        ImportError: It needs something that is not installed.
    """
    maker: Any = inspect.unwrap(load_env_creator(entry.entry_point))
    layers = list(inspect.getmro(maker)) if inspect.isclass(maker) else [maker]
    found = {"max_turns": EnvOption(name="max_turns", default=entry.max_turns, help=_LIMIT)}
    texts: dict[str, str] = {}
    for layer in layers:
        for text in (layer.__doc__, vars(layer).get("__init__", layer).__doc__):
            for name, line in _HELP.findall((text or "").partition("Args:")[2]):
                if not line.startswith("As ``"):  # which a base class explains
                    texts.setdefault(name, " ".join(line.split()))
    for name, parameter in _parameters(layers).items():
        default = entry.kwargs.get(name, parameter.default)
        default = None if default is inspect.Parameter.empty else default
        found[name] = EnvOption(name=name, default=default, help=texts.get(name, ""))
    return list(found.values())


_LIMIT = "Turns after which an episode is truncated."


def _parameters(layers: list[Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters, of base classes too as long as ``**kwargs`` are passed on."""
    found: dict[str, inspect.Parameter] = {}
    passed: set[str] | None = None
    """What a class passes on; None: everything."""
    for layer in layers:
        call = layer if not inspect.isclass(layer) else vars(layer).get("__init__")
        if call is None or not callable(call):
            continue
        own = inspect.signature(call).parameters
        for name, parameter in own.items():
            named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if named and name not in _HIDDEN and (passed is None or name in passed):
                found.setdefault(name, parameter)
        rest = [one for one in own.values() if one.kind == one.VAR_KEYWORD]
        if not rest:
            break
        if typed := _UNPACKED.fullmatch(str(rest[0].annotation)):
            fields = getattr(inspect.getmodule(call), typed[1]).__annotations__
            passed = set(fields) if passed is None else passed & set(fields)
    for name in sorted((passed or set()) - _HIDDEN):  # read from ``**options`` by the base itself
        found.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
    return found


_UNPACKED = re.compile(r"Unpack\[(\w+)\]")
