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


class PhotoError(ValueError):
    """A photograph cannot be read or written; the message names the file."""


@dataclass(frozen=True)
class Photo:
    """A photograph, with all that its file said.

    Attributes:
        pixels: (H, W, 3), or (H, W, 1) for gray: uint8 or uint16, or floating point in [0, 1].
        kind: JPEG, PNG or TIFF: what it is written as, if the name of the file does not say otherwise.
        linear: whether values are linear in light, or have the gamma of sRGB.
        alpha: (H, W), of the pixels' type; None if there is none.
        orientation: how the picture is to be turned, as EXIF numbers it; 1 for upright. Pixels are as in the file.
        kept: what is written again, as `exif`, `icc_profile` and `dpi`.
    """

    pixels: np.ndarray
    kind: str = "PNG"
    linear: bool = False
    alpha: np.ndarray | None = None
    orientation: int = 1
    kept: dict[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole file or nothing, as what the name ends in: .jpg, .png or .tif."""
        from lightfast._photographs.files import kind_named, write_photo

        write_photo(self.converted(kind_named(path)), path)

    def converted(self, kind: str) -> Photo:
        """To be written as another kind: JPEG has 8 bits and nothing to see through, PNG at most 16, TIFF all."""
        floating = np.issubdtype(self.pixels.dtype, np.floating)
        if kind == self.kind and not (floating and kind != "TIFF"):
            return self
        kept = {name: self.kept[name] for name in ("exif", "icc_profile", "dpi") if name in self.kept}
        photo = replace(self, kind=kind, kept=kept)
        if floating and kind != "TIFF":
            alpha = None if self.alpha is None else np.round(self.alpha.clip(0, 1) * 65535).astype(np.uint16)
            pixels = _encoded(_decoded(self.pixels, self.linear), np.dtype(np.uint16), False)
            photo = replace(photo, pixels=pixels, alpha=alpha, linear=False)
        if kind != "JPEG":
            return photo
        return replace(photo, pixels=_eight_bits(photo.pixels), alpha=None, kept=kept | {"quality": 95})

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
        height, width = (length // step * step for length in self.pixels.shape[:2])
        blocks = self.pixels[:height, :width].reshape(height // step, step, width // step, step, -1)
        # Every block is sampled, and a few of its pixels are enough for a mean.
        blocks = blocks[:, :: max(1, step // 2), :, :: max(1, step // 2)]
        # Light without a largest value, as floating point has it, is never saturated.
        top = np.inf if self.linear and blocks.dtype.kind == "f" else _SATURATED * _top(blocks.dtype)
        whole = (blocks < top).all(-1, keepdims=True)
        light = np.where(whole, _decoded(blocks, self.linear), 0)
        mean = light.sum((1, 3)) / np.maximum(whole.sum((1, 3)), 1)
        return np.ascontiguousarray(mean.transpose(2, 0, 1), dtype=np.float32)

    def balanced(self, gains: np.ndarray) -> Photo:
        """The photograph with each channel's linear light multiplied by its gain (3,), and rounded once.

        For whole numbers that is a table for each channel: exact, and as fast as looking things up.
        """
        if self.pixels.dtype.kind == "f":
            return replace(self, pixels=self.stored(_decoded(self.pixels, self.linear) * gains))
        tables = self.stored(_table(self.pixels.dtype, self.linear) * np.asarray(gains, dtype=np.float64)[:, None])
        pixels = np.empty_like(self.pixels)
        for channel, table in enumerate(tables):
            pixels[..., channel] = table[self.pixels[..., channel]]
        return replace(self, pixels=pixels)

    def upright(self, side: int | None = None) -> Any:
        """A Pillow image of 8 bits to look at, turned as the EXIF orientation says, its longer side `side` at most."""
        from PIL import Image, ImageOps

        step = 1 if side is None else max(1, max(self.pixels.shape[:2]) // (2 * side))
        values = self.pixels[::step, ::step]
        if values.dtype.kind == "f":
            values = _encoded(_decoded(values, self.linear), np.dtype(np.uint8), False)
        image = Image.fromarray(np.ascontiguousarray(_eight_bits(values).squeeze(-1 if values.shape[2] == 1 else ())))
        image.getexif()[0x0112] = self.orientation
        image = ImageOps.exif_transpose(image)
        if side is not None:
            image.thumbnail((side, side))
        return image


def decode_srgb(values: np.ndarray) -> np.ndarray:
    """:func:`lightfast.color.srgb_to_linear`, for arrays."""
    return srgb_to_linear(torch.from_numpy(np.ascontiguousarray(values))).numpy()


def encode_srgb(light: np.ndarray) -> np.ndarray:
    """:func:`lightfast.color.linear_to_srgb`, for arrays."""
    return linear_to_srgb(torch.from_numpy(np.ascontiguousarray(light))).numpy()


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
