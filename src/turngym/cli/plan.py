"""``turngym plan``, ``launch``: what a run puts where, whether it fits, its start on nodes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngym.api.agents import need_train_extra
from turngym.cli.arguments import Json, Sources
from turngym.cli.output import print_json, table
from turngym.cli.train import train
from turngym.config import load_config
from turngym.errors import ConfigError
from turngym.nodes import Node, alive, connect

if TYPE_CHECKING:
    from turngym.trainers.runs.placement import Plan


def plan(
    sources: Sources,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Plan for so many GPUs; those found here by default.")
    ] = None,
    gpu_gib: Annotated[
        float | None, typer.Option(min=0.1, help="Memory of each, with --gpus; 80 by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a run puts where, in GiB, before anything starts; exit code 2 where it cannot fit.

    Weights, gradients, moments and cache follow from shapes; activations are an estimate.
    """
    need_train_extra("'turngym plan'")
    from turngym.trainers.runs.needs import check_needs
    from turngym.trainers.runs.placement import GIB, plan_run
    from turngym.trainers.settings.train import TrainConfig

    if gpu_gib is not None and gpus is None:
        raise ConfigError("plan: --gpu-gib is of the GPUs to plan for: wanted --gpus")
    config = load_config(TrainConfig, sources)
    check_needs(config)
    sizes, names = _gpus_here()
    if gpus is not None:
        sizes, names = [int((gpu_gib or 80.0) * GIB)] * gpus, []
    planned = plan_run(config, gpus=sizes, names=names)
    if as_json:
        parts = [{**asdict(part), "total": part.total} for part in planned.parts]
        devices = dict(planned.devices)
        print_json({"bytes": parts, "devices": devices, "notes": list(planned.notes)})
        return
    _print([("", planned)])
    print("\n" + "\n".join(planned.notes))


def launch(
    sources: Sources,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, as for train.")] = None,
    ray: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Ray's head; RAY_ADDRESS by default.")
    ] = "",
    local: Annotated[
        bool, typer.Option("--local", help="Everything on this machine, whatever settings say.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, start nothing.")
    ] = False,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GPU=8,engine=1",
            help="With --dry-run: plan for a node of these resources, not for Ray's; can be "
            "repeated, the learner's first.",
        ),
    ] = None,
    gpu_gib: Annotated[float, typer.Option(min=0.1, help="Memory of a GPU on a node.")] = 80.0,
) -> None:
    """Train on several nodes: print what goes where, and start it; exit code 2 where it cannot fit.

    The learner is where this command is.
    Servers go to nodes with the label engine.resource.
    Environments go to those with rollout.workers.resource, if rollout.isolation=ray.
    The same command again resumes a run that was stopped.
    """
    need_train_extra("'turngym launch'")
    from turngym.trainers.runs.needs import check_needs
    from turngym.trainers.runs.placement import GIB, plan_nodes
    from turngym.trainers.settings.train import TrainConfig

    if (local and ray) or (nodes and not dry_run):
        raise ConfigError("launch: wanted --local or --ray; and --nodes only with --dry-run")
    settings = list(sources)
    config = load_config(TrainConfig, settings)
    if local and config.rollout.isolation == "ray":
        settings.append(f"rollout.isolation={config.rollout.workers.isolation}")
    if local and config.engine_resource:
        settings.append("engine.resource=")
    config = load_config(TrainConfig, settings)
    check_needs(config)
    is_far = config.rollout.isolation == "ray" or bool(config.engine_resource)
    if ray and not is_far:
        raise ConfigError(
            "launch --ray: nothing of this run goes to other nodes: set rollout.isolation=ray, or "
            "engine.resource to a label"
        )
    if ray:
        os.environ["RAY_ADDRESS"] = ray
    sizes = [] if nodes else _gpus_here()[0]
    if nodes:
        found = [_node(number, text) for number, text in enumerate(nodes)]
    elif is_far:
        found = alive(connect("launch"))
    else:
        found = [Node(name="this machine", resources={"GPU": len(sizes)})]
    gpu = min([*sizes, int(gpu_gib * GIB)])
    planned = plan_nodes(config, found, gpu=gpu, here=len(sizes))
    _print([(node.name, one) for node, one in planned])
    if not dry_run:
        train(settings, out=out)


def _gpus_here() -> tuple[list[int], list[str]]:
    """Return bytes and names of the GPUs of this machine."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [torch.cuda.get_device_properties(number) for number in range(count)]
    return [one.total_memory for one in found], [one.name for one in found]


def _node(number: int, text: str) -> Node:
    try:
        pairs = [part.split("=") for part in text.split(",")]
        resources = {name: float(amount) for name, amount in pairs}
        is_amount = (0 <= amount < math.inf for amount in resources.values())
        if len(resources) < len(pairs) or not all(is_amount):
            raise ValueError
    except ValueError as error:
        wanted = "NAME=AMOUNT,..., each name once, amounts of 0 or more, as GPU=8,engine=1"
        raise ConfigError(f"--nodes {text!r}: wanted {wanted}") from error
    return Node(name=f"node {number}", resources=resources)


def _print(plans: Sequence[tuple[str, Plan]]) -> None:
    """Print the parts of each node, and how full its devices get."""
    from turngym.trainers.runs.placement import Part, gib

    kinds = [name for name in Part.__slots__ if name not in ("name", "device")]
    rows = []
    for node, planned in plans:
        for part in planned.parts:
            sizes = [gib(getattr(part, kind)) for kind in kinds]
            rows.append([node, part.device, part.name, *sizes, gib(part.total)])
        for device, size in planned.devices.items():
            used = sum(part.total for part in planned.parts if part.device == device)
            rows.append([node, device, f"of {gib(size)}", *[""] * len(kinds), gib(used)])
    headers = ["NODE", "DEVICE", "GIB", *(kind.upper() for kind in kinds), "SUM"]
    skipped = 0 if any(node for node, _ in plans) else 1
    print(table(headers[skipped:], [row[skipped:] for row in rows]))
