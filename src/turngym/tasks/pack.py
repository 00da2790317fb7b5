"""A set of tasks as one file, ``NAME.tasks``: what ``turngym tasks pack`` writes.

The first line has the SHA-256 of all that follows: a zip archive with ``manifest.json`` and, where
the tasks are folders in Harbor's format, their files. Same content, same bytes: names are in order,
there is one time stamp, and nothing is compressed, which no two versions of zlib do alike.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, JsonValue, ValidationError

from turngym.config import StrictModel
from turngym.errors import ConfigError
from turngym.records import replacing
from turngym.sandbox.backends.runtime import cache_folder, made_once
from turngym.tasks.base import Split

SUFFIX = ".tasks"
_MAGIC = "turngym tasks 1 sha256 "
_MANIFEST = "manifest.json"
_STAMP = (1980, 1, 1, 0, 0, 0)
_FOLDER = re.compile(r"[\w.-]*\w[\w.-]*")

Files = Mapping[str, tuple[bytes, bool]]
"""Path to content, and whether it can be run."""


class PackedTask(StrictModel):
    """One task of a pack."""

    id: str
    """As the environment has it; of a folder, its name."""
    sha256: str
    """Of the folder's files, or of what makes the problem this one."""
    split: Split | None = None
    """None of a folder, which says it itself."""
    licence: str = ""
    source: str = ""
    """Where it comes from, in words."""
    scores: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """Of each agent that played it, the score of every attempt that was judged."""


class PackManifest(StrictModel):
    """What a pack says of itself."""

    format: Literal["turngym.tasks"] = "turngym.tasks"
    version: Literal[1] = 1
    env: str = ""
    """Environment whose tasks these are; "" where their folders are in the pack."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of that environment."""
    tasks: tuple[PackedTask, ...] = Field(min_length=1)
    report: dict[str, JsonValue] | None = None
    """What ``turngym check task --json`` found; None where it was not given."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A pack that was read and is as it was written."""

    path: Path
    sha256: str
    manifest: PackManifest
    folders: Mapping[str, Files]
    """Files of each task folder; empty where the tasks are of an environment."""

    def unpacked(self) -> Path:
        """Return a folder of the task folders, made in the cache when need be.

        Raises:
            ConfigError: It was there, and is not as it was made.
        """
        place = cache_folder() / "packs" / self.sha256 / self.path.stem
        place.parent.mkdir(parents=True, exist_ok=True)
        wanted = {task.id: task.sha256 for task in self.manifest.tasks}
        if place.exists() and wanted != {id: digest(read_folder(place / id)) for id in wanted}:
            raise ConfigError(f"{place}: was changed since it was unpacked; remove it")
        return made_once(place, self._write)

    def _write(self, fresh: Path) -> None:
        for id, files in self.folders.items():
            for name, (data, is_executable) in files.items():
                target = fresh / id / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
                target.chmod(0o755 if is_executable else 0o644)


def digest(files: Files) -> str:
    """Return the SHA-256 of files, their paths and whether they can be run."""
    found = hashlib.sha256()
    for path, (data, is_executable) in sorted(files.items()):
        found.update(f"{len(path)} {path} {is_executable} {len(data)} ".encode())
        found.update(data)
    return found.hexdigest()


