"""Photographs in memory: pixels as a file holds them, their light, and other pixels in their place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from lightfast._photographs.profile import LINEAR, SRGB, Curve, space_of
from lightfast.color import SRGB_TO_XYZ

__all__ = ["Photo", "PhotoError"]

# Values from here on, of the largest, count as saturated.
_SATURATED = 0.99

# Linear light from which on a channel may be about to be clipped.
_BRIGHT = 0.8


class PhotoError(ValueError):
    """A photograph cannot be read or written; the message names the file."""


def complaint(error: Exception) -> str:
    """What a decoder says, in brackets; nothing, if it only names the object that it was given to read."""
    return "" if "object at 0x" in str(error) else f" ({error})"


@dataclass(frozen=True)
class Photo:
    """A photograph, with all that its file said.

    Attributes:
        pixels: (H, W, 3), or (H, W, 1) for gray: uint8 or uint16, or floating point in [0, 1].
        kind: JPEG, PNG, TIFF, WEBP, HEIF or AVIF: what it is written as, unless the name of the file says otherwise.
        linear: whether values are linear in light, or have the curve of their profile, sRGB's if there is none.
        alpha: (H, W), of the pixels' type; None if there is none.
        orientation: how the picture is to be turned, as EXIF numbers it; 1 for upright. Pixels are as in the file.
        kept: what is written again, as `exif`, `xmp`, `icc_profile` and `dpi`.
        note: what of the file is left out, in words.
    """

    pixels: np.ndarray
    kind: str = "PNG"
    linear: bool = False
    alpha: np.ndarray | None = None
    orientation: int = 1
    kept: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole file or nothing, as what the name ends in: .jpg, .png, .tif, .webp, .heic or .avif."""
        from lightfast._photographs.files import kind_named, write_photo

        write_photo(self.converted(kind_named(path)), path)

    def converted(self, kind: str) -> Photo:
        """To be written as another kind: PNG has at most 16 bits, TIFF all, others 8, and JPEG no alpha."""
        floating = np.issubdtype(self.pixels.dtype, np.floating)
        if kind == self.kind and not (floating and kind != "TIFF"):
            return self
        kept = {name: self.kept[name] for name in ("exif", "icc_profile", "dpi", "xmp") if name in self.kept}
        photo = replace(self, kind=kind, kept=kept)
        if floating and kind != "TIFF":
            alpha = None if self.alpha is None else np.round(self.alpha.clip(0, 1) * 65535).astype(np.uint16)
            photo = replace(photo, alpha=alpha, linear=False)
            pixels = _encoded(_decoded(self.pixels, self.curve), np.dtype(np.uint16), photo.curve)
            photo = replace(photo, pixels=pixels)
        if kind in ("PNG", "TIFF"):
            return photo
        alpha = None if kind == "JPEG" or photo.alpha is None else _eight_bits(photo.alpha)
        return replace(photo, pixels=_eight_bits(photo.pixels), alpha=alpha, kept=kept | {"quality": 95})

    @property
    def rendered(self) -> bool:
        """Whether a camera has balanced it already, as far as one can tell."""
        return not self.linear

    @property
    def curve(self) -> Curve:
        """From the values of the pixels to linear light."""
        return LINEAR if self.linear else space_of(self.kept.get("icc_profile")).curve

    @property
    def to_srgb(self) -> np.ndarray:
        """(3, 3), from linear light in the photograph's own primaries to linear sRGB."""
        return space_of(self.kept.get("icc_profile")).to_srgb

    @property
    def to_xyz(self) -> np.ndarray:
        """(3, 3), from linear light in the photograph's own primaries to CIE XYZ, white being D65."""
        return np.array(SRGB_TO_XYZ) @ self.to_srgb

    @property
    def white(self) -> np.ndarray:
        """(3,), linear light of what the photograph has as white."""
        return np.ones(3)

    def light(self, where: Any = ...) -> np.ndarray:
        """Linear light of (some of) the pixels, float32; 1 is the largest value of a file."""
        return _decoded(self.pixels[where], self.curve).astype(np.float32, copy=False)

    def stored(self, light: np.ndarray) -> np.ndarray:
        """Values as `pixels` has them, of linear light; clipped and rounded, unless they are floating point."""
        return _encoded(light, self.pixels.dtype, self.curve)

    def reduced(self, side: int = 512) -> np.ndarray:
        """Linear values (3, h, w), float32 in [0, 1], averaged over blocks so that the longer side is about `side`.

        Pixels with a channel at the top of the range are left out of the averages, as they say nothing of the light; a
        block of nothing else is 0, which estimators leave out too.
        """
        step = max(1, max(self.pixels.shape[:2]) // side)
        # A picture that is thinner than a block is one block across.
        down, across = (min(step, length) for length in self.pixels.shape[:2])
        height, width = self.pixels.shape[0] // down * down, self.pixels.shape[1] // across * across
        blocks = self.pixels[:height, :width].reshape(height // down, down, width // across, across, -1)
        # Every block is sampled, and a few of its pixels are enough for a mean.
        blocks = blocks[:, :: max(1, down // 2), :, :: max(1, across // 2)]
        whole = (blocks < self._saturated()).all(-1, keepdims=True)
        light = np.where(whole, _decoded(blocks, self.curve), 0)
        mean = light.sum((1, 3)) / np.maximum(whole.sum((1, 3)), 1)
        return np.ascontiguousarray(mean.transpose(2, 0, 1), dtype=np.float32)

    @cached_property
    def small(self) -> np.ndarray:
        """:meth:`reduced`, for estimates; kept, since several steps ask for it."""
        return self.reduced()

    def spot(self, x: float, y: float, radius: float | None = None) -> np.ndarray:
        """The mean linear light (3,) about a place in the upright picture, without what is clipped.

        Args:
            x: from the left, in pixels.
            y: from the top.
            radius: by default 0.5 % of the longer side.

        Raises:
            PhotoError: the place is outside, black or clipped.
        """
        pixels = _upright(self.pixels, self.orientation)
        height, width = pixels.shape[:2]
        if not (0 <= x < width and 0 <= y < height):
            raise PhotoError(f"the spot {x:g},{y:g} is outside the picture, which is {width} x {height} pixels")
        radius = max(1.0, 0.005 * max(height, width)) if radius is None else radius
        reach = int(radius) + 1
        top, left = max(0, int(y) - reach), max(0, int(x) - reach)
        part = pixels[top : int(y) + reach + 1, left : int(x) + reach + 1]
        rows, columns = np.mgrid[top : top + part.shape[0], left : left + part.shape[1]]
        inside = (rows - int(y)) ** 2 + (columns - int(x)) ** 2 <= radius**2
        chosen = part[inside & (part < self._saturated()).all(-1)]
        mean = _decoded(chosen, self.curve).astype(np.float64).mean(0) if len(chosen) else np.zeros(3)
        if not mean.min() > 0:
            raise PhotoError(f"the spot {x:g},{y:g} is black or clipped, and does not tell the light: pick another")
        return mean

    def _saturated(self) -> float:
        """Values from which on a channel is clipped; light without a largest value, as floating point, never is."""
        return np.inf if self.linear and self.pixels.dtype.kind == "f" else _SATURATED * _top(self.pixels.dtype)

    def balanced(self, gains: np.ndarray, differences: np.ndarray | None = None) -> Photo:
        """The photograph with each channel's linear light multiplied by its gain (3,), and rounded once.

        With `differences`, log RGB (3, h, w) over the picture, light that differs by these is also taken away.

        Where the brightest channel comes near the top of the range, it is known less and less how bright it was, and
        all gains grow by the same number until none darkens: what is clipped stays so, and white stays white. For whole
        numbers that is a table for each channel: exact, and as fast as looking things up.
        """
        gains = np.asarray(gains, dtype=np.float64)
        if differences is not None:
            return replace(self, pixels=self._relit(gains, differences))
        if np.abs(gains - 1).max() < 1e-9:
            # Most pictures are right, and this is the longest step.
            return self
        if self.pixels.dtype.kind == "f":
            light = _decoded(self.pixels, self.curve)
            boost = 1 if self.linear else _boost(light.max(-1, keepdims=True), gains)
            return replace(self, pixels=self.stored(light * (gains * boost)))
        levels = _table(self.pixels.dtype, self.curve)
        first = int(np.searchsorted(levels, _BRIGHT)) - 1
        brightest = np.maximum.reduce([self.pixels[..., channel] for channel in range(3)])
        pixels = np.empty_like(self.pixels)
        if self.pixels.dtype == np.uint8:
            # By how bright the brightest channel is, and the channel's own value.
            boosts = _boost(levels[first:], gains)[:, None]
            row = (brightest.clip(first) - np.uint8(first)).astype(np.uint16) << 8
            for channel, gain in enumerate(gains):
                table = self.stored(levels * (gain * boosts)).ravel()
                pixels[..., channel] = table[row | self.pixels[..., channel]]
            return replace(self, pixels=pixels)
        for channel, table in enumerate(self.stored(levels * gains[:, None])):
            pixels[..., channel] = table[self.pixels[..., channel]]
        where = brightest > first
        boost = _boost(levels[brightest[where]][:, None], gains)
        pixels[where] = self.stored(levels[self.pixels[where]] * (gains * boost))
        return replace(self, pixels=pixels)

    def _relit(self, gains: np.ndarray, differences: np.ndarray) -> np.ndarray:
        pixels = np.empty_like(self.pixels)
        for rows, part in resampled_rows(differences, *self.pixels.shape[:2]):
            light = _decoded(self.pixels[rows], self.curve)
            here = gains * np.exp(-part)
            boost = 1 if self.linear else _boost(light.max(-1, keepdims=True), here)
            pixels[rows] = self.stored(light * (here * boost))
        return pixels

    def upright(self, side: int | None = None) -> Any:
        """A Pillow image of 8 bits to look at, turned as the EXIF orientation says, its longer side `side` at most."""
        from PIL import ImageOps

        image = self.stored_image(side)
        image.getexif()[0x0112] = self.orientation
        image = ImageOps.exif_transpose(image)
        if side is not None:
            image.thumbnail((side, side))
        return image

    def stored_image(self, side: int | None = None) -> Any:
        """A Pillow image of 8 bits in sRGB, as the pixels lie; with `side`, some of the pixels, at least so many."""
        from PIL import Image

        step = 1 if side is None else max(1, max(self.pixels.shape[:2]) // (2 * side))
        values = self.pixels[::step, ::step]
        wide = values.shape[2] == 3 and not np.array_equal(self.to_srgb, np.eye(3))
        if wide or self.curve is not SRGB:
            light = _decoded(values, self.curve)
            values = _encoded(light @ self.to_srgb.T if wide else light, np.dtype(np.uint8), SRGB)
        return Image.fromarray(np.ascontiguousarray(_eight_bits(values).squeeze(-1 if values.shape[2] == 1 else ())))


def _boost(brightest: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """By which gains grow, for light of a brightest channel: 1 up to `_BRIGHT`, and at 1 so that none is below 1."""
    share = np.clip((brightest - _BRIGHT) / (1 - _BRIGHT), 0, 1)
    return 1 + share * share * (3 - 2 * share) * (np.maximum(1, 1 / gains.min(-1, keepdims=gains.ndim > 1)) - 1)


def _top(dtype: np.dtype) -> float:
    """The value of full light."""
    return 1.0 if dtype.kind == "f" else float(np.iinfo(dtype).max)


@lru_cache(8)
def _table(dtype: np.dtype, curve: Curve) -> np.ndarray:
    """Linear light in [0, 1] of every value of a type."""
    return curve.decode(np.arange(_top(dtype) + 1) / _top(dtype))


def _decoded(pixels: np.ndarray, curve: Curve) -> np.ndarray:
    if pixels.dtype.kind != "f":
        return _table(pixels.dtype, curve).astype(np.float32)[pixels]
    return curve.decode(pixels)


def _encoded(light: np.ndarray, dtype: np.dtype, curve: Curve) -> np.ndarray:
    if dtype.kind == "f":
        return curve.encode(light).astype(dtype)
    return np.round(curve.encode(np.clip(light, 0, 1)) * _top(dtype)).astype(dtype)


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """A view of pixels (H, W, C), turned as EXIF says."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    down, across = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}.get(orientation, (1, 1))
    return pixels[::down, ::across]


def resampled_rows(field: np.ndarray, height: int, width: int, strip: int = 128) -> Iterator[tuple[slice, np.ndarray]]:
    """A map (C, h, w) over an image, interpolated between the centers of its cells: (rows, W, C), strip by strip."""

    def places(length: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
        at = np.clip((np.arange(length) + 0.5) * cells / length - 0.5, 0, cells - 1)
        return at.astype(int), at - at.astype(int)

    left, share = places(width, field.shape[2])
    wide = field[:, :, left] * (1 - share) + field[:, :, np.minimum(left + 1, field.shape[2] - 1)] * share
    upper, part = places(height, field.shape[1])
    for first in range(0, height, strip):
        rows = slice(first, min(first + strip, height))
        low, weight = upper[rows], part[rows][:, None]
        strip_map = wide[:, low] * (1 - weight) + wide[:, np.minimum(low + 1, field.shape[1] - 1)] * weight
        yield rows, np.moveaxis(strip_map, 0, -1)


def _eight_bits(values: np.ndarray) -> np.ndarray:
    return values if values.dtype == np.uint8 else (values >> 8).astype(np.uint8)
