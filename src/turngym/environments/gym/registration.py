"""Make registered environments and list their options.

What an environment is made of is imported when the first is made, so that ``import turngym`` stays
short.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, get_args, get_origin

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from turngym import registry
from turngym.errors import ConfigError, EnvironmentFault, TurnGymError, unknown_name
from turngym.registry import CREATE, EnvEntry

if TYPE_CHECKING:
    from turngym.environments.core.limits import Limit


def with_own_turns(spec: EnvSpec, kwargs: Mapping[str, Any]) -> EnvSpec:
    """Return ``spec`` with the turns that it has here, for a process where its id is unknown.

    Args:
        spec: What is to be made there.
        kwargs: Options to make it with.
    """
    if spec.entry_point != CREATE:
        return spec
    merged = {**spec.kwargs, **kwargs}
    id, own = merged["registered"]
    turns = turns_of(id, own, merged)
    return replace(spec, kwargs={**deepcopy(spec.kwargs), "max_turns": turns})


def turns_of(id: str, max_turns: int, kwargs: Mapping[str, Any]) -> int:
    """Return the turns of ``id``, which has ``max_turns``, when it is made with ``kwargs``.

    An id stands for one difficulty. Made with another one (``difficulty="hard"``), the environment
    gets the turns of the id that stands for that.

    Args:
        id: Of the environment.
        max_turns: The turns that it was registered with.
        kwargs: All that it is made with, of its registration too.
    """
    given: int | None = kwargs.get("max_turns")
    if given:
        return given
    entries = registry.entries()
    own = next((entry for entry in entries if entry.id == id), None)
    if own is None:  # only the process that sent the spec knows it
        return max_turns
    other = {key: value for key, value in kwargs.items() if own.kwargs.get(key) != value}

    def likeness(entry: EnvEntry) -> tuple[int, int, int]:
        same = [key for key, value in entry.kwargs.items() if kwargs.get(key) == value]
        return sum(key in other for key in same), len(same), entry.max_turns

    alike = [one for one in entries if one.entry_point == own.entry_point]
    best = max(alike, key=likeness)
    return best.max_turns if likeness(best)[0] else max_turns


def make(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a new environment by id or short name.

    Args:
        name: ``"turngym/Maze-v0"`` or ``"text/maze"``; of one's own ``"games.py"``,
            ``"games.py:Class"`` or ``"module:Class"``.
        kwargs: Options of the environment (``options_of``); they override the registered ones.
            ``max_turns``, ``calls_per_turn`` and ``episode_limits`` are options of every
            environment (see ``create``).

    Raises:
        UnknownNameError: There is none of that name; the message names the nearest.
        MissingExtraError: It needs something that is not installed.
        ConfigError: It has no option of that name, or cannot be loaded.
    """
    entry = registry.find(name)
    entry.require()
    with known_options(entry, kwargs):
        return gymnasium.make(entry.id, **kwargs)


def done_with(env: Any) -> None:
    """Close an environment that was made to look at it; what it raises then is logged."""
    from turngym.faults import Tolerated  # which loads asyncio

    with Tolerated("an environment did not close"):
        env.close()


