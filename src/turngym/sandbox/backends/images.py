"""What a sandbox sees as its root, and where that comes from.

``host`` is this machine's own /usr, read-only, with an /etc of our own making: no account, no
configuration, no secret of the host. Anything else is a root folder or a tar of one, unpacked once
into the cache under its digest. `machine_image` collects installed Debian packages into such a
folder, for engines without a registry.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from turngym.errors import SandboxRefused
from turngym.sandbox.backends.runtime import cache_folder, made_once
from turngym.sandbox.trees import digest, manifest, unpack

_OWN = frozenset(
    ["dev", "home", "lost+found", "mnt", "opt", "proc", "root", "run", "sys", "tmp", "workspace"]
)
"""Entries of a root folder that a sandbox never takes from it."""
_HOST_ENTRIES = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
_HOST_ETC = (
    "alternatives", "debian_version", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "lsb-release", "magic", "mime.types", "os-release", "pki", "ssl/certs",
    "ssl/openssl.cnf",
)  # fmt: skip
_ETC_FILES = {
    "group": "agent:x:1000:\nnogroup:x:65534:\n",
    "hostname": "sandbox\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "passwd": "agent:x:1000:1000::/home/agent:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n",
    "resolv.conf": "",
    "shells": "/bin/sh\n/bin/bash\n",
}
PACKAGES = (
    "bash", "coreutils", "dash", "diffutils", "findutils", "gawk", "git", "grep", "gzip",
    "libc-bin",
    "libpython3-stdlib", "libpython3.11-minimal", "libpython3.11-stdlib", "make", "mawk", "patch",
    "procps", "python3", "python3-minimal", "python3.11", "python3.11-minimal", "sed", "tar",
    "util-linux",
)  # fmt: skip
"""What `machine_image` takes, as far as it is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootEntry:
    """One top-level entry of a sandbox's root."""

    name: str
    source: str
    """Where it is on the host; "" for a link."""
    link: str = ""
    """Target of a link."""


def root_entries(folder: Path, *, only: tuple[str, ...] = ()) -> list[RootEntry]:
    """Return the entries of a root folder that a sandbox takes, ``only`` these if given.

    Raises:
        SandboxRefused: It is missing or has no shell.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SandboxRefused(
            f"the image {str(folder)!r} cannot be read",
            str(error),
            "Name a root folder, a tar of one, or 'host'",
        ) from None
    if not any(os.path.lexists(folder / place) for place in ("bin/sh", "usr/bin/sh", "bin/bash")):
        raise SandboxRefused(
            f"the image {str(folder)!r} has no shell", f"it holds {', '.join(names)[:200]}",
            "Name a folder that holds a whole system, with bin and usr",
        )  # fmt: skip
    entries = []
    for name in names:
        path = folder / name
        if name in _OWN or (only and name not in only):
            continue
        if path.is_symlink():
            entries.append(RootEntry(name=name, source="", link=os.readlink(path)))
        elif path.is_dir():
            entries.append(RootEntry(name=name, source=str(path)))
    return entries


def host_entries() -> list[RootEntry]:
    """Return the part of the host's root that the image ``host`` shows."""
    return root_entries(Path("/"), only=_HOST_ENTRIES)


def host_etc() -> Path:
    """Return a folder for /etc that holds what programs need to run, made if need be.

    A process looks at the host's /etc once: it holds hundreds of links, and each display begins
    with this folder.

    Raises:
        SandboxRefused: There is no room for it.
    """
    folder = cache_folder()
    made = _made_etc(folder)
    if not made.exists():  # somebody emptied the cache
        _made_etc.cache_clear()
    return _made_etc(folder)


@cache
def _made_etc(folder: Path) -> Path:
    try:
        with tempfile.TemporaryDirectory(prefix="etc-new-", dir=folder) as temporary:
            fresh = Path(temporary)
            for name, text in _ETC_FILES.items():
                (fresh / name).write_text(text)
            for name in _HOST_ETC:
                _copy_readable(Path("/etc", name), fresh / name)
            (fresh / "mtab").symlink_to("/proc/self/mounts")
            copy = partial(shutil.copytree, fresh, symlinks=True, dirs_exist_ok=True)
            return made_once(folder / f"etc-{digest(manifest(fresh))[:16]}", copy)
    except OSError as error:
        one = error.args[0][0][-1] if isinstance(error, shutil.Error) else error  # of many files
        raise SandboxRefused(
            "the image 'host' cannot be written to the cache", str(one),
            f"Free some space in {str(folder)!r}, or set TURNGYM_CACHE",
        ) from None  # fmt: skip


