"""`lightfast evaluate`: how a trained classifier or inpainter does under colored light."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightfast._commands import options

if TYPE_CHECKING:
    from lightfast._pipelines.inpainter import Inpainter

__all__ = ["evaluate"]


def evaluate(
    run: Annotated[
        str, typer.Argument(help="The folder of a trained classifier or inpainter, or a pretrained one's name.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="CIFAR-10, or a folder with one sub-folder a class (of one divided into train and val, val is used); "
            "for inpainters, the folder that `reproduce inpainting` takes; by default, pictures that lightfast draws."
        ),
    ] = None,
    size: options.Size = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the lights.")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file, too.")] = None,
    device: options.Device = "auto",
) -> None:
    """Relight pictures with more and more saturated lights, and measure what a classifier or inpainter gets wrong."""
    from lightfast._atomic import write_json
    from lightfast._experiments.provenance import provenance
    from lightfast._experiments.recognition.evaluation import evaluate as count_errors
    from lightfast._experiments.recognition.workshop import evaluation_batch
    from lightfast._experiments.report.tables import evaluation_table
    from lightfast._pipelines.classifier import Classifier
    from lightfast._pipelines.inpainter import Inpainter
    from lightfast._pipelines.load import load

    pipeline = load(run)
    if isinstance(pipeline, Inpainter):
        _evaluate_inpainter(pipeline, run, data, seed, json_out, device)
        return
    classifier = Classifier.load(run)
    size = size or classifier.config["size"]
    images, labels, classes = options.load_test_images(data, size)
    if list(classes) != classifier.classes:
        raise ValueError(
            f"the pictures' classes are {_first(classes)}, but {run} was trained for {_first(classifier.classes)}"
        )
    where = options.choose_device(device)
    result = count_errors(
        classifier, images, labels, seed=seed, batch_size=evaluation_batch(images, where), device=where
    )
    typer.echo(evaluation_table(result))
    if json_out is not None:
        write_json(json_out, {"model": run, **dataclasses.asdict(result), "provenance": provenance()})


def _evaluate_inpainter(
    inpainter: Inpainter, run: str, data: Path | None, seed: int, json_out: Path | None, device: str
) -> None:
    from lightfast._atomic import write_json
    from lightfast._commands.reproduce_inpainting import load_images
    from lightfast._experiments.inpainting.evaluation import evaluate_inpainter
    from lightfast._experiments.inpainting.report import evaluation_table
    from lightfast._experiments.provenance import provenance

    where = options.choose_device(device)
    tests = load_images(data).tests
    found = {name: evaluate_inpainter(inpainter, images, seed=seed, device=where) for name, images in tests.items()}
    for name, numbers in found.items():
        typer.echo(f"{name}, {numbers.images} images:\n\n{evaluation_table(numbers)}\n")
    if json_out is not None:
        measured = {name: dataclasses.asdict(numbers) for name, numbers in found.items()}
        write_json(json_out, {"model": run, "tests": measured, "provenance": provenance()})


def _first(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
