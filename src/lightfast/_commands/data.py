"""`lightfast data`: whether a folder holds what an experiment reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["data"]


def data(
    experiment: Annotated[str, typer.Argument(help="What the folder is for: recognition, illuminant, inpainting, ...")],
    folder: Annotated[Path, typer.Argument(help="What `reproduce` and `train` take as --data.")],
    size: Annotated[int | None, typer.Option(min=1, help="Of pictures in pixels, where the experiment has it.")] = None,
) -> None:
    """Read a folder of data as an experiment would, and say what is in it, or what is wrong with it (exit 2)."""
    from lightfast._experiments import EXPERIMENTS
    from lightfast._experiments import experiment as find

    if experiment not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {experiment!r}; there are {', '.join(EXPERIMENTS)}")
    study = find(experiment)
    options = {field.name: field.default for field in dataclasses.fields(study) if "help" in field.metadata}
    if size is not None and "size" not in options:
        raise ValueError(f"{experiment} takes pictures as they are, and no --size")
    scaled = {} if size is None else {"size": size}
    loaded = study.load(folder, options | scaled | {"command": "reproduce", "recipe": study.usual_recipe})
    for name, text in _contents(loaded):
        typer.echo(f"{name}: {text}")
    typer.echo(f"good: lightfast reproduce {experiment} --data {folder}{f' --size {size}' if size else ''}")


def _contents(loaded: Any) -> Iterator[tuple[str, str]]:
    """The parts of a data set in words: shapes of images, names of classes and cameras."""
    for field in dataclasses.fields(loaded):
        value = getattr(loaded, field.name)
        if hasattr(value, "shape"):
            yield field.name, f"{' x '.join(map(str, value.shape))} {str(value.dtype).removeprefix('torch.')}"
        elif isinstance(value, dict):
            yield from ((f"{field.name}, {key}", " x ".join(map(str, each.shape))) for key, each in value.items())
        elif isinstance(value, list | tuple):
            some = ", ".join(map(str, value[:8]))
            yield field.name, f"{len(value)}: {some}{', ...' if len(value) > 8 else ''}"
        elif isinstance(value, str | int):
            yield field.name, str(value)
        elif hasattr(value, "__len__"):
            yield field.name, f"{len(value)}"