def read_folder(folder: Path) -> Files:
    """Return the files of a folder.

    Raises:
        ConfigError: There is a link in it, an empty folder, what is neither file nor folder, or a
            name that is not in UTF-8.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        is_plain = path.is_file() or (path.is_dir() and any(path.iterdir()))
        if path.is_symlink() or not is_plain:
            raise ConfigError(f"{path}: is no plain file or empty, and packs hold only files")
        if str(path) != os.fsencode(path).decode(errors="replace"):
            raise ConfigError(f"{path}: its name is not in UTF-8; give it another for a pack")
        if path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            found[path.relative_to(folder).as_posix()] = (path.read_bytes(), executable)
    return found


def write_pack(out: Path, manifest: PackManifest, folders: Mapping[str, Files]) -> str:
    """Write a pack and return its digest.

    Args:
        out: The file, which is there when all is written.
        manifest: What it holds.
        folders: Files of each task, where the tasks are folders.

    Raises:
        ConfigError: Another file is there already, two tasks have one id, or a name is none for a
            folder.
    """
    if out.suffix != SUFFIX:
        raise ConfigError(f"{out}: a pack is called NAME{SUFFIX}")
    _check_names([task.id for task in manifest.tasks], is_folders=bool(folders), where=str(out))
    entries = {_MANIFEST: (manifest.model_dump_json(indent=1).encode() + b"\n", False)}
    entries |= {f"{id}/{name}": one for id, own in folders.items() for name, one in own.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, (data, is_executable) in sorted(entries.items()):
            info = zipfile.ZipInfo(name, _STAMP)
            info.create_system = 3  # Unix, wherever this is
            info.external_attr = (0o755 if is_executable else 0o644) << 16
            archive.writestr(info, data)
    body = buffer.getvalue()
    sha256 = hashlib.sha256(body).hexdigest()
    data = f"{_MAGIC}{sha256}\n".encode() + body
    if out.is_file() and out.read_bytes() != data:
        raise ConfigError(
            f"{out}: is there already, with other content; name another, or remove it"
        )
    with replacing(out) as partial:
        partial.write_bytes(data)
    return sha256


def read_pack(path: Path) -> Pack:
    """Return a pack, every byte of which is as it was written.

    Raises:
        ConfigError: It is none, was damaged or altered, or is of a newer format.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    said = head.decode("ascii", "replace").removeprefix(_MAGIC)
    if said == head.decode("ascii", "replace"):
        raise ConfigError(f"{path}: is no pack of tasks that this version reads")
    found = hashlib.sha256(body).hexdigest()
    if said != found:
        raise ConfigError(
            f"{path}: was damaged or altered: its SHA-256 is {found[:16]}, and {said[:16]} was "
            "written; get it anew"
        )
    try:
        return _parsed(path, found, body)
    except (KeyError, zipfile.BadZipFile, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: is no pack of this version: {reason}") from error


def _parsed(path: Path, sha256: str, body: bytes) -> Pack:
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        manifest = PackManifest.model_validate_json(archive.read(_MANIFEST))
        ids = [task.id for task in manifest.tasks]
        _check_names(ids, is_folders=not manifest.env, where=str(path))
        own: dict[str, dict[str, tuple[bytes, bool]]]
        own = {} if manifest.env else {id: {} for id in ids}
        for info in (one for one in archive.infolist() if one.filename != _MANIFEST):
            _check_path(info.filename, path)
            id, _, name = info.filename.partition("/")
            if id not in own:
                raise ConfigError(f"{path}: {info.filename} belongs to no task of the manifest")
            own[id][name] = (archive.read(info), bool((info.external_attr >> 16) & 0o100))
    for task in manifest.tasks if own else ():
        if (found := digest(own[task.id])) != task.sha256:
            raise ConfigError(
                f"{path}: task {task.id}: was altered: its SHA-256 is {found[:16]}, and "
                f"{task.sha256[:16]} is in the manifest"
            )
    return Pack(path=path, sha256=sha256, manifest=manifest, folders=own)


def _check_path(name: str, path: Path) -> None:
    parts = PurePosixPath(name).parts
    if "/".join(parts) != name or len(parts) < 2 or ".." in parts or parts[0] == "/":
        raise ConfigError(f"{path}: holds {name!r}, which is no place in a task folder")


def _check_names(ids: Sequence[str], *, is_folders: bool, where: str) -> None:
    for id, times in Counter(ids).items():
        if times > 1:
            raise ConfigError(f"{where}: two tasks are called {id!r}")
        if is_folders and _FOLDER.fullmatch(id) is None:
            raise ConfigError(f"{where}: {id!r} is no name of a folder; letters, digits, . - _")


def report_of(file: Path) -> dict[str, Any]:
    """Return what ``turngym check task --json`` wrote into ``file``.

    Raises:
        ConfigError: It is something else.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if {"subject", "ok", "reports"} <= found.keys():
            return dict(found)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: cannot be read as a report: {error}") from error
    raise ConfigError(f"{file}: is no report; wanted what 'turngym check task --json' prints")
