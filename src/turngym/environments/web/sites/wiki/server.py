"""Serves the wiki: PHP's own server, and a bridge to it from a Unix socket.

Usage: python server.py DATA SOCKET     (says when it listens, then serves until killed)
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from unix_server import say_ready

_HERE = Path(__file__).resolve().parent
_WORKERS = 2


def main(data: Path, path: str, program: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            "php", "-d", "opcache.enable=1", "-d", "opcache.enable_cli=1",
            "-d", "opcache.validate_timestamps=0", "-d", "display_errors=0",
            "-S", f"127.0.0.1:{port}", "-t", str(program), str(_HERE / "router.php"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "MW_CONFIG_FILE": str(_HERE / "LocalSettings.php"),
            "PHP_CLI_SERVER_WORKERS": str(_WORKERS),
            "WIKI_DATA": str(data),
        },
    )  # fmt: skip
    try:
        asyncio.run(_bridge(path, port))
    finally:
        server.kill()


async def _bridge(path: str, port: int) -> None:
    """Copy every connection to the socket to one of the server, and back."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))

    for _ in range(200):
        with suppress(OSError):
            _, probe = await asyncio.open_connection("127.0.0.1", port)
            probe.close()
            break
        await asyncio.sleep(0.05)
    listener = await asyncio.start_unix_server(connected, path)
    say_ready()
    async with listener:
        await listener.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    seed = Path(sys.argv[1]).resolve()
    main(seed, sys.argv[2], Path((seed / "program").read_text("utf-8")))
