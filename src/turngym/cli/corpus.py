"""``turngym corpus``: build, look at and query the index of a corpus."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from turngym.cli.arguments import Json
from turngym.cli.output import print_found, print_json, progress, say
from turngym.cli.play import interruptible
from turngym.plugins import import_function
from turngym.reports.texts import amount

app = typer.Typer(help="Build and query the index of a corpus, for search environments.")

_Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]


@app.command("build")
def build(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A .jsonl or .parquet file, a folder of text, Markdown or HTML, 'packages' (this "
            "machine's package index) or 'docs:FOLDER' (paragraphs of installed documentation).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the index; goes on with a begun one.")],
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Besides sqlite: tantivy, bm25s, dense. May be repeated."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out records that cannot be read.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew.")] = False,
    as_json: Json = False,
) -> None:
    """Index a corpus. A build that was interrupted goes on where it was."""
    from turngym.environments.search.index import build_index
    from turngym.environments.search.packages import find_source

    found = find_source(source)
    started = time.perf_counter()
    with interruptible(), progress(f"indexing {found.name}", found.size()) as advance:
        manifest = build_index(
            found,
            out,
            engines=["sqlite", *(engine or [])],
            skip_bad=skip_bad,
            fresh=fresh,
            advance=advance,
        )
    seconds = time.perf_counter() - started
    skipped = f", {manifest.num_skipped} left out" if manifest.num_skipped else ""
    text = (
        f"{out}: {amount(manifest.num_documents, 'document')}{skipped}, "
        f"{manifest.size_bytes / 1e6:.1f} MB, {seconds:.1f} s, sha256 {manifest.sha256[:16]}"
    )
    print_found({**asdict(manifest), "seconds": seconds}, text, as_json=as_json)


@app.command("show")
def show(folder: _Folder, as_json: Json = False) -> None:
    """Say what an index holds."""
    from turngym.environments.search.index import read_manifest

    record = asdict(read_manifest(folder))
    shown = {k: ", ".join(one) if isinstance(one, tuple) else one for k, one in record.items()}
    print_found(record, "\n".join(f"{k}: {one}" for k, one in shown.items()), as_json=as_json)


@app.command("search")
def search(
    folder: _Folder,
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="What to look for.")],
    engine: Annotated[str, typer.Option(help="Which engine of the index answers.")] = "sqlite",
    k: Annotated[int, typer.Option(min=1, max=100, help="Results.")] = 5,
    as_json: Json = False,
) -> None:
    """Search an index as an agent does."""
    from turngym.environments.search.documents import snippet, terms
    from turngym.environments.search.index import open_index

    text = " ".join(query)
    with closing(open_index(folder, engine)) as backend:
        started = time.perf_counter()
        hits = backend.search(text, k)
        milliseconds = 1e3 * (time.perf_counter() - started)
    words = frozenset(terms(text))
    if as_json:
        print_json([asdict(hit) for hit in hits])
        return
    for number, hit in enumerate(hits, start=1):
        print(f"{number}. {hit.id}  {hit.title}: {snippet(hit.text, words, 30)}")
    say(f"{amount(len(hits), 'result')} in {milliseconds:.1f} ms")


@app.command("propose")
def propose(
    folder: _Folder,
    out: Annotated[Path, typer.Option(help="JSONL file for the questions.")],
    proposer: Annotated[
        str | None,
        typer.Option(help="module:function that writes them; otherwise sentences with a gap."),
    ] = None,
    attempts: Annotated[int, typer.Option(min=1, help="Documents to write about.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Root of all randomness.")] = 0,
    as_json: Json = False,
) -> None:
    """Write questions about a corpus, and keep those that can be found but not given away."""
    from turngym.environments.search.backends.sqlite import SqliteBackend
    from turngym.environments.search.index import DATABASE, read_manifest
    from turngym.environments.search.questions import write_questions
    from turngym.environments.search.selfplay import (
        ClozeProposer,
        ProposalCounts,
        self_play_questions,
    )

    read_manifest(folder)
    write = ClozeProposer() if proposer is None else import_function("proposer", proposer)
    counts = ProposalCounts()
    with closing(SqliteBackend(folder / DATABASE)) as backend, interruptible():
        found = self_play_questions(write, backend, seed=seed, attempts=attempts, counts=counts)
        number = write_questions(out, found)
    if as_json:
        print_json({"accepted": number, "rejected": dict(counts.rejected)})
        return
    print(f"{out}: {amount(number, 'question')} of {amount(attempts, 'attempt')}")
    for reason, times in counts.rejected.most_common():
        say(f"  rejected {times}: {reason}")
