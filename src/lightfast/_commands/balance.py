"""`lightfast balance`: photographs without the color of their light."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lightfast._photographs.balance import Found
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
    temperature: Annotated[
        float | None, typer.Option(help="Set the light by hand: its color temperature in kelvin, from 2000 to 50000.")
    ] = None,
    tint: Annotated[
        float | None, typer.Option(help="Set the light by hand: from -150 for magenta to 150 for green light.")
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(metavar="X,Y[,R]", help="A spot that should be gray, in pixels of the upright picture."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="A photograph with the right colors: the others get its light.")
    ] = None,
    series: Annotated[
        bool,
        typer.Option(
            "--series",
            help="Photographs of one camera were taken together: one light, or one that changes slowly in time.",
        ),
    ] = False,
    mixed: Annotated[bool, typer.Option("--mixed", help="The light differs over the picture.")] = False,
    sidecar: Annotated[
        bool,
        typer.Option(
            "--sidecar",
            help="Of raw files, write temperature and tint beside them, as NAME.xmp, and nothing else.",
        ),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Photographs in work at a time; all cores by default.")
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into sub-folders, too.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Do again what is there already, instead of keeping it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each photograph.")] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(
            help="The contact sheet, with before and after: .html for a page with sliders, .jpg for images; "
            "contact-sheet.jpg among the balanced photographs by default.",
        ),
    ] = None,
    no_sheet: Annotated[bool, typer.Option("--no-sheet", help="Write no contact sheet.")] = False,
) -> None:
    """Balance photographs: find the color of the light, and divide it out in linear light.

    EXIF, XMP and IPTC data and the color profile are kept, and no input is ever overwritten. A file that cannot be read
    is named, the others are done, and the exit code is 1. Ctrl-C ends at once; what is done is listed by then.
    """
    from lightfast._photographs.balance import DEFAULT_ESTIMATOR, check_choice
    from lightfast._photographs.batch import cores, in_processes
    from lightfast._photographs.folder import find_photos, only_raw, output_paths
    from lightfast._photographs.sheet import ContactSheets
    from lightfast._photographs.work import balance_one, check_estimator

    spot = None if pick is None else _numbers(pick)
    check_choice(strength, prior, temperature, tint, spot, reference, mixed, series)
    given = temperature is not None or tint is not None or spot is not None
    if given and estimator != DEFAULT_ESTIMATOR:
        raise ValueError("the light is given, so there is nothing for --estimator to estimate: leave one of them out")
    if sidecar and mixed:
        raise ValueError("a sidecar has one white balance for the whole picture, and none for --mixed: choose one")
    if sheet is not None and (no_sheet or sidecar):
        raise ValueError(f"--sheet and {'--no-sheet' if no_sheet else '--sidecar'} contradict each other: choose one")
    found = find_photos(photos, recursive, out)
    if sidecar:
        found = only_raw(found)
    for sentence in found.left_out:
        typer.echo(f"lightfast: {sentence}", err=True)
    if not given:
        check_estimator(estimator)
    with_sheet = not (no_sheet or sidecar or dry_run)
    if not dry_run and not sidecar:
        out.mkdir(parents=True, exist_ok=True)
    options = {
        "strength": strength,
        "prior": prior,
        "temperature": temperature,
        "tint": tint,
        "pick": spot,
        "reference": reference,
        "mixed": mixed,
        "sidecar": sidecar,
        "thumbnails": with_sheet,
        "overwrite": overwrite,
        "dry_run": dry_run,
    }
    targets = dict(zip(found.photos, output_paths(found.photos, out), strict=True))
    jobs = jobs or cores()
    tasks = [(photo, target, estimator, options) for photo, target in targets.items()]
    if series:
        lights = _series_lights(list(found.photos), estimator, prior, jobs, out)
        tasks = [(photo, target, name, options | {"light": lights.get(photo)}) for photo, target, name, _ in tasks]
    used = {os.path.realpath(path) for path in found.photos}
    sheets = ContactSheets(
        sheet or out / "contact-sheet.jpg",
        lambda path: os.path.realpath(path) in used or (path.exists() and not overwrite),
    )
    failed = done = kept = 0
    shown = _Progress(len(tasks))
    try:
        for number, result in in_processes(balance_one, tasks, jobs, out):
            shown.clear()
            if isinstance(result, Exception):
                failed += 1
                _say_failure(tasks[number][0], result, as_json)
            else:
                done, kept = done + (not result.kept), kept + result.kept
                used.add(os.path.realpath(result.target))
                typer.echo(json.dumps(_described(result)) if as_json else _line(result, dry_run))
                sheets.add([result] if with_sheet and not result.kept else [])
            shown.show(done + failed + kept)
    except KeyboardInterrupt:
        shown.clear()
        where = "" if dry_run or sidecar else f", in {out}"
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


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"a spot is X,Y or X,Y,R in pixels, such as 400,300, not {text!r}") from None


def _series_lights(photos: list[Path], estimator: str, prior: Any, jobs: int, out: Path) -> dict[Path, Found]:
    """The light of each photograph, in a series with the others; files that cannot be read are left for later."""
    from lightfast._photographs.batch import in_processes
    from lightfast._photographs.series import join_lights
    from lightfast._photographs.work import look_at_one

    shots: dict[Path, Any] = {}
    shown = _Progress(len(photos), "looked at ")
    try:
        for number, shot in in_processes(look_at_one, [(photo, estimator, prior) for photo in photos], jobs, out):
            shown.clear()
            if not isinstance(shot, Exception):
                shots[photos[number]] = shot
            shown.show(len(shots))
    except KeyboardInterrupt:
        shown.clear()
        typer.echo(f"interrupted: {len(shots)} of {len(photos)} photographs are looked at, none is done", err=True)
        os._exit(130)
    shown.clear()
    in_order = [photo for photo in photos if photo in shots]
    return dict(zip(in_order, join_lights([shots[photo] for photo in in_order]), strict=True))


def _line(result: BalancedFile, dry_run: bool) -> str:
    from lightfast._photographs.folder import said_of

    return f"{result.source} {'would go to' if dry_run else '->'} {result.target}  {said_of(result)}"


def _described(result: BalancedFile) -> dict[str, Any]:
    """What is known of a photograph, as JSON holds it."""
    from lightfast._photographs.balance import cast_angle

    known: dict[str, Any] = {"source": str(result.source), "target": str(result.target)}
    found = result.found
    if found is None:
        return known | {"kept": True}
    return known | {
        "temperature": round(found.temperature, 1),
        "tint": round(found.tint, 2),
        "light": list(found.light),
        "gains": list(found.gains),
        "moved": round(cast_angle(found.light), 3),
        "estimated_light": list(found.estimated),
        "estimated_cast": round(cast_angle(found.estimated), 3),
        "spread": None if found.spread is None else round(found.spread, 3),
        "done": found.done,
        **({"note": result.note} if result.note else {}),
    }


def _say_failure(photo: Path, error: Exception, as_json: bool) -> None:
    text = str(error) if str(photo) in str(error) else f"{photo}: {error}"
    if as_json:
        typer.echo(json.dumps({"source": str(photo), "error": text}))
    typer.echo(f"lightfast: {text}", err=True)


class _Progress:
    """How many are done and how long the rest will take, on the last line of a terminal."""

    def __init__(self, total: int, doing: str = "") -> None:
        self.total, self.doing, self.started = total, doing, time.monotonic()
        self.on = total > 1 and os.isatty(2)

    def show(self, done: int) -> None:
        if self.on and 0 < done < self.total:
            left = (time.monotonic() - self.started) / done * (self.total - done)
            text = f"{self.doing}{done} of {self.total}, {left // 60:.0f}:{left % 60:02.0f} left"
            typer.echo(text, nl=False, err=True)

    def clear(self) -> None:
        if self.on:
            typer.echo("\r\033[K", nl=False, err=True)
