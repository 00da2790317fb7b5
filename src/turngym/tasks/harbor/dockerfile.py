"""A Dockerfile as far as it can be followed without a container engine, on this machine's own /usr.

The base stands for this machine: any Debian, Ubuntu or Python image, those of t-bench too. Files
are copied, commands run in the sandbox without a network, and packages to be installed must be here
already. The rest is refused by name.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from turngym.errors import ConfigError
from turngym.tasks.harbor.schema import read_text

_BASES = re.compile(
    r"^((docker\.io/)?(library/)?|ghcr\.io/laude-institute/t-bench/)"
    r"(debian|ubuntu|python|buildpack-deps)([-:@]|$)"
)
HERE = frozenset(
    ["tmp", "home", "run", "dev", "proc", "usr", "etc", "bin", "lib", "sbin", "var", "opt"]
)
"""What a sandbox has at its root anyway."""
_WITHOUT_EFFECT = frozenset(
    [
        "CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER",
        "VOLUME",
    ]
)  # fmt: skip
"""Nobody starts the image's own program, and there is one user."""
_APT = re.compile(r"^(?:sudo )?apt(?:-get)? (?:-\S+ )*(\w+)(.*)$")
_PIP = re.compile(r"^(?:python3? -m |uv )?pip3? install (.*)$")
_NETWORK = re.compile(r"\b(curl|wget|npm|npx|yarn|git clone|cargo|go install|gem install|uvx?)\b")
_PYTHON = re.compile(r"^ln -sf? /usr/bin/python3 /usr/(local/)?bin/python$")
_NO_MATTER = re.compile(r"^(rm -rf /var/lib/apt/lists|apt(-get)? (clean|update|autoremove))")


@dataclass(frozen=True, kw_only=True)
class Copy:
    """Files to write."""

    files: dict[str, Path]
    """Absolute path in the sandbox to the file here."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A command to run."""

    command: str
    workdir: str
    env: dict[str, str]
    where: str
    """Place in the Dockerfile, for messages."""


@dataclass(kw_only=True)
class Recipe:
    """What a Dockerfile asks for."""

    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | Run] = field(default_factory=list)
    is_python: bool = False
    """The base has a program ``python``."""
    pip: dict[str, str] = field(default_factory=dict)
    """Python packages that must be there, and the line that says so."""

    @property
    def places(self) -> set[str]:
        """Paths that are written or worked in."""
        found = {self.workdir}
        for step in self.steps:
            found |= set(step.files) if isinstance(step, Copy) else {step.workdir}
        return found


def check_base(image: str, where: str) -> bool:
    """Return whether the base has a program ``python``; ``where`` names it in errors.

    Raises:
        ConfigError: Only a container engine has such an image.
    """
    if _BASES.match(image) is None:
        raise ConfigError(
            f"{where}: the image {image!r} needs a container engine; without one the base is this "
            "machine, which stands for Debian, Ubuntu and Python images"
        )
    return "python" in image


def read_recipe(file: Path) -> Recipe:
    """Return what a Dockerfile asks for.

    Raises:
        ConfigError: Something in it cannot be followed here; the message names the line.
    """
    recipe = Recipe()
    if (file.parent / ".dockerignore").exists():
        raise ConfigError(f"{file.parent / '.dockerignore'}: is not read here; remove it")
    for number, line in _instructions(read_text(file)):
        where = f"{file}, line {number}"
        try:
            _follow(recipe, line, file.parent, where)
        except ConfigError:
            raise
        except ValueError as error:  # a quote is open, or words are missing
            raise ConfigError(f"{where}: cannot be read: {error}") from None
    return recipe