def players_of(env: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """Return who plays ``env``; nothing where there is one player."""
    return tuple(env.get_wrapper_attr("players")) if env.has_wrapper_attr("players") else ()


def make_expert_match(name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return a new environment by name whose expert pays; arguments as for ``make``."""
    from turngym.environments.gym.wrappers import ExpertMatch

    return ExpertMatch(make(name, **kwargs))


_MISSING = re.compile(r"\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)")


@contextmanager
def known_options(entry: EnvEntry, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Name an option that an environment has not, and those that it has, or one that it needs.

    Args:
        entry: What is made in the block.
        kwargs: The options that it is made with.

    Raises:
        ConfigError: It has no option of that name, or one that must be given is not.
    """
    try:
        yield
    except TypeError as error:
        reason = str(error).split(" was raised from ")[0]
        known = [option.name for option in options_of(entry)]
        if lacks := _MISSING.search(reason):
            names = re.findall(r"'(\w+)'", lacks[1])
            if set(names) <= set(known):
                raise ConfigError(
                    f"environment {entry.short_name!r} has to be given {' and '.join(names)}: "
                    f"--env-option {names[0]}=..., [env.options] of a run, or make(ENV, "
                    f"{names[0]}=...)"
                ) from error
        found = re.search(r"unexpected keyword argument '(\w+)'", reason)
        if found is None:
            raise
        if found[1] not in kwargs:  # what it was registered with
            raise ConfigError(f"environment {entry.short_name!r}: {reason}") from error
        raise unknown_name(f"option of {entry.short_name}", found[1], known) from error


@contextmanager
def named(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Turn what stops an environment from being made into one line.

    Args:
        name: Of the environment.
        options: That it is made with.

    Raises:
        ConfigError: Its class raises an error that is none of ours, and there are options.
        EnvironmentFault: The same, and there are none.
    """
    try:
        yield
    except TurnGymError:
        raise
    except Exception as error:
        from turngym.faults import describe  # which loads asyncio

        # Gymnasium adds the whole specification to what the environment said.
        reason = describe(error).partition(" was raised from the environment creator")[0]
        if options:
            given = ", ".join(f"{key}={value!r}" for key, value in options.items())
            raise ConfigError(f"{name} with {given}: {reason}") from error
        raise EnvironmentFault(f"{name}: {reason}") from error


def create(
    entry_point: str | Callable[..., Any],
    registered: tuple[str, int] | None = None,
    max_turns: int | None = None,
    calls_per_turn: int = 1,
    episode_limits: Sequence[Limit | Mapping[str, Any]] = (),
    **kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Return the environment that ``entry_point`` makes; what ``gymnasium.make`` calls.

    Args:
        entry_point: ``"package.module:Class"``, or what it names. One made of coroutines becomes a
            ``gymnasium.Env``.
        registered: Its id, and the turns of that.
        max_turns: Turns after which an episode is truncated, instead of those.
        calls_per_turn: Most tool calls of one answer that are carried out.
        episode_limits: More limits, or what ``Limit.record`` gives of them.
        kwargs: Arguments of the class.

    Raises:
        ConfigError: A limit is wrong, ``calls_per_turn`` is, or what is registered has no tasks.
    """
    from turngym.environments.core.limits import TurnLimit, limit_of
    from turngym.environments.gym.face import as_gym
    from turngym.environments.gym.wrappers import attach, with_calls

    maker = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    made: Any = maker(**kwargs)
    if registered is not None and not getattr(made, "has_wrapper_attr", lambda _: False)("task"):
        raise ConfigError(
            f"{registered[0]}: {type(made).__name__} has no tasks; play it through a TurnEnv, "
            "which turngym.from_gymnasium is where its actions are discrete"
        )
    turns = max_turns
    if turns is None and registered is not None:
        turns = turns_of(*registered, kwargs)
    for name, number in (("max_turns", turns), ("calls_per_turn", calls_per_turn)):
        if number is not None and type(number) is not int:
            raise ConfigError(f"option {name}: wanted a whole number, got {number!r}")
    own = [] if turns is None else [TurnLimit(turns)]
    env = attach(as_gym(made), [*own, *map(limit_of, episode_limits)])
    return env if calls_per_turn == 1 else with_calls(env, calls_per_turn)


OF_EVERY = ("max_turns", "calls_per_turn", "episode_limits")
"""Options of every environment, which its class does not know."""
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
    found = {
        "max_turns": EnvOption(name="max_turns", default=entry.max_turns, help=_LIMIT),
        "calls_per_turn": EnvOption(name="calls_per_turn", default=1, help=_CALLS),
    }
    texts: dict[str, str] = {}
    for layer in layers:
        for text in (layer.__doc__, vars(layer).get("__init__", layer).__doc__):
            for name, line in _HELP.findall((text or "").partition("Args:")[2]):
                if not line.startswith("As ``"):  # which a base class explains
                    texts.setdefault(name, " ".join(line.split()))
    for name, parameter in _parameters(layers).items():
        default = entry.kwargs.get(name, parameter.default)
        default = None if default is inspect.Parameter.empty else default
        text = texts.get(name, "")
        if name == "difficulty" and (known := getattr(maker, "difficulties", None)):
            text = f"One of {', '.join(known)}."
        found[name] = EnvOption(name=name, default=default, help=text.replace("``", ""))
    return list(found.values())


def about(entry: EnvEntry) -> str:
    """Return what an environment is, the first sentence of its class; "" where it has none.

    Raises:
        ImportError: It needs something that is not installed.
    """
    maker: Any = inspect.unwrap(load_env_creator(entry.entry_point))
    first = (vars(maker).get("__doc__") or "").strip().partition("\n")[0]
    return re.sub(r" See ``\w+``\.$", "", str(first)).replace("``", "")


def declared(entry: EnvEntry) -> tuple[str, frozenset[str]]:
    """Return the kind of snapshots of an environment, and what it gives credit methods.

    Its class knows both, where the one who registered it did not say.

    Raises:
        ImportError: It needs something that is not installed.
    """
    from turngym.environments.core.episode import EpisodeCore

    maker: Any = inspect.unwrap(load_env_creator(entry.entry_point))
    if not (inspect.isclass(maker) and issubclass(maker, EpisodeCore)):
        return entry.snapshot_kind, entry.provides
    methods = {"state_key": "state_key", "potential": "potential", "ground_truth": "answer"}
    written = {
        need
        for need, method in methods.items()
        if getattr(maker, method) is not getattr(EpisodeCore, method)
    }
    return maker.snapshot_kind, entry.provides or frozenset(written)


_LIMIT = "Turns after which an episode is truncated."
_CALLS = "Most tool calls of one answer that are carried out; each counts as a turn here."


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
        given = rest[0].annotation
        if typed := _UNPACKED.fullmatch(str(given)):  # of a file whose annotations are text
            given = Unpack[getattr(inspect.getmodule(call), typed[1])]
        if get_origin(given) is Unpack:
            fields = get_args(given)[0].__annotations__
            passed = set(fields) if passed is None else passed & set(fields)
    for name in sorted((passed or set()) - _HIDDEN):  # read from ``**options`` by the base itself
        found.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
    return found


_UNPACKED = re.compile(r"Unpack\[(\w+)\]")
