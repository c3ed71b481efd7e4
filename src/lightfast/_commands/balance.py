"""`lightfast balance`: photographs without the color of their light."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lightfast._photographs.folder import BalancedFile

__all__ = ["balance"]


def balance(
    photos: Annotated[list[Path], typer.Argument(help="JPEG, PNG, TIFF or camera raw files, or folders of them.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder for the balanced photographs.")] = Path(
        "balanced"
    ),
    estimator: Annotated[
        str,
        typer.Option(
            help="What tells the light: a packaged estimator, the folder of a trained one, OWNER/NAME on the Hub, or "
            "gray-world, white-patch, max-rgb, shades-of-gray, gray-edge-1, gray-edge-2, pca."
        ),
    ] = "illuminant",
    strength: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="How much of the light's color is taken away, from 0 to 1.")
    ] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="Photographs in work at a time.")] = min(4, os.cpu_count() or 1),
    sheet: Annotated[bool, typer.Option(help="Also write contact-sheet.jpg, with before, after and the light.")] = True,
) -> None:
    """Balance photographs: find the color of the light, and divide it out in linear light.

    EXIF data and color profile are kept, and no input is ever overwritten. A file that cannot be read is named, the
    others are done, and the exit code is 1.
    """
    from concurrent.futures import ThreadPoolExecutor

    from lightfast._photographs.balance import choose_estimator
    from lightfast._photographs.folder import balance_file, contact_sheet, find_photos, output_paths
    from lightfast._photographs.photo import PhotoError

    found = find_photos(photos)
    estimate: Callable[[Tensor], Tensor] = choose_estimator(estimator)
    out.mkdir(parents=True, exist_ok=True)
    done: list[BalancedFile] = []
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        targets = output_paths(found, out)
        tasks = [
            pool.submit(balance_file, photo, target, estimate, strength, sheet)
            for photo, target in zip(found, targets, strict=True)
        ]
        for task in _shown(tasks):
            try:
                done.append(task.result())
            except PhotoError as error:
                failed += 1
                typer.echo(f"lightfast: {error}", err=True)
    for result in done:
        red, green, blue = result.light
        typer.echo(f"{result.source} -> {result.target}  light {red:.3f} {green:.3f} {blue:.3f}")
    if sheet and done:
        contact_sheet(done).save(out / "contact-sheet.jpg", quality=90)
        typer.echo(f"contact sheet: {out / 'contact-sheet.jpg'}")
    if failed:
        typer.echo(f"{failed} of {len(found)} files could not be balanced", err=True)
        raise typer.Exit(1)


def _shown(tasks: Sequence[Any]) -> Any:
    """The tasks, behind a progress bar if there are many and somebody looks."""
    if len(tasks) < 2 or not os.isatty(2):
        yield from tasks
        return
    with typer.progressbar(tasks, label="balancing", file=typer.get_text_stream("stderr")) as bar:
        yield from bar
