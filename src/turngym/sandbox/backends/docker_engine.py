"""What a container engine is asked for: images, containers, and what their control groups hold.

Images are this machine's packages, ones that were pulled, and snapshots. Nothing is ever pulled: an
image that is not there is a refusal that says how to get it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any

from turngym.errors import SandboxRefused
from turngym.sandbox.backends import images, seccomp
from turngym.sandbox.backends.bubblewrap_command import guest_settings
from turngym.sandbox.backends.runtime import MOUNT, cache_folder, command, runtime_folder
from turngym.sandbox.base import LIMIT_NAMES, Enforcement, Limits, SandboxSpec
from turngym.sandbox.launcher import cgroups
from turngym.sandbox.launcher.mounts import SYSTEM_V_LIMITS

UID = 1000
REPOSITORY = "localhost/turngym"
_lock = threading.Lock()

Client = Any  # docker.DockerClient, which has no types


def prepared(client: Client, name: str) -> str:
    """Return the id of an image of ``client`` with all that a sandbox needs, made from ``name``.

    That is ``host`` for this machine's packages, a folder or tar, or an image of the engine.

    Raises:
        SandboxRefused: There is no such image.
    """
    with _lock:
        if name == "host":
            known = subprocess.run(
                ["dpkg-query", "-W", *images.PACKAGES], capture_output=True, text=True, check=False
            ).stdout if shutil.which("dpkg-query") else ""  # fmt: skip
            tag = f"machine-{_short(known)}"
            if (found := _find(client, f"{REPOSITORY}:{tag}")) is not None:
                return found
            with tempfile.TemporaryDirectory(prefix="turngym-machine-") as temporary:
                images.machine_image(Path(temporary))
                return _imported(client, Path(temporary), tag)
        if "/" in name and (name.startswith(("/", ".")) or Path(name).exists()):
            return _imported(client, images.unpacked(name), f"folder-{_short(name)}")
        return _derived(client, name)


def _imported(client: Client, folder: Path, tag: str) -> str:
    if (found := _find(client, f"{REPOSITORY}:{tag}")) is not None:
        return found
    with tempfile.NamedTemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(folder, arcname=".", filter=_owned)
        file.flush()
        # Podman does not heed the tag, so it is given to the id that comes back.
        output = client.api.import_image_from_file(file.name, repository=REPOSITORY, tag=tag)
    image = json.loads(output.strip().splitlines()[-1])["status"]
    return _derived(client, image, tag)


def _owned(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Give what the sandbox writes to its user, all else to root."""
    name = member.name.removeprefix("./")
    own = name == "workspace" or name.startswith(("workspace/", "home/agent"))
    member.uid = member.gid = UID if own else 0
    member.uname = member.gname = ""
    if name in ("tmp", "var/tmp"):
        member.mode = 0o1777
    return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None


def adopted(client: Client, name: str, folder: str) -> str:
    """Return ``client``'s id of an image whose workspace is ``folder`` of the image ``name``.

    The old path leads to the workspace, for packages that were installed in place. Of a git
    repository nothing is left but what led to the commit that is checked out.

    Raises:
        SandboxRefused: There is no such image, or no such folder in it.
    """
    with _lock:
        image = _known(client, name)
        tag = f"adopted-{_short(f'{image} {folder} {_ADOPT}')}"
        if (found := _find(client, f"{REPOSITORY}:{tag}")) is not None:
            return found
        container = client.containers.create(
            image, ["-c", _ADOPT, "adopt", folder, str(UID)], entrypoint=["/bin/sh"], user="0:0",
            network_mode="none", working_dir="/",
        )  # fmt: skip
        try:
            container.start()
            if container.wait()["StatusCode"]:
                output = container.logs(stdout=False, tail=1).decode("utf-8", "replace").strip()
                raise SandboxRefused(
                    f"image {name!r} has no workspace at {folder!r}", output[:300],
                    "Name the folder of the image that holds the repository",
                )  # fmt: skip
            return str(container.commit(repository=REPOSITORY, tag=tag).id)
        finally:
            container.remove(force=True)


_ADOPT = """set -e
mkdir -p /workspace /home/agent
cd "$1"
cp -a . /workspace/
cd /workspace
if [ -d .git ] && command -v git >/dev/null; then
  export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
  git checkout -q --detach
  git for-each-ref --format='delete %(refname)' | git update-ref --stdin
  rm -rf .git/logs .git/ORIG_HEAD .git/FETCH_HEAD
  git gc -q --prune=now
else
  rm -rf .git
fi
cd /
rm -rf "$1"
ln -s /workspace "$1"
chown -R "$2:$2" /workspace /home/agent
"""


def _known(client: Client, name: str) -> str:
    """Return the id of an image; one that the engine does not have is refused."""
    image = _find(client, name)
    if image is None:
        raise SandboxRefused(
            f"unknown image {name!r}",
            "the engine does not have it",
            f"Get it with: docker pull {name}; or use 'host', a root folder or a tar",
        )
    return image


