"""Contact sheets: photographs before and after, in pages, as images or as HTML."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightfast._atomic import write_whole
from lightfast._photographs.folder import BalancedFile
from lightfast._photographs.profile import encode_srgb
from lightfast._photographs.slider import slider_page

__all__ = ["ContactSheets", "contact_sheet"]

PER_PAGE = 48
# A page with sliders can be scrolled; browsers hold some tens of megabytes.
PER_HTML_PAGE = 500


class ContactSheets:
    """Pages that are written as they fill up: `contact-sheet.jpg`, `contact-sheet-2.jpg` and so on.

    Args:
        path: of the first page. Its name ends in .html for a page with sliders, or in .jpg or .png.
        taken: whether a file must not be written: a photograph, or one of before that is to be kept.
    """

    def __init__(self, path: Path, taken: Callable[[Path], bool]) -> None:
        if path.suffix.lower() not in (".html", ".htm", ".jpg", ".jpeg", ".png"):
            raise ValueError(f"a contact sheet is a page or an image: {path} should end in .html, .jpg or .png")
        self.first, self.taken = path, taken
        self.html = path.suffix.lower() in (".html", ".htm")
        self.written: list[Path] = []
        self._waiting: list[BalancedFile] = []

    def add(self, results: Iterable[BalancedFile]) -> None:
        """Put more photographs on the sheet."""
        self._waiting += results
        most = PER_HTML_PAGE if self.html else PER_PAGE
        while len(self._waiting) >= most:
            self._write(most)

    def finish(self) -> None:
        """Write the last page."""
        if self._waiting:
            self._write(len(self._waiting))

    def _write(self, count: int) -> None:
        page, self._waiting = self._waiting[:count], self._waiting[count:]
        number = 1
        while (path := self._path(number)) in self.written or self.taken(path):
            number += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.html:
            write_whole(path, slider_page(page).encode())
        else:
            contact_sheet(page).save(path, quality=90)
        self.written.append(path)

    def _path(self, number: int) -> Path:
        return self.first if number == 1 else self.first.with_stem(f"{self.first.stem}-{number}")


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
            draw.rectangle(swatch, fill=_swatch(result.found.light if result.found else (1.0, 1.0, 1.0)))
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
