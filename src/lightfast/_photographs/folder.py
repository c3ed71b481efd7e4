"""Many photographs: which files, where each goes, and a sheet to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightfast._photographs.balance import balance
from lightfast._photographs.files import RAW_SUFFIXES, read_photo, suffix_for, write_photo
from lightfast._photographs.photo import PhotoError, encode_srgb

__all__ = ["BalancedFile", "balance_file", "contact_sheet", "find_photos", "output_paths"]

_PHOTO_SUFFIXES = RAW_SUFFIXES | {".jpg", ".jpeg", ".png", ".tif", ".tiff"}


@dataclass(frozen=True)
class BalancedFile:
    """A photograph that was balanced.

    Attributes:
        source: the file it came from.
        target: the file it went to.
        light: the estimated illuminant, three numbers of norm 1.
        before: a small Pillow image of it; None if none was asked for.
        after: likewise, balanced.
    """

    source: Path
    target: Path
    light: tuple[float, float, float]
    before: Any = None
    after: Any = None


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths`, and the photographs in the folders among them."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in _PHOTO_SUFFIXES)
            if not inside:
                raise ValueError(
                    f"{path} has no photographs ({', '.join(sorted(_PHOTO_SUFFIXES - RAW_SUFFIXES))}, raw)"
                )
            found += inside
        else:
            found.append(path)
    return found


def output_paths(photos: Sequence[Path], out: Path) -> list[Path]:
    """Where each photograph goes, without a suffix yet: never onto an input, nor two onto one."""
    inputs = {photo.resolve().with_suffix("") for photo in photos}
    taken: set[Path] = set()
    targets = []
    for photo in photos:
        stem = out.resolve() / photo.stem
        number, target = 1, stem
        while target in inputs or target in taken:
            target = stem.with_name(f"{photo.stem}-balanced" + ("" if number == 1 else f"-{number}"))
            number += 1
        taken.add(target)
        targets.append(out / target.name)
    return targets


def balance_file(
    source: Path, target: Path, estimate: Callable[[Tensor], Tensor], strength: float = 1.0, thumbnails: bool = False
) -> BalancedFile:
    """Read, balance and write one photograph; `target` gets the suffix of its kind.

    Raises:
        PhotoError: it cannot be read, or written; the message names it.
    """
    photo = read_photo(source)
    target = target.with_name(target.name + suffix_for(photo.kind, source))
    if target.exists() and target.resolve() == source.resolve():
        raise PhotoError(f"{source} would be overwritten: name another folder with --out")
    try:
        balanced = balance(photo, estimate, strength=strength)
    except PhotoError as error:
        raise PhotoError(f"{source}: {error}") from error
    write_photo(balanced.picture, target)
    before, after = (photo.upright(320), balanced.picture.upright(320)) if thumbnails else (None, None)
    return BalancedFile(source, target, balanced.light, before, after)


def contact_sheet(results: Sequence[BalancedFile], columns: int | None = None) -> Any:
    """A Pillow image with each photograph before and after, and a swatch of the light between the two."""
    from PIL import Image, ImageDraw, ImageFont

    side, bar, gap, line = 320, 28, 20, 26
    columns = columns or min(3, max(1, math.isqrt(len(results))))
    rows = [results[first : first + columns] for first in range(0, len(results), columns)]
    heights = [max(max(result.before.height, result.after.height) for result in row) for row in rows]
    wide, tall = columns * (2 * side + bar + gap) + gap, sum(heights) + len(rows) * (line + gap) + gap
    sheet = Image.new("RGB", (wide, tall), "#1b1d22")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(15)
    top = gap
    for row, height in zip(rows, heights, strict=True):
        for column, result in enumerate(row):
            left = gap + column * (2 * side + bar + gap)
            start = left + side - result.before.width
            draw.text((start, top), _shortened(result.source.name, 60), fill="#d8dbe2", font=font)
            sheet.paste(result.before, (start, top + line))
            sheet.paste(result.after, (left + side + bar, top + line))
            swatch = (left + side + 6, top + line, left + side + bar - 7, top + line + result.before.height - 1)
            draw.rectangle(swatch, fill=_swatch(result.light))
        top += line + height + gap
    return sheet


def _swatch(light: Sequence[float]) -> tuple[int, int, int]:
    """The color of a light on a screen, at full brightness."""
    red, green, blue = np.round(255 * encode_srgb(np.asarray(light) / max(light))).astype(int).tolist()
    return red, green, blue


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
