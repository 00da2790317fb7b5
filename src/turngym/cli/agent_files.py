"""The files behind an agent: what they are, for an evaluation to know them again; the tokenizer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from turngym.agents.policy import Policy
from turngym.cli.needs import need_train_extra
from turngym.errors import CheckpointError
from turngym.provenance import digest_of

_REMOTE = ("openai", "completions")


def agent_digest(spec: str) -> str | None:
    """Return the SHA-256 of an agent's files; None when it has none, or none can be found.

    Args:
        spec: As for ``make_policy``: weights, a file of settings, or the module of a function.
    """
    first = spec.split(" ")[0]
    if first.endswith(".toml"):
        return digest_of(Path(first).expanduser())
    kind, _, rest = first.partition(":")
    if kind in _REMOTE or not rest:
        return None
    if kind == "hf":
        return digest_of(Path(rest).expanduser())
    if kind == "run":
        return _checkpoint_digest(spec, Path(spec.partition(":")[2]).expanduser())
    if kind.endswith(".py"):
        return digest_of(Path(kind).expanduser())
    try:
        found = importlib.util.find_spec(kind)
    except (ImportError, ValueError):
        return None
    return None if found is None or found.origin is None else digest_of(Path(found.origin))


def keep_tokenizer(policy: Policy, folder: Path) -> None:
    """Keep the tokenizer of a policy that has one, so that the viewer can show tokens."""
    renderer = _attribute(policy, "renderer") or _attribute(policy, "model", "renderer")
    backend = _attribute(renderer, "tokenizer", "backend_tokenizer")
    if backend is not None:
        backend.save(str(folder / "tokenizer.json"))


def _checkpoint_digest(spec: str, path: Path) -> str | None:
    need_train_extra(f"agent {spec!r}")
    from turngym.trainers.runs.checkpoints import find_model

    try:
        return digest_of(find_model(path))
    except CheckpointError:  # told when the policy is made
        return None


def _attribute(value: Any, *names: str) -> Any:
    for name in names:
        value = getattr(value, name, None)
    return value
