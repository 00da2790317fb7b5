"""What ``vf-validate`` finds in the corpus: the author's expert (gold) and doing nothing (noop).

Needs verifiers and Gymnasium in an environment of their own, and this source on its path:

    PYTHONPATH=src VERIFIERS/bin/python benchmarks/soundness_vf.py --out runs/soundness_vf.json

A task is refused where one of the two checks is not ``valid``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import soundness_corpus
from soundness import summary
from soundness_corpus import Item
from turngym.api.verifiers import verifiers_classes
from turngym.errors import TurnGymError

_CORPUS = Path(soundness_corpus.__file__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", default="text,search,question", help="what is looked at")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    families, found = arguments.families.split(","), list[dict[str, Any]]()
    for number, item in enumerate(soundness_corpus.items()):
        if item.family in families:
            found.append(_look(item, f"corpus_{number}"))
            print(found[-1], flush=True)
    print("\n".join(["", *summary(found)]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def _look(item: Item, package: str) -> dict[str, Any]:
    """Return the checks that do not pass, as ``soundness.look`` does."""
    row: dict[str, Any] = {"name": item.name, "defect": item.defect, "family": item.family}
    try:
        checks = _validated(f"{_CORPUS}:{item.name}", package)
    except (TurnGymError, ValueError) as error:
        return {**row, "failed": ["refused"], "reason": str(error)}
    failed = [name for name in ("gold", "noop") if checks[name]["reason"] != "valid"]
    return {**row, "failed": failed, "reason": str(checks["error"] or "")}


def _validated(name: str, package: str) -> dict[str, Any]:
    """Return the row of ``vf-validate`` for the first task."""
    from verifiers.v1.cli.validate import ValidateConfig, run_validate

    module = ModuleType(package)
    module.Tasks, module.Play = verifiers_classes(name, count=1, split="test")  # type: ignore[attr-defined]
    module.__all__ = ["Tasks", "Play"]  # type: ignore[attr-defined]
    sys.modules[package] = module
    config = ValidateConfig(
        taskset={"id": package}, runtime={"type": "subprocess"}, rich=False,
        output_dir=Path(tempfile.mkdtemp(prefix="vf-")),
    )  # fmt: skip
    (row,) = asyncio.run(run_validate(config))
    return row


if __name__ == "__main__":
    main()
