"""The tools of a workspace: run a command, look, search, edit, create."""

from __future__ import annotations

import re
import shlex
from itertools import islice

from turngym.environments.workspace.outputs import cut, decode, normalise
from turngym.environments.workspace.tools import Done, Parameter, Tool, Workspace
from turngym.errors import SandboxFileError, SandboxFileTooLarge
from turngym.sandbox.backends.guest_sandbox import GuestSandbox

VIEW_LINES = 200
MAX_FILE_BYTES = 1 << 20
"""Largest file that is shown, edited or created."""
_MAX_HITS = 50
_MAX_SEARCH_CHARS = 1_000
_LINE_CHARS = 300
_KEPT_BYTES = 1 << 18
_GIT_DATES = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2020-01-02T00:00:00+0000")
"""The name of a commit holds its time: the same commands make the same commits on every day."""


async def bash(workspace: Workspace, command: str) -> Done:
    """Run a command; its outputs stand in one text, and how it ended when it did not end well."""
    result = await workspace.sandbox.exec(
        command, timeout_s=workspace.timeout_s, max_output=_KEPT_BYTES, env=_GIT_DATES
    )
    parts = [decode(result.stdout), decode(result.stderr)]
    text = normalise("\n".join(part.rstrip("\n") for part in parts if part.strip()))
    total, kept = result.stdout_total + result.stderr_total, len(result.stdout + result.stderr)
    text = cut(text, gone=total - kept)
    if result.timed_out:
        end = f"[stopped after {workspace.timeout_s:g} seconds]"
    elif result.oom_killed:
        end = "[out of memory]"
    elif result.signal is not None:
        end = f"[ended by signal {result.signal}]"
    elif result.exit_code:
        end = f"[exit code {result.exit_code}]"
    else:
        end = "" if text else "[no output]"
    return Done(text="\n".join(part for part in (text, end) if part))


async def view(
    workspace: Workspace, path: str, start: int | None = None, end: int | None = None
) -> Done:
    """Show lines ``start`` to ``end`` of a file, or the entries of a folder."""
    data, problem = await _read(workspace.sandbox, path)
    if data is None:
        listing = await workspace.sandbox.exec(
            ["/usr/bin/ls", "-1Ap", "--", path], timeout_s=10.0, env={"LC_ALL": "C"}
        )
        if listing.ok and decode(listing.stdout).strip() != path:  # a file lists itself
            return Done(text=cut(decode(listing.stdout).rstrip("\n")) or "(empty folder)")
        return _refused(problem)
    if b"\0" in data:
        return _refused(f"{path}: a binary file of {len(data)} bytes.")
    lines = _lines(data.decode("utf-8", "replace"))
    first = 1 if start is None else start
    last = min(len(lines), first + VIEW_LINES - 1 if end is None else end)
    if not lines:
        return Done(text=f"{path}: an empty file")
    if not 1 <= first <= len(lines) or last < first:
        return _refused(f"{path} has lines 1 to {len(lines)}.")
    note = ""
    if not _is_utf8(data):
        note = "\n[not UTF-8: replacement characters stand for what cannot be read]"
    where = f"{path}, lines {first} to {last} of {len(lines)}"
    return Done(text=cut(f"{where}\n{_numbered(lines, first, last)}", 24_000) + note)


async def search(workspace: Workspace, text: str) -> Done:
    """List the lines that hold ``text``."""
    if len(text) > _MAX_SEARCH_CHARS:  # grep takes the square of it for a text that repeats itself
        return _refused(
            f"The text has {len(text)} characters; at most {_MAX_SEARCH_CHARS} are searched for."
        )
    if "\n" in text:
        return _refused("The text has a line break; single lines are searched.")
    # In the locale C, where any bytes are text; the last line says how many there are.
    script = (
        f"/usr/bin/grep -rnIF --exclude-dir=.git -- {shlex.quote(text)} . "
        f"| /usr/bin/cut -b-{4 * _LINE_CHARS} | /usr/bin/sort -t: -k1,1 -k2,2n "
        f"| /usr/bin/sed -n '1,{_MAX_HITS}p;$='"
    )
    result = await workspace.sandbox.exec(
        script, timeout_s=30.0, max_output=_KEPT_BYTES, env={"LC_ALL": "C"}
    )
    hits = [line.removeprefix("./")[:_LINE_CHARS] for line in _lines(decode(result.stdout))]
    if not hits:
        return Done(text=f"No file holds {text[:80]!r}.")
    left = int(hits.pop()) - len(hits)
    return Done(text=cut("\n".join(hits)) + (f"\n[{left} more]" if left else ""))


async def edit(workspace: Workspace, path: str, old: str, new: str) -> Done:
    """Replace ``old`` by ``new``; say where and how it reads now, or why it was not done."""
    data, problem = await _read(workspace.sandbox, path)
    if data is None:
        return _refused(problem)
    if not _is_utf8(data) or b"\0" in data:
        return _refused(f"{path}: not a UTF-8 text file; change it with bash.")
    text = data.decode()
    crlf = [one.replace("\r\n", "\n").replace("\n", "\r\n") for one in (old, new)]
    # A file may have lines of both kinds.
    if "\r\n" in text and (crlf[0] in text or old not in text):
        old, new = crlf
    if not old:
        return _refused("The old text is empty; use create for a new file.")
    if old == new:
        return _refused("Old and new text are the same.")
    if (times := text.count(old)) != 1:
        return _refused(_not_once(path, text, old, times))
    start = text.index(old)
    changed = text[:start] + new + text[start + len(old) :]
    if (failure := await _write(workspace.sandbox, path, changed.encode())) is not None:
        return _refused(failure)
    first = text.count("\n", 0, start) + 1
    return Done(text=f"{path} changed:\n{_around(changed, first, new.count(chr(10)) + 1)}")


