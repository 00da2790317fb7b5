"""The form of a task folder: what can be found by reading. Nothing of the folder is run.

The rules are those of ``harbor lint`` 0.25, under its names, and some of ours.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turngym.check_report import Broken, CheckReport, Doubtful, Evidence
from turngym.errors import ConfigError
from turngym.tasks.harbor.schema import read_config

_INSTALLS = re.compile(
    r"\b(apt-get|apt|apk|yum|dnf|pip3?|uv|uvx|npm|cargo|gem)\s+(install|add|-y)|\buvx\s"
)
_DOWNLOADS = re.compile(r"\b(curl|wget)\b[^|;&]*https?://|\bgit\s+clone\b[^|;&]*(https?:|git@)")
_PIP = re.compile(r"\b(?:pip3?|uv pip)\s+install\s+([^;&|\n]+)")
_TESTS_COPIED = re.compile(
    r"^\s*(COPY|ADD)\s+.*\b(tests?|solution)\b", re.IGNORECASE | re.MULTILINE
)
_LOGS = ("/logs/verifier", "/logs/agent")
_MOST_BYTES = 1 << 20
"""Of one file."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A task folder as it was read."""

    path: Path
    files: Mapping[str, bytes]
    config: Mapping[str, Any]
    problem: str = ""
    """Why the configuration could not be read."""

    def text(self, name: str) -> str:
        """Return a file as text, "" where there is none."""
        return self.files.get(name, b"").decode("utf-8", "replace")

    def scripts(self, folder: str) -> dict[str, str]:
        """Return the shell scripts and Docker files below a folder."""
        return {
            name: self.text(name)
            for name in self.files
            if name.startswith(f"{folder}/") and name.endswith((".sh", "Dockerfile"))
        }

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The steps of a task that has several."""
        steps = self.config.get("steps")
        return [one for one in steps if isinstance(one, dict)] if isinstance(steps, list) else []

    @property
    def places(self) -> list[str]:
        """What the paths of each step begin with."""
        return [f"steps/{one.get('name')}/" for one in self.steps] or [""]


def read_folder(path: Path) -> Folder:
    """Read a task folder; links are not followed, and of large files only the beginning is read."""
    found = {
        str(one.relative_to(path)): _beginning(one)
        for one in sorted(path.rglob("*"))
        if one.is_file() and not one.is_symlink() and ".git" not in one.relative_to(path).parts
    }
    try:
        config = tomllib.loads(found.get("task.toml", b"").decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return Folder(path, found, {}, str(error))
    return Folder(path, found, config)


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_MOST_BYTES)


def check_form(path: Path) -> CheckReport:
    """Return what is found by reading a task folder."""
    folder, report = read_folder(path), CheckReport(f"form of {path.name}")
    for name, rule in _RULES.items():
        report.run(f"static.{name}", partial(_found, rule, folder), required=False)
    return report


def _found(rule: Any, folder: Folder) -> Evidence:
    wrong = list(rule(folder))
    if wrong:
        kind = Doubtful if rule in _DOUBTFUL else Broken
        raise kind("; ".join(wrong[:3]), found=wrong)
    return {}


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _config_is_valid(folder: Folder) -> Iterator[str]:
    if "task.toml" not in folder.files:
        yield "task.toml is missing"
    if folder.problem:
        yield f"task.toml cannot be read: {folder.problem}"
    yield from (line for line in _errors(folder) if ": unknown key" not in line)
    for place in ("agent", "verifier"):
        limit = _table(folder.config.get(place)).get("timeout_sec")
        if isinstance(limit, int | float) and not 0 < limit <= 86_400:
            yield f"{place}.timeout_sec is {limit:g}, wanted more than 0 and at most a day"


def _errors(folder: Folder) -> list[str]:
    """Return what the schema does not like of a configuration that is TOML, one line each."""
    file = folder.path / "task.toml"
    try:
        if folder.config:
            read_config(file)
    except ConfigError as error:
        return str(error).replace(f"{file}: ", "").splitlines()
    return []


def _fields_are_known(folder: Folder) -> Iterator[str]:
    yield from (line for line in _errors(folder) if ": unknown key" in line)


def _files_are_there(folder: Folder) -> Iterator[str]:
    for place in folder.places:
        if not re.sub(r"<!--.*?-->", "", folder.text(f"{place}instruction.md"), flags=re.S).strip():
            yield f"{place}instruction.md is missing or says nothing"
        scripts = {f"{where}tests/test.{end}" for end in ("sh", "bat") for where in (place, "")}
        if not (scripts | {"tests/Dockerfile"}) & folder.files.keys():
            yield f"{place}tests/test.sh is missing"
    has_folder = any(name.startswith("environment/") for name in folder.files)
    if not has_folder and not _table(folder.config.get("environment")).get("docker_image"):
        yield "environment/ is missing, and environment.docker_image is not set"
    for one in folder.path.rglob("*"):
        if one.is_symlink() and not one.resolve().is_relative_to(folder.path.resolve()):
            yield f"{one.relative_to(folder.path)} is a link that leaves the folder"


def _solution_is_there(folder: Folder) -> Iterator[str]:
    for place in folder.places:
        if not any(f"{place}solution/solve.{end}" in folder.files for end in ("sh", "bat")):
            yield f"{place}solution/solve.sh is missing: nothing shows that it can be solved"


def _verifier_is_separate(folder: Folder) -> Iterator[str]:
    for place in (folder.config, *folder.steps):
        verifier = _table(place.get("verifier"))
        shared = verifier.get("environment_mode", "shared") == "shared"
        inherits = place is not folder.config and "environment_mode" not in verifier
        if shared and not inherits and "environment" not in verifier:
            yield "the verifier runs in the agent's sandbox; set verifier.environment_mode"


def _artifacts(folder: Folder) -> list[str]:
    entries = [folder.config.get("artifacts"), *(one.get("artifacts") for one in folder.steps)]
    return [
        str(one.get("source") if isinstance(one, dict) else one)
        for found in entries
        if isinstance(found, list)
        for one in found
    ]


def _artifacts_differ(folder: Folder) -> Iterator[str]:
    found = [one.rstrip("/") for one in _artifacts(folder)]
    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            if one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/"):
                yield f"artifacts {one} and {other} overlap"


def _artifacts_are_no_logs(folder: Folder) -> Iterator[str]:
    for one in _artifacts(folder):
        path = one.rstrip("/")
        if any(f"{log}/".startswith(f"{path}/") or path.startswith(log) for log in _LOGS):
            yield f"artifact {one} overlaps the logs of verifier or agent"


def _compose(folder: Folder) -> str:
    return "\n".join(
        folder.text(f"environment/{name}.{end}")
        for name in ("docker-compose", "compose")
        for end in ("yaml", "yml")
    )


def _mounts(folder: Folder) -> Iterator[tuple[str, bool]]:
    """Yield source and whether it is read-only of the short form of binds in a compose file."""
    for found in re.finditer(
        r"^\s*-\s*[\"']?([./~][^:\"'\s]*):[^:\s\"']+(:\w+)?", _compose(folder), re.M
    ):
        yield found[1], found[2] == ":ro"
    for found in re.finditer(r"type:\s*bind.*?(?=^\s*-\s|\Z)", _compose(folder), re.M | re.S):
        if source := re.search(r"source:\s*(\S+)", found[0]):
            yield source[1].strip("\"'"), "read_only: true" in found[0]


def _no_privileges(folder: Folder) -> Iterator[str]:
    if re.search(r"^\s*privileged:\s*(true|yes)", _compose(folder), re.M | re.I):
        yield "a service is privileged"


def _no_capabilities(folder: Folder) -> Iterator[str]:
    if re.search(r"^\s*cap_add:", _compose(folder), re.M):
        yield "a service asks for capabilities"


def _binds_are_read_only(folder: Folder) -> Iterator[str]:
    yield from (f"{source} is mounted for writing" for source, ro in _mounts(folder) if not ro)


def _binds_stay_inside(folder: Folder) -> Iterator[str]:
    root = folder.path.resolve()
    for source, _ in _mounts(folder):
        place = folder.path / "environment" / source
        if not source.startswith("~") and not place.resolve().is_relative_to(root):
            yield f"{source} lies outside the folder"


def _binds_are_no_links(folder: Folder) -> Iterator[str]:
    for source, _ in _mounts(folder):
        if (folder.path / "environment" / source).is_symlink():
            yield f"{source} is a link"


def _requirements_are_pinned(folder: Folder) -> Iterator[str]:
    for name, text in {**folder.scripts("environment"), **folder.scripts("tests")}.items():
        for found in _PIP.finditer(text.replace("\\\n", " ")):
            for word in found[1].split():
                plain = re.fullmatch(r"[A-Za-z][\w.-]*(\[[\w,]+\])?([<>~!]=?[\w.*]+)?", word)
                if plain and not word.endswith((".whl", ".txt", ".toml")):
                    yield f"{name}: {word} has no exact version"


def _while_judging(what: str, pattern: re.Pattern[str], folder: Folder) -> Iterator[str]:
    for name, text in folder.scripts("tests").items():
        code = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        if name.endswith(".sh") and (found := pattern.search(code)):
            yield f"{name} {what} while it judges: {found[0][:60]}"


def _image_holds_no_tests(folder: Folder) -> Iterator[str]:
    for name, text in folder.scripts("environment").items():
        if found := _TESTS_COPIED.search(text):
            yield f"{name}: {found[0].strip()} puts them where the agent works"
    tests = {data: name for name, data in folder.files.items()
             if name.startswith(("tests/", "solution/")) and len(data) > 20}  # fmt: skip
    for name, data in folder.files.items():
        if name.startswith("environment/") and data in tests:
            yield f"{name} is {tests[data]}, where the agent works"


def _agent_is_a_user(folder: Folder) -> Iterator[str]:
    if str(_table(folder.config.get("agent")).get("user", "root")).split(":")[0] in ("0", "root"):
        yield "the agent is root"


def _images_are_pinned(folder: Folder) -> Iterator[str]:
    text = "\n".join(folder.scripts("environment").values())
    images = re.findall(r"^FROM\s+(\S+)", text, re.M)
    images += [str(_table(folder.config.get("environment")).get("docker_image") or "scratch")]
    for one in images:
        if one != "scratch" and "@sha256:" not in one:
            yield f"{one} has no digest"


def _instruction_is_enough(folder: Folder) -> Iterator[str]:
    """Yield paths that the verifier looks at and the instruction does not name."""
    shown = "".join(folder.text(name) for name in folder.files if name.endswith("instruction.md"))
    judged = "".join(folder.text(name) for name in folder.files if name.startswith("tests/"))
    for path in sorted(set(re.findall(r"/(?:app|workspace)/[\w./-]*\w\.\w+", judged))):
        known = any(name.endswith(path.rpartition("/")[2]) for name in folder.files
                    if name.startswith("environment/"))  # fmt: skip
        if path.rpartition("/")[2] not in shown and not known:
            yield f"the verifier looks at {path}, which the instruction does not name"


_RULES = {
    "invalid-task-config": _config_is_valid, "unknown-config-field": _fields_are_known,
    "invalid-task-files": _files_are_there, "missing-solution": _solution_is_there,
    "shared-verifier": _verifier_is_separate, "overlapping-artifacts": _artifacts_differ,
    "artifact-log-overlap": _artifacts_are_no_logs, "compose-privileged": _no_privileges,
    "compose-additional-capabilities": _no_capabilities,
    "compose-writable-bind-mount": _binds_are_read_only,
    "compose-external-bind-mount": _binds_stay_inside,
    "compose-symlink-bind-mount": _binds_are_no_links,
    "unpinned-python-dependency": _requirements_are_pinned,
    "verifier-runtime-install": partial(_while_judging, "installs", _INSTALLS),
    "verifier-network-download": partial(_while_judging, "loads from the network", _DOWNLOADS),
    "agent-image-test-leak": _image_holds_no_tests, "unnamed-path": _instruction_is_enough,
    "root-agent": _agent_is_a_user, "unpinned-image": _images_are_pinned,
}  # fmt: skip
_DOUBTFUL = (_verifier_is_separate, _agent_is_a_user, _images_are_pinned, _no_capabilities)
"""Rules of taste, or whose harm a cheat would show."""