def _copy_readable(source: Path, target: Path) -> None:
    """Copy what everybody on the host may read anyway."""
    if not os.path.lexists(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    elif source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.stat().st_mode & 0o004:
        shutil.copyfile(source, target)


def unpacked(image: str) -> Path:
    """Return the root folder that ``image``, a folder or a tar, names; unpacked if need be.

    Raises:
        SandboxRefused: There is no such file, or it is no tar, or there is no space.
    """
    path = Path(image)
    if path.is_dir():
        return path.resolve()
    if not path.is_file():
        raise SandboxRefused(
            f"unknown image {image!r}",
            "no such file or folder",
            "Name 'host', a root folder, or a tar of one",
        )
    with path.open("rb") as file:
        name = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache_folder() / f"image-{name[:24]}"

    try:
        return made_once(target, partial(unpack, path))
    except (OSError, tarfile.TarError) as error:
        raise SandboxRefused(
            f"the image {image!r} cannot be unpacked", str(error),
            f"Check the file, and the space in {str(target.parent)!r}",
        ) from None  # fmt: skip


def machine_image(target: Path) -> None:
    """Collect installed Debian packages, with the libraries they need, in the folder ``target``.

    Packages that are not installed are left out.

    Raises:
        SandboxRefused: This machine has no ``dpkg-query``.
    """
    if shutil.which("dpkg-query") is None:
        raise SandboxRefused(
            "an image of this machine's packages needs Debian or Ubuntu", "no program dpkg-query",
            "Import an image from a registry or a tar instead",
        )  # fmt: skip
    target.chmod(0o755)
    files = _package_files()
    for path in sorted(files | _libraries(files)):
        _copy_into(target, path)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink() and not (target / name).exists():
            (target / name).symlink_to(os.readlink(f"/{name}"))
    shutil.copytree(host_etc(), target / "etc", symlinks=True, dirs_exist_ok=True)
    for name in ("dev", "home/agent", "proc", "run", "sys", "tmp", "var/tmp", "workspace", "root"):
        (target / name).mkdir(parents=True, exist_ok=True)


def _package_files() -> set[str]:
    known = subprocess.run(
        ["dpkg-query", "-L", *PACKAGES], capture_output=True, text=True, check=False
    ).stdout
    skipped = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info", "/etc")
    return {
        line
        for line in known.splitlines()
        if line.startswith("/") and not line.startswith(skipped) and os.path.lexists(line)
    }


def _libraries(files: set[str]) -> set[str]:
    """Return the shared libraries that the programs among ``files`` are linked against."""
    programs = [
        path
        for path in files
        if os.path.isfile(path)
        and not os.path.islink(path)
        and (os.access(path, os.X_OK) or ".so" in path)
    ]
    found: set[str] = set()
    for start in range(0, len(programs), 200):
        listed = subprocess.run(
            ["ldd", *programs[start : start + 200]], capture_output=True, text=True, check=False
        ).stdout
        for word in listed.split():
            if word.startswith("/") and not word.endswith(":") and os.path.exists(word):
                found.add(word)
    return found


def _copy_into(root: Path, path: str) -> None:
    """Copy one path of the host to its place below ``root``, following links of folders."""
    real_parent = os.path.realpath(os.path.dirname(path))
    target = Path(str(root) + real_parent) / os.path.basename(path)
    if os.path.lexists(target):
        return
    if os.path.islink(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(path))
        resolved = os.path.realpath(path)
        if os.path.isfile(resolved):
            _copy_into(root, resolved)
    elif os.path.isfile(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(os.stat(path).st_mode & 0o755)
    elif os.path.isdir(path):
        target.mkdir(parents=True, exist_ok=True)