async def create(workspace: Workspace, path: str, content: str) -> Done:
    """Write a file."""
    data = content.encode()
    if data and not data.endswith(b"\n"):
        data += b"\n"
    if len(data) > MAX_FILE_BYTES:
        return _refused(f"{path}: {len(data)} bytes are more than {MAX_FILE_BYTES}.")
    if (failure := await _write(workspace.sandbox, path, data)) is not None:
        return _refused(failure)
    return Done(text=f"{path} written, {data.count(chr(10).encode())} lines")


def _not_once(path: str, text: str, old: str, times: int) -> str:
    """Return why an edit does not fit, with what stands nearest."""
    if times > 1:
        found = islice(re.finditer(re.escape(old), text), 5)
        where = ", ".join(str(text.count("\n", 0, one.start()) + 1) for one in found)
        return f"{path} holds the old text {times} times (lines {where}): give more of it."
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = _lines(text)
    near = [n for n, line in enumerate(lines, start=1) if wanted and wanted in line]
    if near:
        return (
            f"{path} does not hold the old text; its first line stands at line {near[0]}:\n"
            f"{_around(text, near[0], old.count(chr(10)) + 1)}"
        )
    squeezed = re.sub(r"\s+", "", wanted)
    for number, line in enumerate(lines, start=1):
        if squeezed and squeezed in re.sub(r"\s+", "", line):
            return f"{path} does not hold the old text; line {number} differs in blanks: {line!r}"
    return f"{path} does not hold the old text."


def _around(text: str, first: int, count: int) -> str:
    """Return lines ``first`` and following, with two before and after."""
    lines = _lines(text)
    return cut(_numbered(lines, max(1, first - 2), min(len(lines), first + count + 1)), 3_000)


def _numbered(lines: list[str], first: int, last: int) -> str:
    width = len(str(last))
    return "\n".join(f"{n:{width}} {lines[n - 1][:_LINE_CHARS]}" for n in range(first, last + 1))


def _lines(text: str) -> list[str]:
    """Return the lines as grep counts them: a form feed, among others, ends none."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


async def _read(sandbox: GuestSandbox, path: str) -> tuple[bytes | None, str]:
    """Return the contents of a file, or None and why not."""
    try:
        return await sandbox.read_file(path, max_bytes=MAX_FILE_BYTES), ""
    except SandboxFileTooLarge:
        return None, f"{path}: larger than {MAX_FILE_BYTES} bytes; look at it with bash."
    except SandboxFileError as error:
        return None, f"{path}: {error.strerror or error}."
    except ValueError as error:
        return None, f"{path[:80]!r}: {error}."


async def _write(sandbox: GuestSandbox, path: str, data: bytes) -> str | None:
    """Write a file, keeping its mode; return why that is not possible."""
    try:
        found = await sandbox.exec(["/usr/bin/stat", "-c", "%a", "--", path], timeout_s=10.0)
        mode = int(found.stdout, 8) & 0o777 if found.ok else 0o644
        await sandbox.write_file(path, data, mode=mode)
    except SandboxFileError as error:
        return f"{path}: cannot be written: {error.strerror or error}."
    except ValueError as error:
        return f"{path[:80]!r}: {error}."
    return None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refused(problem: str) -> Done:
    return Done(text=problem, problem=problem.splitlines()[0])


_PATH = Parameter(name="path", help="relative to the workspace")
BASH = Tool(
    name="bash",
    run=bash,
    writes=True,
    help="runs a command or script in the workspace; each call is a new shell",
    parameters=(Parameter(name="command", kind="rest"),),
)
VIEW = Tool(
    name="view",
    run=view,
    help="shows a file with line numbers, or what a folder holds",
    parameters=(
        _PATH,
        Parameter(name="start", kind="int", help="first line", is_optional=True),
        Parameter(name="end", kind="int", help="last line", is_optional=True),
    ),
)
SEARCH = Tool(
    name="search",
    run=search,
    help="lists the lines that hold a text, in all files",
    parameters=(Parameter(name="text", kind="rest", help="taken literally"),),
)
EDIT = Tool(
    name="edit",
    run=edit,
    writes=True,
    help="replaces a text that occurs exactly once in a file",
    parameters=(
        _PATH,
        Parameter(name="old", kind="body", help="text to replace"),
        Parameter(name="new", kind="body", help="what takes its place"),
    ),
)
CREATE = Tool(
    name="create", run=create, writes=True, help="writes a file, in place of one that is there",
    parameters=(_PATH, Parameter(name="content", kind="body", help="the whole file")),
)  # fmt: skip
SUBMIT = Tool(name="submit", help="ends the episode; your work is then judged")
