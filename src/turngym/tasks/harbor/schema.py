"""``task.toml``, schema 1.4: every key that Harbor knows, and none besides."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from turngym.config import StrictModel, load_config, read_toml
from turngym.errors import ConfigError

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_LEGACY = {"memory": "memory_mb", "storage": "storage_mb"}
_UNITS = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
Seconds = Annotated[float, Field(gt=0)]
User = str | int | None


class Author(StrictModel):
    """Who made a package."""

    name: str
    email: str | None = None


class Package(StrictModel):
    """What the registry calls the task."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    version: str | None = None
    description: str = ""
    authors: list[Author] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class Network(StrictModel):
    """What the network policy of a phase or an environment is."""

    network_mode: Literal["public", "no-network", "allowlist"] | None = None
    allowed_hosts: list[str] | None = None


class Agent(Network):
    """The agent's phase."""

    timeout_sec: Seconds | None = None
    user: User = None


class Solution(StrictModel):
    """How the solution is run."""

    env: dict[str, str] = Field(default_factory=dict)


class Healthcheck(StrictModel):
    """What must succeed before the agent begins."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, ge=1)


class Tpu(StrictModel):
    """An accelerator."""

    type: str
    topology: str


class McpServer(StrictModel):
    """A server of tools for the agent."""

    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    headers: dict[str, str] = Field(default_factory=dict)


class Environment(Network):
    """A container, and what it may use."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None


class Collect(StrictModel):
    """A command that runs before artifacts are collected."""

    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User = None


class Artifact(StrictModel):
    """Files that are collected when the agent is done."""

    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None


Artifacts = list[str | Artifact]


class Verifier(Network):
    """The verifier's phase."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = Field(default_factory=list)

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """Where the verifier runs; None where this table does not say."""
        return self.environment_mode or ("separate" if self.environment else None)


class Step(StrictModel):
    """One step of a task with several."""

    name: Annotated[str, Field(pattern=r"^[\w][\w. -]*$")]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = Field(default_factory=list)


class HarborConfig(StrictModel):
    """All of ``task.toml``."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)  # free
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: Artifacts = Field(default_factory=list)


def read_text(path: Path) -> str:
    """Return a text file of a task folder.

    Raises:
        ConfigError: It cannot be read, or is not in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def read_config(path: Path) -> HarborConfig:
    """Return what a ``task.toml`` says; of older schemas too.

    Raises:
        ConfigError: It is no TOML, has an unknown key, or a value is wrong; one line for each.
    """
    content = read_toml(path)
    if "version" in content:
        content.setdefault("schema_version", str(content.pop("version")))
    if not re.fullmatch(r"1(\.\d+)?", version := str(content.get("schema_version", "1.4"))):
        raise ConfigError(f"{path}: schema_version: wanted 1.4 or an older one, got {version!r}")
    owners = [one for one in (content, content.get("verifier")) if isinstance(one, dict)]
    tables = [owner.get("environment") for owner in owners]
    for table in (one for one in tables if isinstance(one, dict)):
        for old in (old for old in _LEGACY if old in table):
            text = str(table.pop(old)).strip().upper()
            if not re.fullmatch(r"(\d+\.?\d*|\.\d+)[GMK]", text):
                wanted = "wanted a size like '2G'"
                raise ConfigError(f"{path}: environment.{old}: {wanted}, got {text!r}")
            table.setdefault(_LEGACY[old], int(float(text[:-1]) * _UNITS[text[-1]]))
    try:
        config = load_config(HarborConfig, [content])
    except ConfigError as error:
        lines = (f"{path}: {line}" for line in str(error).splitlines())
        raise ConfigError("\n".join(lines)) from None
    names = [step.name.casefold() for step in config.steps or []]
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise ConfigError(f"{path}: steps: {twice[0]!r} is there twice; names must differ")
    return config


def resolved(env: Mapping[str, str], where: str) -> dict[str, str]:
    """Return variables of ``where`` with ``${NAME}`` and ``${NAME:-default}`` from this process.

    Raises:
        ConfigError: One is not set and has no default.
    """
    found = {}
    for name, value in env.items():
        if (template := _TEMPLATE.fullmatch(value)) is None:
            found[name] = value
        elif (known := os.environ.get(template[1], template[2])) is not None:
            found[name] = known
        else:
            raise ConfigError(
                f"{where}: {name} wants the variable {template[1]}, which is not set; set it, or "
                "write ${" + template[1] + ":-default}"
            )
    return found


def unkept(config: HarborConfig, *, without_network: bool = False) -> list[str]:
    """Return by name what a ``task.toml`` asks for that only a container engine could keep.

    Args:
        config: What it says.
        without_network: Do not mind that a network is asked for.
    """
    environment, steps = config.environment, config.steps or []
    verifiers = [config.verifier, *(step.verifier for step in steps)]
    agents = [config.agent, *(step.agent for step in steps)]
    found = [] if environment.os.lower() == "linux" else [f"environment.os = {environment.os!r}"]
    named = {n: getattr(environment, n) for n in ("gpus", "tpu", "mcp_servers", "skills_dir")}
    found += [f"environment.{name} = {str(value)[:60]}" for name, value in named.items() if value]
    phases: list[tuple[str, Network]] = [("environment", environment)]
    phases += [("agent", one) for one in agents] + [("verifier", one) for one in verifiers]
    phases += [("verifier.environment", one.environment) for one in verifiers if one.environment]
    for name, phase in [] if without_network else phases:
        if phase.network_mode in ("public", "allowlist") or getattr(phase, "allow_internet", None):
            mode = phase.network_mode or "public"
            found.append(f"{name}.network_mode = {mode!r} (without_network=true plays it without)")
    users = {*(one.user for one in agents), *(one.user for one in verifiers)}
    known: set[User] = {None, "agent", 1000}
    found += [f"user = {one!r} (there is agent, 1000)" for one in sorted(users - known, key=str)]
    listed = [*config.artifacts, *(one for step in steps for one in step.artifacts)]
    artifacts = [one for one in listed if isinstance(one, Artifact)]
    services = [one.service for one in artifacts]
    services += [hook.service for verifier in verifiers for hook in verifier.collect]
    found += [f"service = {name!r}" for name in services if name not in (None, "main")]
    found += [f"artifacts.exclude = {one.exclude}" for one in artifacts if one.exclude]
    return list(dict.fromkeys(found))
