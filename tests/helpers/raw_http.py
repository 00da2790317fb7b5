"""One HTTP request with exactly the headers and bytes that a test wants to send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

JSON = {"content-type": "application/json"}


async def send(
    url: str,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str | None] | None = None,
) -> tuple[int, Any]:
    """Send one request and return the status and the body, from JSON where it is that.

    Args:
        url: Where the server is; a path in it stands before ``path``.
        path: Of the request.
        body: Bytes, sent as they are; anything else is sent as JSON.
        method: Of the request.
        headers: Instead of those of a usual request; None leaves one out.
    """
    place = urlsplit(url)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    rows = {"host": place.netloc, **JSON, "content-length": str(len(raw)), **(headers or {})}
    head = f"{method} {place.path}{path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in rows.items() if value is not None)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(head.encode("latin-1") + b"connection: close\r\n\r\n" + raw)
        answer = await reader.read()
    finally:
        writer.close()
    top, _, content = answer.partition(b"\r\n\r\n")
    try:
        found = json.loads(content)
    except ValueError:
        found = content.decode()
    return int(top.split()[1]), found
