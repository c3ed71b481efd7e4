"""`lightfast evaluate`: how a trained model does under colored light."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lightfast._commands import options


def evaluate(
    run: Annotated[str, typer.Argument(help="A packaged model, the folder of another, or OWNER/NAME on the Hub.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="What `reproduce` takes for such a model (of a folder divided into train and val, val is used); by "
            "default, pictures that lightfast draws."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(min=8, help="Pixels to which pictures are scaled.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the lights.")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file, too.")] = None,
    device: options.Device = "auto",
) -> None:
    """Relight pictures with more and more saturated lights, and measure what a trained model gets wrong."""
    from lightfast._atomic import write_json
    from lightfast._experiments import EXPERIMENTS, experiment
    from lightfast._experiments.provenance import provenance
    from lightfast._pipelines.load import load

    pipeline = load(run)
    study = next(cls for cls in map(experiment, EXPERIMENTS) if cls.takes(pipeline))
    text, numbers = study.evaluate(pipeline, data, size, seed, options.choose_device(device))
    typer.echo(text)
    if json_out is not None:
        write_json(json_out, {"model": run, **numbers, "provenance": provenance()})
