"""A Python project whose tests make tasks: its files, where its code lies, where its tests are."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Self

from turngym.errors import ConfigError
from turngym.sandbox.trees import unpack

STAMP = 1_577_836_800
"""Every file of a workspace says that it was written on the first of January 2020."""
_DROPPED = frozenset(
    {".git", ".github", ".hg", ".svn", ".tox", ".venv", "venv", "node_modules", "__pycache__",
     "build", "dist", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".eggs"}
)  # fmt: skip
_MAX_BYTES, _MAX_FILES = 40 << 20, 5_000
_CONFIG = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py",
     "pyproject.toml", "pytest.toml", "sitecustomize.py", "usercustomize.py", "noxfile.py"}
)  # fmt: skip
_PROTECTED_ENDS = (".pth", ".so", ".pyc", ".pyd", ".egg-link")


def protected_names() -> list[str]:
    """Return the words for ``find`` that match ``Layout.is_protected`` by name, tests aside."""
    names = [*sorted(_CONFIG), *(f"*{end}" for end in _PROTECTED_ENDS)]
    words = [word for name in names for word in ("-o", "-name", name)]
    return ["(", *words[1:], ")", "-print0"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What of a project is code, and what is tests."""

    roots: tuple[str, ...]
    """Folders that are put on the import path, ``"."`` or ``"src"``."""
    packages: tuple[str, ...]
    """Top-level modules and packages, as paths: ``src/shop``, ``parse.py``."""
    tests: tuple[str, ...]
    """Folders and files that hold the tests."""

    def is_test(self, path: str) -> bool:
        """Say whether ``path`` belongs to the tests."""
        return _is_under(path, self.tests)

    def is_code(self, path: str) -> bool:
        """Say whether ``path`` belongs to the code that is tested."""
        return not self.is_test(path) and _is_under(path, self.packages)

    def is_protected(self, path: str) -> bool:
        """Say whether the judge takes ``path`` from the original, whatever was submitted.

        Tests, their configuration, and what Python or pytest would load by itself.
        """
        name = PurePosixPath(path).name
        return (
            self.is_test(path)
            or name in _CONFIG
            or name.endswith(_PROTECTED_ENDS)
            or "__pycache__" in path.split("/")
        )


@dataclass(frozen=True, kw_only=True)
class Project:
    """The files of one version of a project. Read once, never written."""

    name: str
    version: str
    files: dict[str, bytes] = field(repr=False)
    layout: Layout

    @property
    def key(self) -> str:
        """Name and version."""
        return f"{self.name}-{self.version}"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over paths and contents."""
        whole = hashlib.sha256()
        for path, data in sorted(self.files.items()):
            whole.update(repr((path, hashlib.sha256(data).digest())).encode())
        return whole.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files into ``folder``, readable for all and with one time stamp."""
        folder.chmod(0o755)
        for path, data in sorted(self.files.items()):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            os.utime(target, (STAMP, STAMP))
        for made in sorted(folder.rglob("*"), reverse=True):
            if made.is_dir():
                os.utime(made, (STAMP, STAMP))

    def sources(self) -> dict[str, str]:
        """Return the UTF-8 Python files of the code, by path."""
        return {path: text for path, text in self._code() if text is not None}

    def test_texts(self, errors: str = "replace") -> dict[str, str]:
        """Return the Python files of the tests, by path; ``errors`` is as in ``bytes.decode``."""
        return {
            path: data.decode("utf-8", errors)
            for path, data in self.files.items()
            if path.endswith(".py") and self.layout.is_test(path)
        }

    def unreadable(self) -> list[str]:
        """Return the Python files of the code that are no UTF-8; no task is made of them."""
        return [path for path, text in self._code() if text is None]

    def _code(self) -> Iterator[tuple[str, str | None]]:
        for path, data in sorted(self.files.items()):
            if path.endswith(".py") and self.layout.is_code(path):
                try:
                    yield path, data.decode()
                except UnicodeDecodeError:
                    yield path, None

    @classmethod
    def read(cls, place: Path, *, name: str = "", version: str = "0") -> Self:
        """Read a project from a folder, a git working tree or a source distribution.

        Raises:
            ConfigError: It cannot be read, or has no code or no tests that can be found.
        """
        where = str(place)
        if place.is_dir():
            files = _read_folder(place)
        elif place.is_file():
            with tempfile.TemporaryDirectory(prefix="turngym-sdist-") as folder:
                files = _read_folder(_unpack(place, Path(folder)))
        else:
            raise ConfigError(f"project {where!r}: no such folder or source distribution")
        found = _names(files)
        name = name or found[0] or place.name.removesuffix(".tar.gz")
        layout = find_layout(files, where)
        return cls(
            name=name.lower().replace("_", "-"),
            version=version if version != "0" else found[1],
            files=files,
            layout=layout,
        )


