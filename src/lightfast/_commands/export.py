"""`lightfast export`: a trained model as a file that needs no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    model: Annotated[
        str, typer.Argument(help="A packaged model, the folder of a trained one, or OWNER/NAME on the Hub.")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The new file: .onnx, or .pt2 for a program of torch.export.")
    ],
    opset: Annotated[int | None, typer.Option(help="The set of ONNX operators; 18 by default.")] = None,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic/--static",
            help="Batches of any number of images (and images of any size, for estimators), or of one alone.",
        ),
    ] = True,
    size: Annotated[
        str | None, typer.Option(help="Height and width of the images, such as 32x32; the model's own by default.")
    ] = None,
) -> None:
    """Write a whole model, from image to answer, to one file, and check that it answers as the model does."""
    import lightfast as lf

    written = lf.export(lf.load(model), out, opset=opset, dynamic=dynamic, size=None if size is None else _size(size))
    for name, shape in [*written.inputs.items(), written.output]:
        typer.echo(f"{'out' if name == written.output[0] else 'in':>5}  {name} {_shown(shape)}")
    typer.echo(
        f"{written.path}: {written.path.stat().st_size / 1e6:.1f} MB, checked on {written.batches} batches, random and "
        f"relit; the largest difference is {written.difference:.1e}, of answers up to {written.scale:.2g}"
    )


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.lower().partition("x")
    try:
        size = int(height), int(width or height)
    except ValueError:
        raise ValueError(f"expected a height and a width such as 32x48, but got {text!r}") from None
    if min(size) < 1:
        raise ValueError(f"an image is at least one pixel high and wide, but got {text!r}")
    return size


def _shown(shape: tuple[int | str, ...]) -> str:
    return " x ".join(map(str, shape))
