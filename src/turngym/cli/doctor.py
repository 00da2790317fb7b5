"""``turngym doctor``: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from turngym import __version__, registry
from turngym.api.verbs import rollout
from turngym.cli.arguments import SOURCES, Json
from turngym.cli.output import print_found, table
from turngym.config import load_config
from turngym.errors import MissingExtraError, SandboxRefused, require_known
from turngym.registry import EnvEntry
from turngym.sandbox.backends.catalogue import backend_names, open_backend
from turngym.sandbox.base import Capabilities

Status = Literal["ok", "missing", "broken"]

_CORE_ENV = "text/maze"
_EXTRAS = {
    "train": ("torch", "transformers", "tokenizers", "safetensors", "jinja2"),
    "lora": ("peft",),
    "openai": ("openai",),
    "serve": ("starlette", "uvicorn"),
    "mcp": ("mcp",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Extras that no environment asks for, and the modules of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found out about one part."""

    name: str
    status: Status
    detail: str
    fix: str | None = None
    """What to do; None exactly when the status is ok."""
    required: bool = False
    """True for the core, without which nothing works."""


def doctor(
    part: Annotated[
        str | None, typer.Argument(metavar="engine", help="Look at the engine of a run alone.")
    ] = None,
    sources: Annotated[list[str] | None, typer.Argument(metavar=SOURCES, help="The run.")] = None,
    as_json: Json = False,
) -> None:
    """Try every part on this machine; exit code 1 only when the core is broken.

    'turngym doctor engine CONFIG' looks at a run's servers; exit code 2 with what is wrong first.
    """
    if part is not None:
        _look_at_engine(part, sources or [], as_json=as_json)
        return
    with redirect_stdout(sys.stderr):  # some packages print a greeting
        findings = [_core(), *_optional_parts()]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    is_linux = hasattr(os, "sched_getaffinity")
    machine = {
        "turngym": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cores": len(os.sched_getaffinity(0)) if is_linux else os.cpu_count(),
        "memory_gib": round(memory_bytes / 2**30, 1),
    }
    found = {**machine, "checks": [asdict(finding) for finding in findings]}
    rows = [[f.status, f.name, f"{f.detail}: {f.fix}" if f.fix else f.detail] for f in findings]
    text = "  ".join(f"{key} {value}" for key, value in machine.items())
    text += f"\n\n{table(['STATUS', 'PART', 'FOUND'], rows)}"
    print_found(found, text, as_json=as_json)
    if any(finding.required and finding.status != "ok" for finding in findings):
        raise typer.Exit(1)


def _look_at_engine(part: str, sources: list[str], *, as_json: bool) -> None:
    from turngym.agents.build import check_engine
    from turngym.trainers.settings.train import TrainConfig

    require_known("part", part, ["engine"])
    config = load_config(TrainConfig, sources)
    found = check_engine(config.engine, context=config.model.context)
    text = "\n".join(["ok", *found])
    print_found({"engine": config.engine.type, "found": found}, text, as_json=as_json)


def _core() -> Finding:
    """Play an episode with the expert, as any installation must be able to."""
    try:
        [one] = rollout(_CORE_ENV, "expert")
        if one.score != 1.0:
            reason = one.error or f"its score is {one.score}"
            raise RuntimeError(f"the expert failed in {_CORE_ENV}: {reason}")
    except Exception as error:  # noqa: BLE001 - whatever breaks is the finding
        fix = "pip install --force-reinstall turngym"
        return Finding(name="core", status="broken", detail=_text(error), fix=fix, required=True)
    detail = f"played an episode of {_CORE_ENV} in {len(one.turns)} turns"
    return Finding(name="core", status="ok", detail=detail, required=True)


def _optional_parts() -> list[Finding]:
    findings = [_part(name, modules) for name, modules in _EXTRAS.items()]
    groups: dict[str, list[EnvEntry]] = {}
    for entry in registry.entries():
        if entry.modules or entry.programs:
            groups.setdefault(entry.extra or entry.family, []).append(entry)
    for name, entries in sorted(groups.items()):
        modules = dict.fromkeys(module for entry in entries for module in entry.modules)
        programs = dict.fromkeys(program for entry in entries for program in entry.programs)
        findings.append(_part(name, modules, programs, extra=entries[0].extra is not None))
    findings += _sandboxes()
    fix = "upgrade or uninstall that package"
    return findings + [
        Finding(name="plug-in", status="broken", detail=line, fix=fix)
        for line in registry.broken_plugins()
    ]


def _sandboxes() -> list[Finding]:
    """Start a sandbox of every back end that isolates."""
    findings = [_sandbox(name) for name in backend_names() if name != "unsafe-local"]
    if not any(finding.detail.startswith("strong ") for finding in findings):
        name = "sandbox of strong isolation"
        detail = "none is built in: all share the host's kernel, gVisor has no back end"
        fix = "run turngym in a virtual machine, or plug one in (docs/security.md)"
        findings.append(Finding(name=name, status="missing", detail=detail, fix=fix))
    return findings


def _sandbox(name: str) -> Finding:
    part = f"sandbox {name}"

    async def probe() -> Capabilities:
        backend = open_backend(name)
        try:
            return await backend.probe()
        finally:
            await backend.close()

    try:
        found = asyncio.run(probe())
    except SandboxRefused as refusal:
        detail = refusal.reason + (f" ({refusal.evidence})" if refusal.evidence else "")
        fix = refusal.hint or "see docs/security.md"
        return Finding(name=part, status="missing", detail=detail, fix=fix)
    except MissingExtraError as error:
        what, _, fix = str(error).partition(": ")
        return Finding(name=part, status="missing", detail=what, fix=fix)
    except Exception as error:  # noqa: BLE001 - whatever breaks is the finding
        return Finding(name=part, status="broken", detail=_text(error), fix="see docs/security.md")
    held = ", ".join(f"{limit} {how}" for limit, how in found.limits.items())
    return Finding(name=part, status="ok", detail=f"{found.isolation} isolation; {held}")


def _part(
    name: str, modules: Iterable[str], programs: Iterable[str] = (), *, extra: bool = True
) -> Finding:
    """Import every module and look for every program of one part, an extra of ours or not."""
    found: list[str] = []
    lacks: list[str] = []
    fixes: list[str] = []
    broken = False
    for module in modules:
        package = f"'turngym[{name}]'" if extra else f"the package of {module!r}"
        try:
            found.append(_imported(module))
        except ModuleNotFoundError as error:
            lacks.append(f"no module {error.name}")
            fixes.append(f"pip install {package}" if extra else f"install {package}")
        except Exception as error:  # noqa: BLE001 - whatever breaks is the finding
            broken = True
            lacks.append(f"{module}: {_text(error)}")
            fixes.append(f"pip install --force-reinstall {package}" if extra else f"mend {package}")
    for program in programs:
        where = registry.find_program(program)
        wanted = registry.program_name(program)
        (lacks if where is None else found).append(where or f"no program {wanted}")
        if where is None:
            fixes.append(f"install the program {wanted!r}")
    status: Status = "broken" if broken else "missing" if fixes else "ok"
    fix = "; ".join(dict.fromkeys(fixes)) or None
    return Finding(
        name=name, status=status, detail=", ".join(dict.fromkeys(lacks or found)), fix=fix
    )


def _imported(name: str) -> str:
    module = importlib.import_module(name)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = str(getattr(module, "__version__", ""))
    if name != "torch":
        return f"{name} {version}".strip()
    device = "CUDA" if module.cuda.is_available() else "CPU only"
    return f"torch {version} ({device}, {module.get_num_threads()} threads)"


def _text(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
