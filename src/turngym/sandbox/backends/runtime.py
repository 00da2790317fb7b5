"""The small folder that every sandbox mounts: an interpreter of its own and the guest.

Images then need no Python, and what a policy does to the image's Python does not matter. Made once
from the interpreter that runs turngym, and kept in the cache folder under the digest of its parts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from turngym.errors import SandboxRefused

MOUNT = "/.turngym"
_IMPORTS = (
    "_ctypes _socket ctypes encodings.ascii encodings.latin_1 fcntl os resource select termios"
)
"""What the guest imports, and the encodings that a name or a locale may call for."""
_FROZEN = ("_collections_abc", "abc", "codecs", "io", "os")
"""Often built into the interpreter, which still looks for their files to find its library."""
_GUEST = Path(__file__).parents[1] / "guest"


def cache_folder() -> Path:
    """Return the folder for what is worth keeping between runs, made if need be.

    ``TURNGYM_CACHE`` overrides ``~/.cache/turngym``.

    Raises:
        SandboxRefused: It cannot be made, or others could write to it.
    """
    base = os.environ.get("TURNGYM_CACHE") or os.path.expanduser("~/.cache/turngym")
    folder = Path(base) / "sandbox"
    hint = "Set TURNGYM_CACHE to a folder of your own with some free space"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        found = folder.stat()
    except OSError as error:
        raise SandboxRefused(
            f"the cache folder {str(folder)!r} cannot be made", str(error), hint
        ) from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        evidence = f"owner {found.st_uid}, mode {found.st_mode & 0o777:o}"
        raise SandboxRefused(
            f"the cache folder {str(folder)!r} can be written by others", evidence, hint
        )
    return folder


@functools.cache
def runtime_folder() -> Path:
    """Return the runtime folder, made if need be.

    Raises:
        SandboxRefused: It cannot be made, for example on a full disk.
    """
    sources = [Path(sys._base_executable), *sorted(_GUEST.glob("*.py"))]  # type: ignore[attr-defined]  # the interpreter below a virtual environment
    key = hashlib.sha256(f"5 {sys.version}".encode())
    for source in sources:
        key.update(source.name.encode() + source.read_bytes())
    target = cache_folder() / f"runtime-{key.hexdigest()[:16]}"
    try:
        return made_once(target, lambda fresh: _fill(fresh, sources[0]))
    except OSError as error:
        raise SandboxRefused(
            "the runtime of sandboxes cannot be written", str(error),
            f"Free some space in {str(target.parent)!r}, or set TURNGYM_CACHE",
        ) from None  # fmt: skip


def made_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """Return the folder ``target`` of a cache; where it is missing it is made by ``fill``.

    It is filled beside its place and renamed when it is whole, so that no other process, nor a run
    after an interrupted one, finds half of it. One that is faster wins.

    Raises:
        OSError: It cannot be made.
    """
    if target.exists():
        return target
    fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}-new-", dir=target.parent))
    try:
        fill(fresh)
        fresh.chmod(0o755)
        fresh.rename(target)
    except OSError:
        if not target.exists():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def command(settings: str, mount: str = MOUNT) -> list[str]:
    """Return the command of the guest with these ``settings``, its runtime folder at ``mount``."""
    # The mark shows in the host's list of processes whose guest this is.
    mark = f"owner={os.getpid()}"
    code = f"from turngym.sandbox.guest.main import main; main({settings!r}, {mark!r})"
    python = [f"{mount}/bin/python3", "-I", "-S", "-c", code]
    if not (runtime_folder() / "lib" / "loader").exists():
        return python
    return [f"{mount}/lib/loader", "--library-path", f"{mount}/lib/so", *python]


def _fill(folder: Path, executable: Path) -> None:
    """Copy the interpreter, the libraries it needs, and the modules that the guest imports."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = folder / "lib" / version
    shared = folder / "lib" / "so"
    for made in (folder / "bin", library / "lib-dynload", shared):
        made.mkdir(parents=True)
    shutil.copy(executable.resolve(), folder / "bin" / "python3")
    binaries = [executable.resolve()]
    for name, file in _modules(executable):
        if file.suffix == ".so":
            shutil.copy(file, library / "lib-dynload")
            binaries.append(file)
        else:
            place = f"{name}.__init__" if file.stem == "__init__" else name
            _compile(file, library / (place.replace(".", "/") + ".pyc"))
    for binary in binaries:
        _copy_libraries(binary, folder)
    _strip([folder / "bin" / "python3", *folder.rglob("*.so*")])
    guest = library / "turngym" / "sandbox" / "guest"
    for source in _GUEST.glob("*.py"):
        _compile(source, guest / f"{source.stem}.pyc")
    for package in (guest.parent, guest.parent.parent):
        shutil.copy(guest / "__init__.pyc", package)


def _modules(executable: Path) -> list[tuple[str, Path]]:
    """Return name and file of all that gets loaded when the guest imports what it needs."""
    code = (
        f"import sys, {', '.join(_IMPORTS.split())}\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    file = getattr(module, '__file__', None)\n"
        "    if file and name == module.__name__: print(name, file)\n"
    )
    listed = subprocess.run(
        [str(executable), "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise OSError(f"{executable}: {listed.stderr.strip().splitlines()[-1]}")
    found = dict(line.split(" ", 1) for line in listed.stdout.splitlines())
    stdlib = sysconfig.get_path("stdlib")
    found |= {name: f"{stdlib}/{name}.py" for name in _FROZEN}
    return [(name, Path(file)) for name, file in found.items()]


def _compile(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(
        str(source), cfile=str(target), dfile=source.name, doraise=True, optimize=0,
        invalidation_mode=mode,
    )  # fmt: skip
    target.chmod(0o644)


def _copy_libraries(binary: Path, folder: Path) -> None:
    """Copy what ``binary`` is linked against, and the loader that puts it together."""
    listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed.stdout, re.MULTILINE):
        target = folder / "lib" / "so" / Path(name).name
        if not target.exists():
            shutil.copy(Path(path).resolve(), target)
    loaders = re.findall(r"^\s*(/\S*ld[-.]\S+) \(", listed.stdout, re.MULTILINE)
    loader = folder / "lib" / "loader"
    if loaders and not loader.exists():
        shutil.copy(Path(loaders[0]).resolve(), loader)
        loader.chmod(0o755)


def _strip(binaries: Sequence[Path]) -> None:
    """Remove what only debuggers read, often most of a library; without binutils it stays."""
    if program := shutil.which("strip"):
        line = [program, "--strip-debug", *map(str, binaries)]
        subprocess.run(line, capture_output=True, check=False)
