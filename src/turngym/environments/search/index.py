"""Indexes on disk: built once from a corpus, frozen with a hash, opened read only.

An index is a folder: ``documents.sqlite`` (every document, and SQLite's own full-text index), one
folder or file per further engine, and ``manifest.json``, which is written last. A build that was
killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from turngym.environments.search.backends.base import MAX_RESULTS, SearchBackend
from turngym.environments.search.backends.sqlite import (
    DOCUMENTS_SCHEMA,
    FTS_SCHEMA,
    SqliteBackend,
    insert_documents,
    need_fts5,
)
from turngym.environments.search.corpus import START, Position, Record, Source
from turngym.environments.search.documents import Document, Hit
from turngym.errors import ConfigError, unknown_name
from turngym.records import write_json

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


Advance = Callable[[int, str], None]
"""Progress callback: how far the source is read, in its own units, and a note."""

_BATCH = 2_000
_HASH_BITS = 256
_PROGRESS_SCHEMA = """
CREATE TABLE progress(
  fingerprint TEXT, offset INTEGER, line INTEGER, documents INTEGER, skipped INTEGER, hash TEXT
)
"""


@dataclass(slots=True)
class _Progress:
    position: Position = START
    documents: int = 0
    skipped: int = 0
    hash: int = 0


def build_index(
    source: Source,
    folder: Path,
    *,
    engines: Sequence[str] = ("sqlite",),
    skip_bad: bool = False,
    fresh: bool = False,
    advance: Advance = lambda _done, _note: None,
) -> Manifest:
    """Build, or go on building, the index of ``source`` in ``folder``.

    Args:
        source: What to index.
        folder: Made if need be.
        engines: ``"sqlite"`` and names in ``ENGINES``; ``"dense:ENCODER"`` says with what.
        skip_bad: Leave out records that cannot be read, and count them.
        fresh: Throw away what is in ``folder`` already.
        advance: Called with the progress.

    Raises:
        ConfigError: A record cannot be read or its id is taken, the corpus is empty, or the folder
            holds something else or an index of another corpus.
        MissingExtraError: An engine is not installed.
    """
    need_fts5()
    wanted = dict(_named(engine) for engine in engines)
    if fresh and (folder / DATABASE).exists():
        _remove(folder)
    _refuse_other_contents(folder)
    earlier = read_manifest(folder).engines if (folder / MANIFEST).is_file() else ()
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / DATABASE
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        progress = _resume(connection, source)
        (folder / MANIFEST).unlink(missing_ok=True)  # until all is done
        _fill(connection, source, progress, skip_bad=skip_bad, advance=advance)
    except sqlite3.Error as error:
        raise ConfigError(
            f"search index {folder}: {error}; free what is missing and run this again, or begin "
            "anew with --fresh"
        ) from error
    finally:
        connection.close()
    for name, argument in wanted.items():
        if name != "sqlite":
            advance(source.size(), f"engine {name}")
            shutil.rmtree(folder / name, ignore_errors=True)
            _part(ENGINES[name][0])(database, folder / name, *filter(None, [argument]))
    return _finish(folder, source, (*earlier, *wanted), progress)


def open_index(folder: Path, engine: str = "sqlite") -> SearchBackend:
    """Return the index in ``folder``, to be searched by ``engine``.

    Args:
        folder: That ``build_index`` filled.
        engine: ``"sqlite"``, ``"hybrid"`` or a key of ``ENGINES``.

    Raises:
        ConfigError: There is no finished index, or it was built without this engine.
        MissingExtraError: The engine is not installed.
    """
    manifest = read_manifest(folder)
    if engine not in ("sqlite", HYBRID, *ENGINES):
        raise unknown_name("search engine", engine, ["sqlite", HYBRID, *ENGINES])
    for needed in ("sqlite", "dense") if engine == HYBRID else (engine,):
        if needed not in manifest.engines:
            raise ConfigError(
                f"search index {folder}: built for {', '.join(manifest.engines)}, not for "
                f"{needed!r}; run 'turngym corpus build' again with --engine {needed}"
            )
    if engine == HYBRID:
        return HybridBackend([open_index(folder, "sqlite"), open_index(folder, "dense")])
    if engine == "sqlite":
        return SqliteBackend(folder / DATABASE)
    backend: SearchBackend = _part(ENGINES[engine][1])(folder / DATABASE, folder / engine)
    return backend


_BACKENDS = "turngym.environments.search.backends"
ENGINES: Mapping[str, tuple[str, str]] = {
    "tantivy": (f"{_BACKENDS}.tantivy:build", f"{_BACKENDS}.tantivy:TantivyBackend"),
    "bm25s": (f"{_BACKENDS}.bm25s:build", f"{_BACKENDS}.bm25s:Bm25sBackend"),
    "dense": (f"{_BACKENDS}.dense:build", f"{_BACKENDS}.dense:open_built"),
}
"""Further engines: name to what builds and what opens an index, as ``"module:function"``."""
HYBRID = "hybrid"
"""Words and meaning together: searched by ``sqlite`` and ``dense``."""


def _named(engine: str) -> tuple[str, str]:
    name, _, argument = engine.partition(":")
    if name != "sqlite" and name not in ENGINES:
        raise unknown_name("search engine", name, ["sqlite", *ENGINES])
    if argument and name in ("bm25s", "tantivy"):
        raise ConfigError(f"search engine {engine!r}: it takes nothing after a colon")
    return name, argument


def _part(name: str) -> Any:  # a function of a module that may need an extra
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _remove(folder: Path) -> None:
    """Delete an index, and nothing else that lies in its folder."""
    for file in (*folder.glob(f"{DATABASE}*"), folder / MANIFEST):
        file.unlink(missing_ok=True)
    for engine in ENGINES:
        shutil.rmtree(folder / engine, ignore_errors=True)


def _refuse_other_contents(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"search index {folder}: it is a file, wanted a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / DATABASE).is_file():
        raise ConfigError(f"search index {folder}: the folder holds something else; name a new one")


def _fill(
    connection: sqlite3.Connection,
    source: Source,
    progress: _Progress,
    *,
    skip_bad: bool,
    advance: Advance,
) -> None:
    """Read what is left of ``source`` into the database, a batch a transaction."""
    batch: list[Record] = []
    for record in source.records(progress.position):
        if record.document is None and not skip_bad:
            raise _bad(record, record.problem)
        batch.append(record)
        if len(batch) == _BATCH:
            _store(connection, batch, progress, skip_bad=skip_bad)
            batch = []
            advance(progress.position[0], f"{progress.documents} documents")
    if batch:
        _store(connection, batch, progress, skip_bad=skip_bad)
    advance(source.size(), f"{progress.documents} documents")
    if progress.documents == 0:
        raise ConfigError(f"corpus {source.name}: it holds no document")
    connection.execute("INSERT INTO fts(fts) VALUES ('optimize')")
    connection.execute("PRAGMA journal_mode=DELETE")


def _resume(connection: sqlite3.Connection, source: Source) -> _Progress:
    """Return how far an earlier build came, or make the tables of a new one."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'progress'").fetchone()
    if known is None:
        connection.execute("BEGIN")
        for statement in (DOCUMENTS_SCHEMA, FTS_SCHEMA, _PROGRESS_SCHEMA):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO progress VALUES (?, 0, 0, 0, 0, '0')", (source.fingerprint(),)
        )
        connection.execute("COMMIT")
    row = connection.execute("SELECT * FROM progress").fetchone()
    if row[0] != source.fingerprint():
        raise ConfigError(
            f"corpus {source.name}: it is not what this index was begun with; --fresh builds anew"
        )
    return _Progress((row[1], row[2]), row[3], row[4], int(row[5], 16))


