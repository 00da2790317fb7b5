"""The web applications that there are: what is installed and started, and their environments."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from turngym.environments.web.sites.program import Program
from turngym.errors import ConfigError

_HERE = Path(__file__).parent
TRACKER = Program(
    name="tracker",
    title="the issue tracker (Trac)",
    requirements=("Trac==1.6", "setuptools<81"),
    folder=_HERE / "tracker",
    database="db/trac.db",
    # What the server remembers of earlier episodes must not look up to date.
    after_reset="UPDATE cache SET generation = 1000000 + 1000 * :reset",
)
FORUM = Program(
    name="forum",
    title="the forum (django-machina)",
    requirements=(
        "django-machina==1.3.1", "Django==5.2.19", "asgiref==3.13.0", "django-haystack==3.4.0",
        "django-js-asset==5.0.0", "django-mptt==0.20.0", "django-widget-tweaks==1.5.1",
        "markdown2==2.5.5", "packaging==26.3", "pillow==13.0.0", "sqlparse==0.6.1",
    ),
    folder=_HERE / "forum",
    database="site.db",
)  # fmt: skip
SHOP = Program(
    name="shop",
    title="the shop (django-oscar)",
    requirements=(
        "django-oscar==4.2.1", "Django==5.2.19", "asgiref==3.13.0", "babel==2.18.0",
        "django-extra-views==0.16.0", "django-haystack==3.4.0", "django-phonenumber-field==8.5.0",
        "django-tables2==2.7.0", "django-treebeard==7.0.3", "django-widget-tweaks==1.5.1",
        "factory-boy==3.3.3", "Faker==40.54.0", "packaging==26.3", "phonenumbers==9.0.43",
        "pillow==13.0.0", "purl==1.6", "six==1.17.0", "sqlparse==0.6.1",
    ),
    folder=_HERE / "shop",
    database="site.db",
)  # fmt: skip

_VERSION = "1.39."
"""The one whose tables ``env.py`` reads; Debian keeps it mended."""
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
        self.run("apt-get", "-q", "download", "mediawiki", "mediawiki-classes")
        for package in sorted(self.home.glob("*.deb")):
            self.run("dpkg-deb", "-x", str(package), ".")
            package.unlink()
        root = self.home / "usr/share/mediawiki"
        text = (root / "includes/Defines.php").read_text("utf-8")
        found = re.search(r"'MW_VERSION', '([^']+)'", text)
        version = "none" if found is None else found[1]
        if not version.startswith(_VERSION):
            raise ConfigError(
                f"{self.title}: wanted version {_VERSION}* (Debian 12), apt-get has {version}"
            )
        for link in root.iterdir():
            if link.is_symlink():  # to places that only an installation has
                link.unlink()


WIKI = DebianProgram(
    name="wiki", title="the wiki (MediaWiki)", folder=_HERE / "wiki", database="site.sqlite"
)
PROGRAMS: dict[str, Program] = {one.name: one for one in (TRACKER, FORUM, SHOP, WIKI)}


def env_class(site: str) -> Any:  # a subclass of SiteEnv, which imports this module
    """Return the environment of the application called ``site``."""
    module = import_module(f"turngym.environments.web.sites.{site}.env")
    return getattr(module, f"{site.capitalize()}Env")