def _derived(client: Client, name: str, tag: str = "") -> str:
    """Return ``name`` with a workspace and a home of the sandbox's user."""
    image = _known(client, name)
    target = tag or f"derived-{_short(image)}"
    if not tag and (found := _find(client, f"{REPOSITORY}:{target}")) is not None:
        return found
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in ("workspace", "home/agent"):
            member = tarfile.TarInfo(path)
            member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, 0o755, UID, UID
            archive.addfile(member)
    return commit_with(client, image, {"/": data.getvalue()}, tag=target)


def commit_with(client: Client, image: str, archives: dict[str, bytes], *, tag: str = "") -> str:
    """Return ``client``'s id of ``image`` with ``archives`` (tars) unpacked, named ``tag``."""
    container = client.containers.create(image, ["true"], network_mode="none")
    try:
        for path, data in archives.items():
            container.put_archive(path, data)
        kept = {"repository": REPOSITORY, "tag": tag} if tag else {}
        return str(container.commit(**kept).id)
    finally:
        container.remove(force=True)


def folder_archive(folder: Path) -> bytes:
    """Return a tar of a folder, owned by the sandbox's user, without special files."""
    data = io.BytesIO()

    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = UID
        member.uname = member.gname = ""
        member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)
        return member if member.isreg() or member.isdir() or member.issym() else None

    with tarfile.open(fileobj=data, mode="w", dereference=False) as archive:
        archive.add(folder, arcname=".", filter=owned)
    return data.getvalue()


def _find(client: Client, name: str) -> str | None:
    import docker.errors

    try:
        return str(client.images.get(name).id)
    except docker.errors.ImageNotFound:
        return None


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


OWNER_LABEL = "turngym.owner"


def creation(
    spec: SandboxSpec, ulimit: Any, *, podman: bool, system_v: bool
) -> dict[str, Any]:  # the client's
    """Return what a container is created with.

    Args:
        spec: What was asked for.
        ulimit: The client's type for a limit of each process.
        podman: The engine is Podman.
        system_v: The engine may set the limits of System V; else there is none.
    """
    limits = spec.limits
    settings = guest_settings(spec, "0,1,-1", watch_memory=False, own_user=False)
    profile = json.dumps(seccomp.engine_profile(allow_ptrace=spec.allow_ptrace, system_v=system_v))
    if podman:  # it reads the profile itself, from a file
        profile = str(_profile_file(profile))
    volumes = {str(runtime_folder()): {"bind": MOUNT, "mode": "ro"}}
    for mount in spec.mounts:
        volumes[str(mount.source.resolve())] = {"bind": mount.target, "mode": "ro"}
    return {
        "command": command(settings),
        "entrypoint": [],
        "stdin_open": True,
        "user": f"{UID}:{UID}",
        "working_dir": "/",  # a command may have closed its workspace for itself
        "hostname": "sandbox",
        "environment": {"PATH": "/usr/bin:/bin"},
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges", f"seccomp={profile}"],
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "pids_limit": limits.pids + 1,
        "nano_cpus": int(limits.cpus * 1e9),
        "shm_size": min(limits.disk_bytes, limits.memory_bytes) // 4,
        "ulimits": [
            ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
            ulimit(name="nproc", soft=1 << 14, hard=1 << 14),
            ulimit(name="core", soft=0, hard=0),
        ],
        "volumes": volumes,
        "ipc_mode": "private",
        "sysctls": SYSTEM_V_LIMITS if system_v else {},
        "log_config": {"type": "none"} if not podman else {"type": "k8s-file"},
        "labels": {OWNER_LABEL: cgroups.owner_mark()},
    }


def held_limits(pid: int, limits: Limits) -> tuple[dict[str, Enforcement], str]:
    """Read the limits of a container's process ``pid`` back from its control groups.

    Returns:
        How each limit is held, and the file that counts processes killed for want of memory.
    """
    held: dict[str, Enforcement] = {**dict.fromkeys(LIMIT_NAMES, "none")}
    try:
        groups = cgroups.find_parents(member=Path(f"/proc/{pid}"))
    except OSError:
        return held, ""
    second = groups.version == 2
    page = os.sysconf("SC_PAGE_SIZE")
    quota = str(int(limits.cpus * 100_000))
    memory = str(limits.memory_bytes - limits.memory_bytes % page)
    wanted = {
        "memory": ("memory.max" if second else "memory.limit_in_bytes", memory),
        "pids": ("pids.max", str(limits.pids + 1)),
        "cpus": ("cpu.max" if second else "cpu.cfs_quota_us", quota),
    }
    for name, (file, value) in wanted.items():
        with contextlib.suppress(OSError, KeyError, IndexError):
            folder = groups.folders[file.partition(".")[0]]
            if (folder / file).read_text().split()[0] == value:
                held[name] = "exact"
    return held, cgroups.oom_file(groups)


def _profile_file(profile: str) -> Path:
    """Return a file with ``profile``, whole at any moment that others may read it."""
    path = cache_folder() / f"seccomp-{_short(profile)}.json"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        fresh.write_text(profile)
        fresh.replace(path)
    return path
