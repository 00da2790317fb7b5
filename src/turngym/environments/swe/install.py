"""Fetches the projects of the shipped tasks.

    python -m turngym.environments.swe.install NAME...

Each is a source distribution of the package registry, of one version and with one digest, fetched
by pip. Nothing of it is run here: tests run in sandboxes. What the tests import besides goes into a
folder of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from turngym.environments.swe.packages import added_packages, swe_cache
from turngym.environments.swe.records import TaskFile
from turngym.environments.swe.tasksets import SHIPPED, open_tasks
from turngym.errors import ConfigError, TurnGymError, require_known
from turngym.records import replacing

PACKAGES = ("hypothesis>=6.100", "freezegun>=1.5", "text-unidecode>=1.3", "typeguard>=4.3")
"""What tests of the shipped projects import."""


def main(names: list[str]) -> int:
    """Fetch the projects called ``names``; all of them without names.

    Raises:
        ConfigError: There is no such project.
    """
    files = {file.name: file for file in open_tasks(SHIPPED).files}
    for name in names:
        require_known("project", name, files)
    _say("what the tests import")
    install_packages()
    for name in names or list(files):
        _say(files[name].source["requirement"])
        fetch(files[name])
    return 0


def _say(what: str) -> None:
    sys.stderr.write(f"swe: {what}\n")


def install_packages() -> None:
    """Install what tests import, once."""
    target = added_packages()
    if target.is_dir() and any(target.iterdir()):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place, so that an interrupted call leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(prefix="packages-", dir=target.parent) as folder:
        fresh = Path(folder, "fresh")
        _pip("install", "-q", "--no-compile", "--target", str(fresh), *PACKAGES)
        fresh.replace(target)


def fetch(file: TaskFile) -> Path:
    """Return the source distribution of a project; it and the one before it are fetched if need be.

    Raises:
        ConfigError: What came is not what the tasks were made of.
    """
    if "before_requirement" in file.source:
        _fetch(file.name, file.source["before_requirement"], file.source["before_sha256"])
    return _fetch(file.name, file.source["requirement"], file.source["sha256"])


def _fetch(name: str, requirement: str, wanted: str) -> Path:
    version = requirement.partition("==")[2]
    target = swe_cache() / "projects" / f"{name}-{version}.tar.gz"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turngym-sdist-") as folder:
        found = download(requirement, Path(folder))
        digest = hashlib.sha256(found.read_bytes()).hexdigest()
        if digest != wanted:
            raise ConfigError(
                f"project {requirement}: the registry gave sha256 {digest[:16]}, wanted "
                f"{wanted[:16]}"
            )
        with replacing(target) as fresh:
            shutil.copyfile(found, fresh)
    return target


def download(requirement: str, folder: Path) -> Path:
    """Return the source distribution that pip finds for ``requirement``.

    Raises:
        ConfigError: There is none.
    """
    name = requirement.partition("==")[0]
    _pip("download", "-q", "--no-deps", "--no-binary", name, "-d", str(folder), requirement)
    found = sorted(folder.glob("*.tar.gz"))
    if not found:
        raise ConfigError(f"project {requirement!r}: the registry has no source distribution of it")
    return found[0]


def _pip(*arguments: str) -> None:
    try:
        subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
            check=True, stdout=sys.stderr, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"pip {arguments[0]} failed (exit code {error.returncode})") from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fetch projects, and what their tests import.")
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help="all by default")
    try:
        sys.exit(main(parser.parse_args().projects))
    except TurnGymError as error:
        sys.exit(f"error: {error}")
