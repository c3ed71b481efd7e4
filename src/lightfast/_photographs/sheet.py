"""Contact sheets: photographs before and after, with the color of the light between the two, in pages."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightfast._photographs.folder import BalancedFile
from lightfast._photographs.profile import encode_srgb

__all__ = ["ContactSheets", "contact_sheet"]

PER_PAGE = 48


class ContactSheets:
    """Pages that are written as they fill up: `contact-sheet.jpg`, `contact-sheet-2.jpg` and so on.

    Args:
        folder: for the pages.
        taken: whether a file must not be written: a photograph, or one of before that is to be kept.
    """

    def __init__(self, folder: Path, taken: Callable[[Path], bool]) -> None:
        self.folder, self.taken = folder, taken
        self.written: list[Path] = []
        self._waiting: list[BalancedFile] = []

    def add(self, results: Iterable[BalancedFile]) -> None:
        """Put more photographs on the sheet."""
        self._waiting += results
        while len(self._waiting) >= PER_PAGE:
            self._write(PER_PAGE)

    def finish(self) -> None:
        """Write the last page."""
        if self._waiting:
            self._write(len(self._waiting))

    def _write(self, count: int) -> None:
        page, self._waiting = self._waiting[:count], self._waiting[count:]
        number = 1
        while (path := self._path(number)) in self.written or self.taken(path):
            number += 1
        contact_sheet(page).save(path, quality=90)
        self.written.append(path)

    def _path(self, number: int) -> Path:
        return self.folder / ("contact-sheet.jpg" if number == 1 else f"contact-sheet-{number}.jpg")


def contact_sheet(results: Sequence[BalancedFile], columns: int | None = None) -> Any:
    """A Pillow image with each photograph before and after, and a swatch of the light between the two."""
    from PIL import Image, ImageDraw, ImageFont

    side, bar, gap, line = 320, 28, 20, 26
    columns = columns or min(3, max(1, math.isqrt(len(results))))
    opened = [(result, _opened(result.before), _opened(result.after)) for result in results]
    rows = [opened[first : first + columns] for first in range(0, len(opened), columns)]
    heights = [max(max(before.height, after.height) for _, before, after in row) for row in rows]
    wide, tall = columns * (2 * side + bar + gap) + gap, sum(heights) + len(rows) * (line + gap) + gap
    sheet = Image.new("RGB", (wide, tall), "#1b1d22")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(15)
    top = gap
    for row, height in zip(rows, heights, strict=True):
        for column, (result, before, after) in enumerate(row):
            left = gap + column * (2 * side + bar + gap)
            start = left + side - before.width
            draw.text((start, top), _shortened(result.source.name, 60), fill="#d8dbe2", font=font)
            sheet.paste(before, (start, top + line))
            sheet.paste(after, (left + side + bar, top + line))
            swatch = (left + side + 6, top + line, left + side + bar - 7, top + line + before.height - 1)
            draw.rectangle(swatch, fill=_swatch(result.light))
        top += line + height + gap
    return sheet


def _opened(content: bytes | None) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(content or b""))


def _swatch(light: Sequence[float]) -> tuple[int, int, int]:
    """The color of a light on a screen, at full brightness."""
    red, green, blue = np.round(255 * encode_srgb(np.asarray(light) / max(light))).astype(int).tolist()
    return red, green, blue


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
