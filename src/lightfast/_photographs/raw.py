"""Camera raw files: estimated on in the sensor's own colors, and developed with the gains found there."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightfast._photographs.formats import content_kind, needed, tiff_kept
from lightfast._photographs.photo import Photo, PhotoError

__all__ = ["RAW_SUFFIXES", "RawPhoto"]

RAW_SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("3fr", "arw", "cr2", "cr3", "dcr", "dng", "erf", "iiq", "kdc", "mef", "mos"),
        *("mrw", "nef", "nrw", "orf", "pef", "raf", "raw", "rw2", "rwl", "srw", "x3f"),
    )
)
"""Camera raw files, which are read with rawpy."""

# Tags from here on are DNG's; those below describe a sensor's pattern of colors.
_DNG, _SENSOR = 50706, (33421, 33422)


class RawPhoto:
    """A camera raw file, estimated on in the sensor's own colors and developed with the gains found there.

    Args:
        path: of the file.
        content: all of it.
    """

    kind = "TIFF"

    orientation, note = 1, ""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self._content, self._rawpy = path, content, needed("rawpy", "raw")

    def reduced(self, side: int = 512) -> np.ndarray:
        """As :meth:`Photo.reduced`, in camera RGB."""
        raw_space = self._rawpy.ColorSpace.raw
        return Photo(self._develop([1, 1, 1], raw_space, (1, 1), half_size=True), linear=True).reduced(side)

    def balanced(self, gains: np.ndarray) -> Photo:
        """Developed to sRGB with these gains as its white balance; 16 bits."""
        pixels = self._develop(list(gains), self._rawpy.ColorSpace.sRGB, (2.4, 12.92))
        return Photo(pixels, self.kind, kept=self._kept())

    def upright(self, side: int) -> Any:
        """As :meth:`Photo.upright`, in daylight balance."""
        return Photo(self._develop(None, self._rawpy.ColorSpace.sRGB, (2.4, 12.92), half_size=True)).upright(side)

    def _develop(self, gains: Sequence[float] | None, space: Any, gamma: tuple[float, float], **how: Any) -> np.ndarray:
        balance = {} if gains is None else {"user_wb": [float(gains[place]) for place in (0, 1, 2, 1)]}
        try:
            with self._rawpy.imread(io.BytesIO(self._content)) as raw:
                return raw.postprocess(
                    **balance, **how, output_color=space, gamma=gamma, output_bps=16, no_auto_bright=True
                )
        except (self._rawpy.LibRawError, OSError) as error:
            raise PhotoError(f"{self.path} cannot be read as a camera raw file ({error})") from error

    def _kept(self) -> dict[str, Any]:
        """EXIF data of the file, or of the preview inside; developing has turned it upright, and to sRGB."""
        from PIL import ExifTags, Image, ImageCms

        exif = Image.Exif()
        try:
            if content_kind(self._content) == "TIFF":
                exif.load(tiff_kept(lambda _: None, self._content).get("exif", b""))
            if not exif.get_ifd(ExifTags.IFD.Exif):
                with self._rawpy.imread(io.BytesIO(self._content)) as raw:
                    preview = Image.open(io.BytesIO(raw.extract_thumb().data)).getexif()
                    exif = preview if len(preview) else exif
        except Exception:
            # What makers of cameras write there may be anything, and is no reason to refuse the picture.
            exif = exif if len(exif) else Image.Exif()
        # DNG's own tags describe the sensor's values.
        for tag in [tag for tag in exif if tag >= _DNG or tag in _SENSOR]:
            del exif[tag]
        if ExifTags.Base.Orientation in exif:
            exif[ExifTags.Base.Orientation] = 1
        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        return {"icc_profile": profile} | ({"exif": exif.tobytes()} if len(exif) else {})