def _follow(recipe: Recipe, line: str, folder: Path, where: str) -> None:
    """Add what an instruction asks for."""
    name, _, rest = line.partition(" ")
    name, rest = name.upper(), rest.strip()
    if name == "FROM":
        if recipe.steps or len(rest.split()) > 1:
            raise ConfigError(f"{where}: stages need a container engine")
        recipe.is_python = check_base(rest, where)
    elif name == "WORKDIR":
        recipe.workdir = _absolute(recipe.workdir, rest)
        if recipe.workdir.lstrip("/") in HERE:
            raise ConfigError(f"{where}: to work in {recipe.workdir} needs a container engine")
    elif name == "ENV":
        recipe.env |= _variables(rest)
    elif name in ("COPY", "ADD"):
        recipe.steps.append(_copy(recipe, rest, folder, where))
    elif name == "RUN":
        recipe.steps += [
            Run(command=command, workdir=recipe.workdir, env=dict(recipe.env), where=where)
            for command in _commands(recipe, rest, where)
        ]
    elif name not in _WITHOUT_EFFECT:
        raise ConfigError(f"{where}: {name} needs a container engine")


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and instruction; continued lines are joined, comments left out."""
    begun, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        start = start if begun else number
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        yield start, begun
        begun = ""


def _absolute(base: str, path: str) -> str:
    return "/" + posixpath.normpath(posixpath.join(base, path)).strip("/")


def _exec_form(text: str) -> list[str] | None:
    """Return the words of ``["a", "b"]``; None for what is no such list, as engines have it."""
    try:
        words = json.loads(text)
    except ValueError:
        return None
    is_form = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return words if is_form else None


def _variables(text: str) -> dict[str, str]:
    words = shlex.split(text)
    if words and "=" not in words[0]:
        return {words[0]: text.partition(" ")[2].strip()}
    return dict(word.split("=", 1) for word in words if "=" in word)


def _copy(recipe: Recipe, text: str, context: Path, where: str) -> Copy:
    words = _exec_form(text) or shlex.split(text)
    options = [word for word in words if word.startswith("--")]
    if bad := [one for one in options if not one.startswith(("--chown", "--chmod"))]:
        raise ConfigError(f"{where}: COPY {bad[0]} needs a container engine")
    *sources, target = [word for word in words if not word.startswith("--")]
    found: dict[str, Path] = {}
    is_folder = target.endswith("/") or target in (".", "./") or len(sources) > 1
    target = _absolute(recipe.workdir, target)
    for source in sources:
        if "://" in source or ".." in Path(source).parts:
            raise ConfigError(f"{where}: {source!r} lies outside of the folder")
        places = [context / source.lstrip("/")]
        if "*" in source:
            places = sorted(context.glob(source.strip("/")))
        for place in places:
            if not place.exists():
                raise ConfigError(f"{where}: there is no {source!r} beside the Dockerfile")
            if place.is_dir():
                inner = [one for one in sorted(place.rglob("*")) if one.is_file()]
                found |= {f"{target}/{one.relative_to(place).as_posix()}": one for one in inner}
            else:
                known = is_folder or "*" in source
                found[f"{target}/{place.name}" if known else target] = place
    return Copy(files=found)


def _commands(recipe: Recipe, text: str, where: str) -> list[str]:
    """Return what is left to run once packages are known to be here."""
    if words := _exec_form(text):
        return [shlex.join(words)]
    parts = [part.strip() for part in re.split(r"&&|;", text)]
    left = [part for part in parts if part and not _is_here(recipe, part, where)]
    if len(left) == len(parts):
        return [text]  # as it was written: a part alone may be half of a loop
    return [" && ".join(left)] if left else []


def _is_here(recipe: Recipe, command: str, where: str) -> bool:
    """Return whether ``command`` only installs what is here already, or tidies up after that."""
    if _NO_MATTER.match(command):
        return True
    if _PYTHON.match(command):
        recipe.is_python = True
        return True
    if (apt := _APT.match(command)) and apt[1] == "install":
        _need_debian([word for word in apt[2].split() if not word.startswith("-")], where)
        return True
    if pip := _PIP.match(command):
        words = [word for word in pip[1].split() if not word.startswith("-")]
        recipe.pip |= dict.fromkeys((re.split(r"[=<>~!\[]", word)[0] for word in words), where)
        return True
    if network := _NETWORK.search(command):
        raise ConfigError(f"{where}: {network[1]!r} needs a network; there is none here")
    return False


def _need_debian(packages: list[str], where: str) -> None:
    for name in (package.split("=")[0] for package in packages):
        command = ["dpkg-query", "-W", "-f", "${db:Status-Status}", name]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            found = ""
        if found != "installed":
            raise ConfigError(
                f"{where}: wants the Debian package {name!r}, which this machine lacks; install it "
                "here (apt-get install) or play it on a container engine"
            )