def _store(
    connection: sqlite3.Connection, batch: list[Record], progress: _Progress, *, skip_bad: bool
) -> None:
    """Write one batch and how far it goes, both or neither."""
    first = progress.documents
    connection.execute("BEGIN")
    try:
        stored = [one for one in batch if _insert(connection, one, skip_bad=skip_bad)]
        connection.execute(
            "INSERT INTO fts(rowid, title, text) SELECT number, title, text FROM documents "
            "WHERE number > ?",
            (first,),
        )
        progress.position = batch[-1].after
        progress.documents += len(stored)
        progress.skipped += len(batch) - len(stored)
        progress.hash = (progress.hash + sum(map(_digest, stored))) % (1 << _HASH_BITS)
        connection.execute(
            "UPDATE progress SET offset = ?, line = ?, documents = ?, skipped = ?, hash = ?",
            (*progress.position, progress.documents, progress.skipped, f"{progress.hash:x}"),
        )
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, record: Record, *, skip_bad: bool) -> bool:
    """Insert the document of ``record`` and return True, or False when it is left out."""
    document = record.document
    if document is None:
        return False
    try:
        insert_documents(connection, [document])
    except ConfigError as error:
        if skip_bad:
            return False
        raise _bad(record, str(error)) from error
    return True


def _bad(record: Record, problem: str) -> ConfigError:
    return ConfigError(f"{record.where}: {problem}; --skip-bad leaves such records out")


def _digest(record: Record) -> int:
    document = record.document
    assert document is not None
    content = json.dumps([document.id, document.title, document.text], ensure_ascii=False)
    return int.from_bytes(hashlib.sha256(content.encode()).digest(), "big")


def _finish(folder: Path, source: Source, engines: Sequence[str], progress: _Progress) -> Manifest:
    manifest = Manifest(
        num_documents=progress.documents,
        num_skipped=progress.skipped,
        sha256=f"{progress.hash:064x}",
        source=source.name,
        licence=source.licence,
        engines=tuple(dict.fromkeys(["sqlite", *engines])),
        size_bytes=sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()),
    )
    write_json(folder / MANIFEST, {"format": FORMAT, "version": VERSION, **asdict(manifest)})
    return manifest


_RANK_OFFSET = 60
_DEPTH = 3
"""Results asked of each engine, as a multiple of what is wanted."""


class HybridBackend:
    """Ranks documents by ``sum over engines of 1 / (60 + rank)``, rank counted from 1.

    Args:
        backends: Engines over the same documents, one or more.

    Source:
        Cormack et al. 2009, "Reciprocal rank fusion outperforms Condorcet and individual rank
        learning methods", equation 1.
    """

    name = "hybrid"

    def __init__(self, backends: Sequence[SearchBackend]) -> None:
        if not backends:
            raise ConfigError("HybridBackend: wanted at least one engine")
        self._backends = tuple(backends)

    def search(self, query: str, k: int) -> list[Hit]:
        """Return the ``k`` best of all engines for ``query``; ties go to the earlier engine."""
        scores: dict[str, float] = {}
        hits: dict[str, Hit] = {}
        for backend in self._backends:
            found = backend.search(query, min(MAX_RESULTS, _DEPTH * k))
            for rank, hit in enumerate(found, start=1):
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_RANK_OFFSET + rank)
                hits.setdefault(hit.id, hit)
        best = sorted(scores, key=lambda doc_id: -scores[doc_id])[:k]
        return [replace(hits[doc_id], score=scores[doc_id]) for doc_id in best]

    def get(self, doc_id: str) -> Document | None:
        return self._backends[0].get(doc_id)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()
