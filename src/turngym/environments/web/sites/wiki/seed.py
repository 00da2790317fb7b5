"""Makes the wiki that episodes begin with.

Usage: python seed.py DATA NUMBER     (each number gives other content)
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
ME = "Ada"
USERS = ("Ada", "Ben", "Cleo", "Dan")
"""The agent acts for the first one, who is an administrator."""
TOKEN = "f00d" * 8
ISLANDS = ("Nordra", "Sulka", "Vesper")
VILLAGES = (
    "Aldwick", "Birchhaven", "Coldwater", "Dunmore", "Eastcliff", "Fernby", "Gullrock",
    "Hartness", "Inverlea", "Juniper Bay", "Kelsey", "Longsand",
)  # fmt: skip
LIGHTS = ("Cape Light", "Fogstone Light", "Old Harbour Light", "Seal Point Light", "Twin Light")
FOODS = ("smoked herring", "barley bread", "cloudberry jam", "sheep cheese", "kelp soup")
FEASTS = ("boat race", "lantern walk", "wool market", "bell ringing", "kite flying", "tug of war")
NAMES = ("Iris Falk", "Jon Marsh", "Karin Holt", "Leo Strand", "Mona Quist", "Nils Berg")
WATCHED = ("Aldwick", "Fernby", "Twin Light")


def main(data: Path, number: int) -> None:
    program = Path.cwd() / "usr/share/mediawiki"
    data.mkdir(parents=True)
    (data / "program").write_text(str(program), "utf-8")
    environment = {**os.environ, "MW_INSTALL_PATH": str(program), "WIKI_DATA": str(data)}
    with tempfile.TemporaryDirectory() as settings:
        run(
            [
                "php", "maintenance/install.php", "--dbtype", "sqlite", "--dbname", "site",
                "--dbpath", str(data), "--confpath", settings, "--server", "http://wiki.test",
                "--scriptpath", "", "--pass", "installation-only", "Island wiki", "Installer",
            ],
            program,
            environment,
        )  # fmt: skip
        content = Path(settings) / "content.json"
        content.write_text(json.dumps(content_of_wiki(number)), "utf-8")
        environment["MW_CONFIG_FILE"] = str(_HERE / "LocalSettings.php")
        environment["WIKI_CONTENT"] = str(content)
        rebuild = "maintenance/rebuildLocalisationCache.php"
        run(["php", rebuild, "--lang", "en", "--skip-message-purge"], program, environment)
        run(["php", str(_HERE / "seed.php")], program, environment)
        run(["php", "maintenance/initSiteStats.php", "--update"], program, environment)
    for unused in data.glob("*.sqlite"):  # the installer's; the settings have one database
        if unused.name != "site.sqlite":
            unused.unlink()


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)


def content_of_wiki(number: int) -> dict[str, Any]:
    users = {
        name: {
            "password": f"{name.lower()}-secret",
            "token": TOKEN if name == ME else f"{name.lower():x<32}",
            "groups": ["sysop"] if name == ME else [],
        }
        for name in USERS
    }
    return {"me": ME, "users": users, "edits": list(edits(number)), "watched": WATCHED}


def edits(number: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield user, page, text and summary of each edit; some pages are edited twice."""
    draw = random.Random(9 + 1_000 * number)
    places = "\n".join(f"* [[{name}]]" for name in ISLANDS)
    yield ME, "Main Page", f"Welcome to the wiki of the three islands.\n\n{places}", "Welcome"
    home = {village: ISLANDS[n % len(ISLANDS)] for n, village in enumerate(VILLAGES)}
    for island in ISLANDS:
        names = "\n".join(f"* [[{name}]]" for name in VILLAGES if home[name] == island)
        text = f"'''{island}''' is an island.\n\n== Villages ==\n{names}\n\n[[Category:Islands]]"
        yield draw.choice(USERS), island, text, "New island"
    for village in VILLAGES:
        people = draw.randint(80, 1900)
        text = (
            f"'''{village}''' is a village on [[{home[village]}]].\n\n"
            f"Population: {people}\n\nMayor: {draw.choice(NAMES)}\n\n"
            f"== Food ==\nThe village is known for its {draw.choice(FOODS)}.\n\n"
            f"== Feasts ==\nEvery summer there is a {draw.choice(FEASTS)}.\n\n"
            "[[Category:Villages]]"
        )
        user = draw.choice(USERS)
        yield user, village, text, "New village"
        if draw.random() < 0.5:
            other = draw.choice([name for name in USERS if name not in (user, ME)])
            spoilt = text.replace("Every summer", "Every winter")
            yield other, village, spoilt, "Changed a detail"
    for light in LIGHTS:
        text = (
            f"'''{light}''' is a lighthouse near [[{draw.choice(VILLAGES)}]].\n\n"
            f"Built: {draw.randint(1790, 1930)}\n\nHeight: {draw.randint(11, 48)} metres\n\n"
            "[[Category:Lighthouses]]"
        )
        yield draw.choice(USERS), light, text, "New lighthouse"


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