def find_layout(files: Iterable[str], where: str = "project") -> Layout:
    """Return what of ``files`` is code and what is tests; ``where`` names them in errors.

    Raises:
        ConfigError: There is no code, or there are no tests.
    """
    paths = sorted(path for path in files if path.endswith(".py"))
    tests = _tests(paths)
    if not tests:
        raise ConfigError(
            f"{where}: no tests found (wanted test_*.py or *_test.py); a project without tests "
            "makes no tasks"
        )
    roots = ("src",) if any(path.startswith("src/") for path in paths) else (".",)
    prefix = "src/" if roots == ("src",) else ""
    packages = []
    for path in paths:
        inner = path.removeprefix(prefix)
        if not path.startswith(prefix) or _is_under(path, tests):
            continue
        head, _, rest = inner.partition("/")
        if rest == "__init__.py" or (rest and f"{prefix}{head}/__init__.py" in paths):
            packages.append(prefix + head)
        elif not rest and inner not in _CONFIG and not inner.startswith(("test", "run_")):
            packages.append(path)
    skipped = {"docs", "doc", "examples", "benchmarks", "scripts", "tools", "misc", "bench"}
    packages = [one for one in dict.fromkeys(packages) if PurePosixPath(one).name not in skipped]
    others = [path for path in paths if path.startswith(prefix) and not _is_under(path, tests)]
    for path in others if not packages else ():  # packages in folders that are none
        folder, _, name = path.rpartition("/")
        if name == "__init__.py" and folder.split("/")[0] not in skipped:
            packages += [] if _is_under(folder, packages) else [folder]
    if not packages:
        raise ConfigError(f"{where}: no Python package or module found beside the tests")
    return Layout(roots=roots, packages=tuple(packages), tests=tests)


def _tests(paths: list[str]) -> tuple[str, ...]:
    """Return the folders called tests, and the test files that lie elsewhere."""
    found: list[str] = []
    for path in paths:
        if _is_under(path, found):
            continue
        parts = path.split("/")
        folders = [n for n, part in enumerate(parts[:-1]) if part in ("tests", "test", "testing")]
        if folders and (is_test_file(path) or parts[folders[0]] != "testing"):
            found.append("/".join(parts[: folders[0] + 1]))
        elif is_test_file(path):
            found.append(path)
    return tuple(
        one
        for one in dict.fromkeys(found)
        if one.endswith(".py")
        or any(
            path.startswith(one + "/")
            and (
                path.rpartition("/")[2].startswith(("test", "conftest"))
                or path.endswith("_test.py")
            )
            for path in paths
        )
    )


def is_test_file(path: str) -> bool:
    """Say whether a file is one of tests by its name."""
    name = path.rpartition("/")[2]
    return name.startswith("test_") or name.endswith("_test.py") or name == "tests.py"


def _is_under(path: str, folders: Iterable[str]) -> bool:
    return any(path == one or path.startswith(one + "/") for one in folders)


def _read_folder(folder: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for path in _walk(folder):
        total += path.stat().st_size
        if total > _MAX_BYTES or len(files) >= _MAX_FILES:
            raise ConfigError(
                f"project {str(folder)!r}: more than {_MAX_BYTES >> 20} MB or {_MAX_FILES} files; "
                "leave out data and documentation"
            )
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        is_dropped = entry.name in _DROPPED and not (entry / "__init__.py").is_file()
        if entry.is_symlink() or is_dropped or entry.name.endswith(".egg-info"):
            continue
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.is_file() and not entry.name.endswith((".pyc", ".so")):
            yield entry


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack a source distribution; return its one top folder.

    Raises:
        ConfigError: It is no tar archive, or holds what leaves the folder.
    """
    try:
        unpack(archive, folder)
    except (tarfile.TarError, OSError, EOFError) as error:
        reason = str(error).split(":\n")[0]
        raise ConfigError(f"project {archive.name!r}: cannot be unpacked: {reason}") from None
    entries = [one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()]
    if len(entries) != 1:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"project {archive.name!r}: no source distribution: wanted one folder")
    return entries[0]


def _names(files: dict[str, bytes]) -> tuple[str, str]:
    """Return name and version as PKG-INFO has them."""
    found = message_from_bytes(files.get("PKG-INFO", b""))
    return str(found["Name"] or "").strip(), str(found["Version"] or "0").strip()
