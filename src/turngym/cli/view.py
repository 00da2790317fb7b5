"""``turngym view``: look at what happened in a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngym.cli.output import progress, say
from turngym.errors import ConfigError

if TYPE_CHECKING:
    from turngym.reports.viewer.library import Library


def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a file of trajectories.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained page there instead.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")
    ] = 0,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Show episodes, learning curves and timeline in a browser on this machine; Ctrl-C ends it."""
    from turngym.reports.integrity import check_shown
    from turngym.reports.viewer.library import Library

    for note in check_shown(run):
        say(note)
    if html is not None:
        library = Library(run)
        with progress("episodes", None) as advance:
            library.scan(lambda: advance(len(library.rows), ""))
        _write(library, html)
        return
    from turngym.reports.viewer.server import HOST, Viewer, make_server

    with make_server(Viewer(run), port) as server:
        address = f"http://{HOST}:{server.server_port}/"
        print(address, flush=True)
        say("Ctrl-C ends it")
        if browse:
            import webbrowser

            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _write(library: Library, html: Path) -> None:
    from turngym.reports.viewer.page import write_page

    try:
        write_page(library, html)
    except OSError as error:
        raise ConfigError(f"--html {html}: cannot be written ({error.strerror})") from error
    broken = f", {library.broken} lines left out" if library.broken else ""
    size = html.stat().st_size / 1e6
    say(f"{html}: {len(library.rows)} episodes{broken}, {size:.1f} MB")
