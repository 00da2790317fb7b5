"""``turngym plan``: what a run puts where, and whether it fits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from turngym.api.needs import need_train_extra
from turngym.cli.arguments import SOURCES, SOURCES_HELP, Json, complete_recipe
from turngym.cli.output import print_json, table


def plan(
    sources: Annotated[
        list[str],
        typer.Argument(metavar=SOURCES, help=SOURCES_HELP, autocompletion=complete_recipe),
    ],
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Plan for so many GPUs; those found here by default.")
    ] = None,
    gpu_gib: Annotated[float, typer.Option(min=0.1, help="Memory of each, with --gpus.")] = 80.0,
    as_json: Json = False,
) -> None:
    """Show what a run puts where, in GiB, before anything starts; exit code 2 where it cannot fit.

    Weights, gradients, moments and cache follow from shapes; activations are an estimate.
    """
    need_train_extra("'turngym plan'")
    import torch

    from turngym.config import load_config
    from turngym.trainers.runs.placement import GIB, Part, gib, plan_run
    from turngym.trainers.settings.train import TrainConfig

    config = load_config(TrainConfig, sources)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [torch.cuda.get_device_properties(number) for number in range(count)]
    sizes, names = [one.total_memory for one in found], [one.name for one in found]
    if gpus is not None:
        sizes, names = [int(gpu_gib * GIB)] * gpus, []
    planned = plan_run(config, gpus=sizes, names=names)
    kinds = [name for name in Part.__slots__ if name not in ("name", "device")]
    if as_json:
        parts = [{**asdict(part), "total": part.total} for part in planned.parts]
        devices = dict(planned.devices)
        print_json({"bytes": parts, "devices": devices, "notes": list(planned.notes)})
        return
    rows = [
        [part.device, part.name, *(gib(getattr(part, kind)) for kind in kinds), gib(part.total)]
        for part in planned.parts
    ]
    for device, size in planned.devices.items():
        used = sum(part.total for part in planned.parts if part.device == device)
        rows.append([device, f"of {gib(size)}", *[""] * len(kinds), gib(used)])
    print(table(["DEVICE", "GIB", *(kind.upper() for kind in kinds), "SUM"], rows))
    print("\n" + "\n".join(planned.notes))
