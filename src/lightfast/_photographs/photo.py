"""Photographs in memory: pixels as a file holds them, their light, and other pixels in their place."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from lightfast.color import linear_to_srgb, srgb_to_linear

__all__ = ["Photo", "PhotoError", "decode_srgb", "encode_srgb"]

# Values from here on, of the largest, count as saturated.
_SATURATED = 0.99

# Linear light from which on a channel may be about to be clipped.
_BRIGHT = 0.8


class PhotoError(ValueError):
    """A photograph cannot be read or written; the message names the file."""


@dataclass(frozen=True)
class Photo:
    """A photograph, with all that its file said.

    Attributes:
        pixels: (H, W, 3), or (H, W, 1) for gray: uint8 or uint16, or floating point in [0, 1].
        kind: JPEG, PNG, TIFF, WEBP, HEIF or AVIF: what it is written as, unless the name of the file says otherwise.
        linear: whether values are linear in light, or have the gamma of sRGB.
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
            pixels = _encoded(_decoded(self.pixels, self.linear), np.dtype(np.uint16), False)
            photo = replace(photo, pixels=pixels, alpha=alpha, linear=False)
        if kind in ("PNG", "TIFF"):
            return photo
        alpha = None if kind == "JPEG" or photo.alpha is None else _eight_bits(photo.alpha)
        return replace(photo, pixels=_eight_bits(photo.pixels), alpha=alpha, kept=kept | {"quality": 95})

    def light(self, where: Any = ...) -> np.ndarray:
        """Linear light of (some of) the pixels, float32; 1 is the largest value of a file."""
        return _decoded(self.pixels[where], self.linear).astype(np.float32, copy=False)

    def stored(self, light: np.ndarray) -> np.ndarray:
        """Values as `pixels` has them, of linear light; clipped and rounded, unless they are floating point."""
        return _encoded(light, self.pixels.dtype, self.linear)

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
        # Light without a largest value, as floating point has it, is never saturated.
        top = np.inf if self.linear and blocks.dtype.kind == "f" else _SATURATED * _top(blocks.dtype)
        whole = (blocks < top).all(-1, keepdims=True)
        light = np.where(whole, _decoded(blocks, self.linear), 0)
        mean = light.sum((1, 3)) / np.maximum(whole.sum((1, 3)), 1)
        return np.ascontiguousarray(mean.transpose(2, 0, 1), dtype=np.float32)

    def balanced(self, gains: np.ndarray) -> Photo:
        """The photograph with each channel's linear light multiplied by its gain (3,), and rounded once.

        Where the brightest channel comes near the top of the range, it is known less and less how bright it was, and
        all gains grow by the same number until none darkens: what is clipped stays so, and white stays white. For whole
        numbers that is a table for each channel: exact, and as fast as looking things up.
        """
        gains = np.asarray(gains, dtype=np.float64)
        if self.pixels.dtype.kind == "f":
            light = _decoded(self.pixels, self.linear)
            boost = 1 if self.linear else _boost(light.max(-1, keepdims=True), gains)
            return replace(self, pixels=self.stored(light * (gains * boost)))
        levels = _table(self.pixels.dtype, self.linear)
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
        """A Pillow image of 8 bits, as the pixels are stored; with `side`, some of the pixels, at least so many."""
        from PIL import Image

        step = 1 if side is None else max(1, max(self.pixels.shape[:2]) // (2 * side))
        values = self.pixels[::step, ::step]
        if values.dtype.kind == "f":
            values = _encoded(_decoded(values, self.linear), np.dtype(np.uint8), False)
        return Image.fromarray(np.ascontiguousarray(_eight_bits(values).squeeze(-1 if values.shape[2] == 1 else ())))


def decode_srgb(values: np.ndarray) -> np.ndarray:
    """:func:`lightfast.color.srgb_to_linear`, for arrays."""
    return srgb_to_linear(torch.from_numpy(np.ascontiguousarray(values))).numpy()


def encode_srgb(light: np.ndarray) -> np.ndarray:
    """:func:`lightfast.color.linear_to_srgb`, for arrays."""
    return linear_to_srgb(torch.from_numpy(np.ascontiguousarray(light))).numpy()


def _boost(brightest: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """By which gains grow, for light of a brightest channel: 1 up to `_BRIGHT`, and at 1 so that none is below 1."""
    share = np.clip((brightest - _BRIGHT) / (1 - _BRIGHT), 0, 1)
    return 1 + share * share * (3 - 2 * share) * (max(1.0, 1 / gains.min()) - 1)


def _top(dtype: np.dtype) -> float:
    """The value of full light."""
    return 1.0 if dtype.kind == "f" else float(np.iinfo(dtype).max)


@cache
def _table(dtype: np.dtype, linear: bool) -> np.ndarray:
    """Linear light in [0, 1] of every value of a type."""
    values = np.arange(_top(dtype) + 1) / _top(dtype)
    return values if linear else decode_srgb(values)


def _decoded(pixels: np.ndarray, linear: bool) -> np.ndarray:
    if pixels.dtype.kind != "f":
        return _table(pixels.dtype, linear).astype(np.float32)[pixels]
    return pixels if linear else decode_srgb(pixels)


def _encoded(light: np.ndarray, dtype: np.dtype, linear: bool) -> np.ndarray:
    if dtype.kind == "f":
        return (light if linear else encode_srgb(light)).astype(dtype)
    light = np.clip(light, 0, 1)
    return np.round((light if linear else encode_srgb(light)) * _top(dtype)).astype(dtype)


def _eight_bits(values: np.ndarray) -> np.ndarray:
    return values if values.dtype == np.uint8 else (values >> 8).astype(np.uint8)
