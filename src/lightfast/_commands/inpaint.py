"""`lightfast inpaint`: holes in photographs, filled in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def inpaint(
    photo: Annotated[Path, typer.Argument(help="A JPEG, PNG or TIFF file.")],
    box: Annotated[
        list[str] | None, typer.Option(help="A rectangle to fill in: x,y,width,height in pixels; may be repeated.")
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(help="An image of the photograph's size, white where it is to be filled in.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="The file to write; PHOTO-filled beside the photograph by default."),
    ] = None,
    blend: Annotated[bool, typer.Option(help="Let what is filled in meet what is around it.")] = True,
    texture: Annotated[
        bool, typer.Option(help="Make large holes of patches from elsewhere in the photograph; else they are smooth.")
    ] = True,
    model: Annotated[
        str, typer.Option(help="A packaged inpainter, the folder of a trained one, or OWNER/NAME on the Hub.")
    ] = "context-encoder-slim",
) -> None:
    """Fill in parts of a photograph of any size; all other pixels stay as they are.

    EXIF data and color profile are kept, and the photograph itself is never overwritten. A JPEG file is written with
    the quality it had, which rounds again; name a .png file with --out to keep every other pixel bit by bit.
    """
    from lightfast._photographs.fill import fill_file, parse_box
    from lightfast._pipelines.inpainter import Inpainter

    if (box is None) == (mask is None):
        raise ValueError("say what to fill in, either with --box x,y,width,height or with --mask IMAGE")
    missing = mask if box is None else [parse_box(text) for text in box]
    target = photo.with_name(f"{photo.stem}-filled{photo.suffix}") if out is None else out
    told = {"blend": blend, "texture": texture, "progress": _show_progress if os.isatty(2) else None}
    count = fill_file(photo, target, missing, Inpainter.load(model), **told)
    typer.echo(f"{photo} -> {target}  {count} {'hole' if count == 1 else 'holes'} filled")


def _show_progress(part: float) -> None:
    """On the last line of a terminal, which is left empty in the end."""
    bar = f"{'#' * round(30 * part):30s} {part:4.0%}" if part < 1 else "\033[K"
    typer.echo(f"\r{bar}\r", nl=False, err=True)
