"""`lightfast balance`: photographs without the color of their light."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lightfast._photographs.folder import BalancedFile


def balance(
    photos: Annotated[
        list[Path], typer.Argument(help="JPEG, PNG, TIFF, WebP, HEIC, AVIF or camera raw files, or folders of them.")
    ],
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
    prior: Annotated[
        str,
        typer.Option(
            help="auto: what a camera has balanced already is mostly right, and changed where the estimate says "
            "clearly that it is not; raw files have no such prior. none: the estimate alone."
        ),
    ] = "auto",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Photographs in work at a time; all cores by default.")
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into sub-folders, too.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Do again what is there already, instead of keeping it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each photograph.")] = False,
    sheet: Annotated[bool, typer.Option(help="Also write contact-sheet.jpg, with before, after and the light.")] = True,
) -> None:
    """Balance photographs: find the color of the light, and divide it out in linear light.

    EXIF, XMP and IPTC data and the color profile are kept, and no input is ever overwritten. A file that cannot be read
    is named, the others are done, and the exit code is 1. Ctrl-C ends at once; what is done is listed by then.
    """
    from lightfast._photographs.batch import cores, in_processes
    from lightfast._photographs.folder import find_photos, output_paths
    from lightfast._photographs.sheet import ContactSheets
    from lightfast._photographs.work import balance_one, check_estimator

    if prior not in ("auto", "none"):
        raise ValueError(f"the prior is auto or none, not {prior!r}")
    found = find_photos(photos, recursive, out)
    for sentence in found.left_out:
        typer.echo(f"lightfast: {sentence}", err=True)
    check_estimator(estimator)
    sheet = sheet and not dry_run
    if not dry_run:
        out.mkdir(parents=True, exist_ok=True)
    targets = output_paths(found.photos, out)
    options = {"strength": strength, "prior": prior, "thumbnails": sheet, "overwrite": overwrite, "dry_run": dry_run}
    tasks = [(photo, target, estimator, options) for photo, target in zip(found.photos, targets, strict=True)]
    used = {os.path.realpath(path) for path in found.photos}
    sheets = ContactSheets(out, lambda path: os.path.realpath(path) in used or (path.exists() and not overwrite))
    failed = done = kept = 0
    shown = _Progress(len(tasks))
    try:
        for number, result in in_processes(balance_one, tasks, jobs or cores(), out):
            shown.clear()
            if isinstance(result, Exception):
                failed += 1
                _say_failure(tasks[number][0], result, as_json)
            else:
                done, kept = done + (not result.kept), kept + result.kept
                used.add(os.path.realpath(result.target))
                typer.echo(json.dumps(_described(result)) if as_json else _line(result, dry_run))
                sheets.add([result] if sheet and not result.kept else [])
            shown.show(done + failed + kept)
    except KeyboardInterrupt:
        shown.clear()
        where = "" if dry_run else f", in {out}"
        typer.echo(f"interrupted: {done} of {len(tasks)} photographs are done{where}", err=True)
        # Nothing is left to clean up, and torch takes seconds to take itself down.
        os._exit(130)
    shown.clear()
    sheets.finish()
    for path in () if as_json else sheets.written:
        typer.echo(f"contact sheet: {path}")
    if kept:
        typer.echo(
            f"{kept} of {len(tasks)} were there already, and are kept: use --overwrite to do them again", err=True
        )
    if failed:
        typer.echo(f"{failed} of {len(tasks)} files could not be balanced", err=True)
        raise typer.Exit(1)


def _line(result: BalancedFile, dry_run: bool) -> str:
    arrow = "would go to" if dry_run else "->"
    if result.kept:
        return f"{result.source} {arrow} {result.target}  kept as it is"
    found = _described(result)
    light = " ".join(f"{number:.3f}" for number in result.light)
    note = f"; {result.note}" if result.note else ""
    moved, estimated = found["moved"], found["estimated_cast"]
    said = f"changed by {moved:.1f}°" if moved >= 0.05 else "left as it was"
    return f"{result.source} {arrow} {result.target}  light {light}, {said} (estimate {estimated:.1f}°){note}"


def _described(result: BalancedFile) -> dict[str, Any]:
    """What is known of a photograph, as JSON holds it."""
    from lightfast._photographs.balance import cast_angle

    known: dict[str, Any] = {"source": str(result.source), "target": str(result.target)}
    if result.kept:
        return known | {"kept": True}
    return known | {
        "light": list(result.light),
        "moved": round(cast_angle(result.light), 3),
        "estimated_light": list(result.estimated),
        "estimated_cast": round(cast_angle(result.estimated), 3),
        **({"note": result.note} if result.note else {}),
    }


def _say_failure(photo: Path, error: Exception, as_json: bool) -> None:
    text = str(error) if str(photo) in str(error) else f"{photo}: {error}"
    if as_json:
        typer.echo(json.dumps({"source": str(photo), "error": text}))
    typer.echo(f"lightfast: {text}", err=True)


class _Progress:
    """How many are done and how long the rest will take, on the last line of a terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.started = total, time.monotonic()
        self.on = total > 1 and os.isatty(2)

    def show(self, done: int) -> None:
        if self.on and done < self.total:
            left = (time.monotonic() - self.started) / done * (self.total - done)
            text = f"{done} of {self.total}, {left // 60:.0f}:{left % 60:02.0f} left"
            typer.echo(text, nl=False, err=True)

    def clear(self) -> None:
        if self.on:
            typer.echo("\r\033[K", nl=False, err=True)
