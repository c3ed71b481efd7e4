"""White balance of photographs: which files, which light, which gains, and a sheet to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightfast._photographs.files import RAW_SUFFIXES, PhotoError, read_photo, suffix_for, write_photo
from lightfast.constancy import CLASSICAL

__all__ = ["Balanced", "balance_photo", "choose_estimator", "contact_sheet", "find_photos", "gains_for", "output_paths"]

DEFAULT_ESTIMATOR = "cerberus-nus"

_PHOTO_SUFFIXES = RAW_SUFFIXES | {".jpg", ".jpeg", ".png", ".tif", ".tiff"}
_LUMA = np.array([0.2126, 0.7152, 0.0722])
_DARKEST = 0.02


@dataclass(frozen=True)
class Balanced:
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


def choose_estimator(name: str | None) -> Callable[[Tensor], Tensor]:
    """A classical, pretrained or saved estimator: from linear images (1, 3, H, W) to illuminants (1, 3)."""
    from lightfast._pipelines.estimator import Estimator
    from lightfast._pipelines.pretrained import pretrained, pretrained_names

    known = pretrained_names()
    name = name or (DEFAULT_ESTIMATOR if DEFAULT_ESTIMATOR in known else "shades-of-gray")
    if name in CLASSICAL:
        classical = CLASSICAL[name]
        return lambda images: classical(images, (images > 0).any(1, keepdim=True))
    if name in known:
        estimator = pretrained(name)
        if not isinstance(estimator, Estimator):
            raise ValueError(f"the pretrained model {name!r} is a {type(estimator).__name__}, and tells no light")
        return estimator
    if Path(name).is_dir():
        return Estimator.load(name)
    raise ValueError(
        f"{name!r} is no estimator: use one of {', '.join([*CLASSICAL, *known])}, or the folder of a trained one"
    )


def gains_for(light: np.ndarray, reduced: np.ndarray, strength: float = 1.0) -> np.ndarray:
    """Gains (3,) that take away the color of a light (3,), or a part of it, and keep the mean luminance.

    `1 / light ** strength`, times what keeps the luminance of the photograph `reduced` (3, h, w) on average.
    """
    gains = 1 / np.maximum(light / light.max(), _DARKEST) ** strength
    mean = reduced.reshape(3, -1).mean(1)
    before, after = float(_LUMA @ mean), float(_LUMA @ (gains * mean))
    return gains * (before / after if after > 0 else 1 / gains[1])


def balance_photo(
    source: Path, target: Path, estimate: Callable[[Tensor], Tensor], strength: float = 1.0, thumbnails: bool = False
) -> Balanced:
    """Read, estimate, correct, and write one photograph; `target` gets the suffix of its kind.

    Raises:
        PhotoError: it cannot be read, or written; the message names it.
    """
    photo = read_photo(source)
    reduced = photo.reduced()
    with torch.no_grad():
        light = estimate(torch.from_numpy(reduced)[None])[0].double().numpy()
    balanced = photo.balanced(gains_for(light, reduced, strength))
    target = target.with_name(target.name + suffix_for(photo.kind, source))
    if target.exists() and target.resolve() == source.resolve():
        raise PhotoError(f"{source} would be overwritten: name another folder with --out")
    try:
        write_photo(balanced, target)
    except OSError as error:
        raise PhotoError(f"{target} cannot be written ({error})") from error
    before, after = (photo.upright(320), balanced.upright(320)) if thumbnails else (None, None)
    return Balanced(source, target, (float(light[0]), float(light[1]), float(light[2])), before, after)


def contact_sheet(results: Sequence[Balanced], columns: int | None = None) -> Any:
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
    linear = np.asarray(light) / max(light)
    encoded = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055)
    red, green, blue = (int(value) for value in np.round(encoded * 255))
    return red, green, blue


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
