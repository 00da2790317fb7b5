"""Things of the user's own, named ``module:attribute`` or ``path.py:attribute``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from turngym.errors import ConfigError, MissingExtraError, missing_extra, unknown_name

logger = logging.getLogger(__name__)
_changed_ns: dict[Path, int] = {}
"""When a file of the user's was last changed, as far as this process knows."""


def import_attribute(kind: str, spec: str) -> Any:  # whatever the user wrote; the caller checks it
    """Return what ``module:attribute`` names, looking in the working folder first.

    Args:
        kind: What it should be, for messages, for example ``"agent"``.
        spec: Module or file (``path.py``), and attribute.

    Raises:
        ConfigError: The module does not exist or breaks on import, or has no such attribute.
    """
    where, _, attribute = spec.partition(":")
    if not where or not attribute:
        raise ConfigError(f"{kind} {spec!r}: wanted module:attribute or path.py:attribute")
    module = import_module(kind, where, spec=spec)
    if not hasattr(module, attribute):
        known = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and _home(value) in (None, module.__name__)
        ]
        near = get_close_matches(attribute, known, n=1, cutoff=0.5)
        known = [f"{where}:{name}" for name in near]  # what stands before is alike in all
        raise unknown_name(kind, spec, known, hint=f"{where!r} holds no such name.")
    return getattr(module, attribute)


def import_extra(module: str, needed_for: str, extra: str) -> Any:  # optional, and often untyped
    """Return a module that an ``extra`` of this package installs.

    Raises:
        MissingExtraError: It is not installed; the message says what it was ``needed_for``.
    """
    with importing_extra(needed_for, extra):
        return importlib.import_module(module)


@contextmanager
def importing_extra(needed_for: str, extra: str) -> Iterator[None]:
    """Import inside the block what an ``extra`` of this package installs.

    Raises:
        MissingExtraError: It is not installed, or cannot be loaded; the message says what it was
            ``needed_for``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_extra(needed_for, extra) from error
    except ImportError as error:  # a library of the system or of another version
        raise MissingExtraError(
            f"{needed_for} needs the extra {extra!r}, which cannot be loaded: {error}; "
            "'turngym doctor' says more"
        ) from error


def package_folder(name: str) -> Path | None:
    """Return where an installed package lies, which is not imported for it; None without one."""
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def import_function(kind: str, spec: str) -> Callable[..., Any]:
    """Return the function that a text names; as ``import_attribute``.

    Args:
        kind: What it is for, in messages.
        spec: ``module:function`` or ``file.py:function``.

    Raises:
        ConfigError: There is none, or it cannot be called.
    """
    found = import_attribute(kind, spec)
    if not callable(found):
        raise ConfigError(f"{kind} {spec!r}: wanted a function, found {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _home(value: Any) -> Any:
    """Return the module that defined ``value``; None where it does not say."""
    return value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)


def import_module(kind: str, where: str, *, spec: str | None = None) -> ModuleType:
    """Return the module that a name (looked for in the working folder first) or a file stands for.

    A file is run once, however it is named. Its module has the file's name, unless another module
    has it already.

    Args:
        kind: What it should hold, for messages.
        where: ``package.module``, or the path of a file that ends in ``.py``.
        spec: What the user wrote, for messages; ``where`` by default.

    Raises:
        ConfigError: There is none, or it breaks on import.
    """
    if where.endswith(".py"):
        return _import_file(kind, where, spec or where)
    here = str(Path.cwd())
    with _one_line(kind, where, spec or where), _searched(here):
        return importlib.import_module(where)


def _import_file(kind: str, where: str, spec: str) -> ModuleType:
    file = Path(where).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"{kind} {spec!r}: there is no such file")
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        if isinstance(known, str) and known.endswith(file.name) and Path(known).resolve() == file:
            at = file.stat().st_mtime_ns
            if _changed_ns.setdefault(file, at) != at:
                _changed_ns[file] = at
                logger.warning(
                    "%s was changed after it was read: this process goes on with what it read, a "
                    "new one (in a notebook: restart the kernel) reads it again",
                    where,
                )
            return module
    name = file.stem
    if name in sys.modules or not name.isidentifier() or _is_elsewhere(name, file):
        name = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ConfigError(f"{kind} {spec!r}: is no Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    _changed_ns[file] = file.stat().st_mtime_ns
    try:
        with _one_line(kind, file.name, spec), _searched(str(file.parent)):
            found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_elsewhere(name: str, file: Path) -> bool:
    """Return whether an import of ``name`` would find something else than ``file``."""
    found = importlib.util.find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).resolve() != file)


@contextmanager
def _searched(folder: str) -> Iterator[None]:
    """Look for modules in ``folder`` first while the block runs."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def _one_line(kind: str, where: str, spec: str) -> Iterator[None]:
    """Turn what the user's module raises into one line that says where it was raised."""
    try:
        yield
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and missing.split(".")[0] == where.split(".")[0]:
            reason = f"no module {missing!r} here or installed"
            raise ConfigError(f"{kind} {spec!r}: {reason}") from error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({Path(frame.filename).name}:{frame.lineno})"
        reason = f"{type(error).__name__}: {error}"
        reason += "" if isinstance(error, SyntaxError) else place  # which says its own
        raise ConfigError(f"{kind} {spec!r}: importing {where!r} raised {reason}") from error
