"""What says that an index is finished, and what it holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from turngym.errors import ConfigError

FORMAT, VERSION = "turngym.corpus", 1
DATABASE, MANIFEST = "documents.sqlite", "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an index holds."""

    num_documents: int
    num_skipped: int
    """Records that could not be read, and were left out because that was asked for."""
    sha256: str
    """Of ids, titles and texts, whatever their order."""
    source: str
    licence: str
    engines: tuple[str, ...]
    size_bytes: int
    """Of the whole folder."""


def read_manifest(folder: Path) -> Manifest:
    """Return what the index in ``folder`` holds.

    Raises:
        ConfigError: There is none, it is unfinished, or of another version.
    """
    file = folder / MANIFEST
    if not file.is_file():
        if (folder / DATABASE).is_file():
            raise ConfigError(
                f"search index {folder}: its build was interrupted; run 'turngym corpus build' "
                "again to go on"
            )
        raise ConfigError(f"search index {folder}: there is none; see 'turngym corpus build'")
    try:
        value = json.loads(file.read_text("utf-8"))
        found, version = value.pop("format"), value.pop("version")
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ConfigError(f"{file}: not the manifest of a search index ({error!r})") from error
    if found != FORMAT or version != VERSION:
        raise ConfigError(
            f"{file}: an index of format {found!r} version {version!r}; this turngym reads "
            f"{FORMAT!r} version {VERSION}; build it again with --fresh"
        )
    try:
        return Manifest(**{**value, "engines": tuple(value["engines"])})
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{file}: the manifest is incomplete ({error})") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest``, whole or not at all."""
    partial = folder / f"{MANIFEST}.partial"
    value = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    partial.replace(folder / MANIFEST)
