"""Back ends whose layers are folders of this machine: what they share."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from turngym.errors import SandboxClosed, SandboxRefused, SnapshotError
from turngym.sandbox.backends.guest_sandbox import GuestSandbox, layer_of
from turngym.sandbox.base import LIMIT_NAMES, Enforcement, LayerRef, Quota, SandboxSpec
from turngym.sandbox.trees import digest, manifest

ENFORCED: Mapping[str, Enforcement] = {**dict.fromkeys(LIMIT_NAMES, "none"), "memory": "watched"}
"""What a guest can hold that is not the first process of a namespace."""


class FolderBackend(ABC):
    """Holds layers as copies in a temporary folder, and the sandboxes that run.

    Args:
        quota: What all its sandboxes together may take.
    """

    name: str

    def __init__(self, quota: Quota | None) -> None:
        self.quota = quota or Quota()
        self._root = Path(tempfile.mkdtemp(prefix=f"turngym-{self.name}-"))
        self._layers: dict[str, Path] = {}
        self._open: set[GuestSandbox] = set()
        self._is_closed = False

    async def start(self, spec: SandboxSpec) -> GuestSandbox:
        """See `Backend.start`.

        Raises:
            SandboxClosed: The back end is closed.
            SandboxRefused: Limits, mounts, links or an image that it cannot give are asked for.
        """
        if self._is_closed:
            raise SandboxClosed(f"back end {self.name!r} is closed")
        if spec.limits.enforce == "strict":
            raise SandboxRefused(
                f"{self.name!r} holds no limit", "", "Set Limits(enforce='best_effort')"
            )
        self._refuse(spec)
        layer = layer_of(spec, self._layers)
        return await self.start_on(spec, self._layers[layer] if layer else None)

    @abstractmethod
    def _refuse(self, spec: SandboxSpec) -> None:
        """Raise `SandboxRefused` for what it cannot give."""

    @abstractmethod
    async def start_on(self, spec: SandboxSpec, base: Path | None) -> GuestSandbox:
        """Start a sandbox on a copy of ``base``.

        Raises:
            SandboxUnavailable: The guest cannot start.
        """

    def _opened(self, sandbox: GuestSandbox) -> None:
        self._open.add(sandbox)
        sandbox.when_closed.append(lambda: self._open.discard(sandbox))

    async def import_folder(self, folder: Path) -> LayerRef:
        """See `Backend.import_folder`.

        Raises:
            SnapshotError: There is no such folder.
        """
        if not folder.is_dir():
            raise SnapshotError(f"import_folder: not a folder: {str(folder)!r}")
        return await self.keep(folder, "folder")

    async def keep(self, folder: Path, kind: Literal["folder", "snapshot"]) -> LayerRef:
        """Copy a folder and return the handle of the copy, a layer of this ``kind``."""
        target = self.new_folder()
        await asyncio.to_thread(copy_tree, folder, target)
        return await self.register(target, kind)

    def new_folder(self) -> Path:
        """Return a path for a layer that does not exist yet."""
        return self._root / f"layer-{uuid.uuid4().hex[:12]}"

    async def register(self, folder: Path, kind: Literal["folder", "snapshot"]) -> LayerRef:
        """Return the handle of a folder that ``new_folder`` named."""
        self._layers[folder.name] = folder
        found = digest(await asyncio.to_thread(manifest, folder))
        return LayerRef(id=folder.name, backend=self.name, kind=kind, digest=found)

    async def drop(self, layer: LayerRef) -> None:
        if path := self._layers.pop(layer.id, None):
            await asyncio.to_thread(shutil.rmtree, path, True)

    async def sweep(self) -> int:
        """See `Backend.sweep`. Leftovers look like the work of others, so nothing goes."""
        return 0

    async def close(self) -> None:
        self._is_closed = True
        for sandbox in list(self._open):
            await sandbox.close()
        await asyncio.to_thread(shutil.rmtree, self._root, True)


def copy_tree(source: Path, target: Path) -> None:
    """Copy files, folders and links; special files are left out."""

    def special(folder: str, names: list[str]) -> list[str]:
        paths = [Path(folder, name) for name in names]
        return [p.name for p in paths if not (p.is_file() or p.is_dir() or p.is_symlink())]

    shutil.copytree(source, target, symlinks=True, ignore=special)
