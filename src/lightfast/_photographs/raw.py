"""Camera raw files: estimated on in the sensor's own colors, and developed with the gains found there."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lightfast._photographs.formats import content_kind, needed, tiff_kept
from lightfast._photographs.photo import Photo, PhotoError
from lightfast.color import SRGB_TO_XYZ

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

    orientation, note, rendered = 1, "", False

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self._content, self._rawpy = path, content, needed("rawpy", "raw")

    @cached_property
    def _colors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Camera RGB of its own white and of D65, and the matrix from balanced camera RGB to sRGB, as the file says."""
        try:
            with self._opened() as raw:
                shot, daylight = (np.array(gains[:3]) for gains in (raw.camera_whitebalance, raw.daylight_whitebalance))
                matrix = np.array(raw.color_matrix)[:, :3]
        except (self._rawpy.LibRawError, OSError) as error:
            raise self._unreadable(error) from error
        known = [gains for gains in (shot, daylight) if gains.min() > 0] or [np.ones(3)]
        usable = abs(np.linalg.det(matrix)) > 1e-6 and matrix.sum(1).min() > 0
        return 1 / known[0], 1 / known[-1], matrix / matrix.sum(1, keepdims=True) if usable else np.eye(3)

    @property
    def white(self) -> np.ndarray:
        """(3,), camera RGB of white as the camera balanced it."""
        return self._colors[0]

    @property
    def to_srgb(self) -> np.ndarray:
        """(3, 3), from balanced camera RGB to linear sRGB."""
        return self._colors[2]

    @property
    def to_xyz(self) -> np.ndarray:
        """(3, 3), from camera RGB to CIE XYZ, by the camera's matrix for daylight."""
        return np.array(SRGB_TO_XYZ) @ self.to_srgb / self._colors[1]

    def reduced(self, side: int = 512) -> np.ndarray:
        """As :meth:`Photo.reduced`, in camera RGB."""
        return self._half_size.reduced(side)

    @cached_property
    def small(self) -> np.ndarray:
        """:meth:`reduced`, for estimates; kept, since several steps ask for it."""
        return self.reduced()

    def spot(self, x: float, y: float, radius: float | None = None) -> np.ndarray:
        """As :meth:`Photo.spot`, in camera RGB; pixels are those of the developed picture."""
        return self._half_size.spot(x / 2, y / 2, None if radius is None else radius / 2)

    @cached_property
    def _half_size(self) -> Photo:
        raw_space = self._rawpy.ColorSpace.raw
        return Photo(self._develop([1, 1, 1], raw_space, (1, 1), half_size=True), linear=True)

    def balanced(self, gains: np.ndarray) -> Photo:
        """Developed to sRGB with these gains as its white balance; 16 bits."""
        pixels = self._develop(list(gains), self._rawpy.ColorSpace.sRGB, (2.4, 12.92))
        return Photo(pixels, self.kind, kept=self.kept)

    def upright(self, side: int | None = None) -> Any:
        """As :meth:`Photo.upright`, in daylight balance."""
        return Photo(self._develop(None, self._rawpy.ColorSpace.sRGB, (2.4, 12.92), half_size=True)).upright(side)

    def _opened(self) -> Any:
        with warnings.catch_warnings():
            # It warns of processes that are copies of others. Ours are copied before it, and its threads, are there.
            warnings.simplefilter("ignore", RuntimeWarning)
            return self._rawpy.imread(io.BytesIO(self._content))

    def _develop(self, gains: Sequence[float] | None, space: Any, gamma: tuple[float, float], **how: Any) -> np.ndarray:
        balance = {} if gains is None else {"user_wb": [float(gains[place]) for place in (0, 1, 2, 1)]}
        try:
            with self._opened() as raw:
                return raw.postprocess(
                    **balance, **how, output_color=space, gamma=gamma, output_bps=16, no_auto_bright=True
                )
        except (self._rawpy.LibRawError, OSError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> PhotoError:
        return PhotoError(f"{self.path} cannot be read as a camera raw file ({error})")

    @cached_property
    def kept(self) -> dict[str, Any]:
        """EXIF data of the file, or of the preview inside; developing has turned it upright, and to sRGB."""
        from PIL import ExifTags, Image, ImageCms

        exif = Image.Exif()
        try:
            if content_kind(self._content) == "TIFF":
                exif.load(tiff_kept(lambda _: None, self._content).get("exif", b""))
            if not exif.get_ifd(ExifTags.IFD.Exif):
                with self._opened() as raw:
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
