"""MediaWiki on SQLite, as a program to install and start."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from turngym.environments.web.sites.program import Program
from turngym.errors import ConfigError

_PACKAGES = ("mediawiki", "mediawiki-classes")
_VERSION = "1.39."
"""The one whose tables ``env.py`` reads; Debian keeps it mended."""
_VERSION_FILE = "includes/Defines.php"
_MODULES = {
    "dom": "php-xml", "intl": "php-intl", "mbstring": "php-mbstring", "sqlite3": "php-sqlite3",
}  # fmt: skip
"""Module of PHP to the Debian package that holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianProgram(Program):
    """A program that is unpacked from Debian's packages, without installing them."""

    def _fetch(self) -> None:
        for name in ("php", "apt-get", "dpkg-deb"):
            if shutil.which(name) is None:
                raise ConfigError(f"{self.title} needs {name}: apt-get install php-cli, on Debian")
        have = subprocess.run(["php", "-m"], capture_output=True, text=True, check=True).stdout
        missing = [package for name, package in _MODULES.items() if name not in have.split()]
        if missing:
            raise ConfigError(f"{self.title} needs more: apt-get install {' '.join(missing)}")
        self.run("apt-get", "-q", "download", *_PACKAGES)
        for package in sorted(self.home.glob("*.deb")):
            self.run("dpkg-deb", "-x", str(package), ".")
            package.unlink()
        root = self.home / "usr/share/mediawiki"
        version = re.search(r"'MW_VERSION', '([^']+)'", (root / _VERSION_FILE).read_text("utf-8"))
        if version is None or not version[1].startswith(_VERSION):
            found = "none" if version is None else version[1]
            raise ConfigError(
                f"{self.title}: wanted version {_VERSION}* (Debian 12), apt-get has {found}"
            )
        for link in root.iterdir():
            if link.is_symlink():  # to places that only an installation has
                link.unlink()


WIKI = DebianProgram(
    name="wiki",
    title="the wiki (MediaWiki)",
    folder=Path(__file__).parent,
    database="site.sqlite",
)
