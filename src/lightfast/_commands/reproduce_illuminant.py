"""`lightfast reproduce illuminant` and `lightfast train illuminant`: the color of the light."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightfast._commands import options

if TYPE_CHECKING:
    import torch

    from lightfast._experiments.data.nus import LitScenes
    from lightfast._experiments.illuminant.plans import IlluminantPlan

__all__ = ["illuminant", "train_illuminant"]

Data = Annotated[
    Path | None,
    typer.Option(
        help="The reduced NUS images: a folder with index.csv and the PNG files that it names; by default, scenes that "
        "lightfast draws itself."
    ),
]
Network = Annotated[
    str,
    typer.Option(help="original, wrapped, equivariant, local, local-wrapped, histogram, statistics, general or joint."),
]


def illuminant(
    data: Data = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="pooled, scene-disjoint, content-disjoint, per-camera, leave-one-camera-out, new-camera; or all."
        ),
    ] = "pooled",
    networks: Annotated[
        str,
        typer.Option(
            help="Comma-separated: original, wrapped, equivariant, local, local-wrapped, histogram, statistics, "
            "general, joint; or all."
        ),
    ] = "original,wrapped,equivariant",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each network on each split.")] = 1,
    out: options.Out = Path("runs/illuminant"),
    recipe: Annotated[
        str | None, typer.Option(help="best or demo; by default best for photographs, demo for drawn scenes.")
    ] = None,
    steps: options.Steps = None,
    seconds: Annotated[
        float | None, typer.Option(help="Start no more trainings after so long; run again to go on.")
    ] = None,
    parallel: options.Parallel = 12,
    settings: options.Settings = None,
    photographs: Annotated[bool, typer.Option(help="Show corrected images of the data set in the report.")] = True,
    device: options.Device = "auto",
) -> None:
    """Compare estimators of the light: train, estimate under added light, measure, write a report for each protocol.

    What is in the folder already is not done again.
    """
    import time

    from lightfast._experiments.illuminant.protocols import PROTOCOLS
    from lightfast._experiments.illuminant.report import write_illuminant_report
    from lightfast._experiments.illuminant.study import IlluminantStudy, choose_networks, classical_estimates

    where = options.choose_device(device)
    plan = _plan(recipe, data, steps, settings, where)
    chosen = choose_networks(networks)
    protocols = list(PROTOCOLS) if protocol == "all" else [protocol]
    if any(name not in PROTOCOLS for name in protocols):
        raise ValueError(f"the protocol is one of {', '.join(PROTOCOLS)}, or all; not {protocol!r}")
    scenes = _scenes(data)
    start = time.monotonic()
    classical = classical_estimates(scenes, where)
    for name in protocols:
        left = None if seconds is None else max(seconds - (time.monotonic() - start), 0.0)
        study = IlluminantStudy(
            scenes,
            name,
            plan,
            chosen,
            seeds,
            out / name,
            # Without a GPU trainings follow one another anyway, and each is then measured as soon as it is done.
            parallel=parallel if where.type == "cuda" else 1,
            seconds=left,
            device=where,
            say=typer.echo,
        )
        study.run()
        typer.echo("")
        typer.echo(write_illuminant_report(out / name, scenes, classical, photographs))
        typer.echo(
            f"written: {', '.join(str(out / name / file) for file in ('table.md', 'results.json', 'report.html'))}"
        )


def train_illuminant(
    data: Data = None,
    network: Network = "equivariant",
    members: Annotated[int, typer.Option(min=1, help="How many networks of each kind answer together.")] = 1,
    out: options.Out = Path("runs/estimator"),
    name: Annotated[str, typer.Option(help="The name of the files in the folder.")] = "model",
    recipe: Annotated[str | None, typer.Option(help="best or demo.")] = None,
    steps: options.Steps = None,
    parallel: options.Parallel = 12,
    settings: options.Settings = None,
    device: options.Device = "auto",
) -> None:
    """Train an estimator of the light on all images, and save it, as `lightfast balance --estimator` takes it."""
    from lightfast._experiments.illuminant.study import choose_networks, train_estimator
    from lightfast._experiments.provenance import provenance

    where = options.choose_device(device)
    plan = _plan(recipe, data, steps, settings, where)
    names = choose_networks(network)
    if len(names) != 1:
        raise ValueError(f"{network!r} names {len(names)} kinds of network; train one at a time")
    (chosen,) = names
    scenes = _scenes(data)
    details = {"data": scenes.name, "kind": chosen, "plan": plan.to_dict(), "provenance": provenance()}
    estimator = train_estimator(scenes, plan, chosen, members, where, parallel, details=details)
    folder = estimator.cpu().save(out, name)
    typer.echo(f"written: {folder / name}.safetensors and {folder / name}.json")


def _plan(
    recipe: str | None, data: Path | None, steps: int | None, settings: list[str] | None, device: torch.device
) -> IlluminantPlan:
    from lightfast._experiments.illuminant.plans import ILLUMINANT_PLANS

    recipe = recipe or ("demo" if data is None else "best")
    if recipe not in ILLUMINANT_PLANS:
        raise ValueError(f"the recipe is one of {', '.join(ILLUMINANT_PLANS)}, not {recipe!r}")
    plan = ILLUMINANT_PLANS[recipe]
    plan = plan if steps is None else plan.with_steps(steps)
    changes = dict(options.parse_setting(text) for text in settings or [])
    return plan.with_values(changes | {"graph": device.type == "cuda"})


def _scenes(data: Path | None) -> LitScenes:
    from lightfast._experiments.data.generated_scenes import draw_scenes
    from lightfast._experiments.data.nus import load_nus

    return draw_scenes() if data is None else load_nus(data)
