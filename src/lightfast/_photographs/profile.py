"""What the numbers of a photograph mean: the curve and the primaries of its color profile.

Profiles of photographs (sRGB, Display P3, Adobe RGB, ProPhoto) are a curve and a matrix, which are read here. White
balance multiplies linear light in the profile's own primaries, so nothing leaves its gamut and nothing is converted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from lightfast.color import linear_to_srgb, srgb_to_linear

__all__ = ["LINEAR", "SRGB", "SRGB_SPACE", "Curve", "Space", "encode_srgb", "space_of"]

# Of sRGB's primaries, adapted to D50 as profiles have them (IEC 61966-2-1 with Bradford's adaptation).
_SRGB_COLORANTS = np.array(
    [[0.4360747, 0.3850649, 0.1430804], [0.2225045, 0.7168786, 0.0606169], [0.0139322, 0.0971045, 0.7141733]]
)
# Profiles of sRGB differ by so much from one another: their numbers are rounded, and their curves sampled.
_SAME = 0.003


@dataclass(frozen=True, eq=False)
class Curve:
    """From the values of a file, in [0, 1], to linear light, and back; floating point, number by number."""

    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Space:
    """A color space: its curve, and the matrix (3, 3) from its linear numbers to linear sRGB, where white is white."""

    curve: Curve
    to_srgb: np.ndarray


def _decode_srgb(values: np.ndarray) -> np.ndarray:
    return srgb_to_linear(torch.from_numpy(np.ascontiguousarray(values))).numpy()


def encode_srgb(light: np.ndarray) -> np.ndarray:
    """:func:`lightfast.color.linear_to_srgb`, for arrays."""
    return linear_to_srgb(torch.from_numpy(np.ascontiguousarray(light))).numpy()


LINEAR = Curve(lambda values: values, lambda light: light)
SRGB = Curve(_decode_srgb, encode_srgb)
SRGB_SPACE = Space(SRGB, np.eye(3))


@lru_cache(16)
def space_of(profile: bytes | None) -> Space:
    """The space of an ICC profile of a curve and a matrix; sRGB for none, and for what is of another kind.

    >>> space_of(None) is SRGB_SPACE
    True
    """
    try:
        found = _tags(profile or b"")
        colorants = np.array([_numbers(found[name][8:20]) for name in (b"rXYZ", b"gXYZ", b"bXYZ")]).T
        levels = np.arange(65536) / 65535
        # The curves of the three are the same in all spaces for photographs.
        light = _curve(found[b"gTRC"], levels)
    except (KeyError, struct.error, ValueError, IndexError):
        return SRGB_SPACE
    to_srgb = np.linalg.solve(_SRGB_COLORANTS, colorants)
    if not np.isfinite(to_srgb).all() or (np.diff(light) < 0).any() or abs(np.linalg.det(to_srgb)) < 1e-3:
        return SRGB_SPACE
    to_srgb = to_srgb / to_srgb.sum(1, keepdims=True)
    curve = SRGB if np.abs(light - _decode_srgb(levels)).max() < _SAME else _sampled(levels, light)
    return Space(curve, np.eye(3) if np.abs(to_srgb - np.eye(3)).max() < _SAME else to_srgb)


def _sampled(levels: np.ndarray, light: np.ndarray) -> Curve:
    """A curve through as many points as 16 bits have values, on which the way there and back is exact.

    Floating point is continued beyond 1 as a straight line, and mirrored below 0.
    """
    slope = (light[-1] - light[-2]) / (levels[-1] - levels[-2])

    def through(x: np.ndarray, xs: np.ndarray, ys: np.ndarray, beyond: float) -> np.ndarray:
        size = np.abs(x)
        inside = np.interp(size, xs, ys)
        value = np.where(size > xs[-1], ys[-1] + (size - xs[-1]) * beyond, inside)
        return (np.sign(x) * value).astype(x.dtype)

    return Curve(lambda values: through(values, levels, light, slope), lambda x: through(x, light, levels, 1 / slope))


def _tags(profile: bytes) -> dict[bytes, bytes]:
    if profile[16:24] != b"RGB XYZ ":
        raise ValueError("no profile of red, green and blue by a matrix")
    (count,) = struct.unpack_from(">I", profile, 128)
    places = (struct.unpack_from(">4sII", profile, 132 + 12 * number) for number in range(min(count, 200)))
    return {name: profile[start : start + size] for name, start, size in places}


def _numbers(data: bytes) -> list[float]:
    """Numbers of 16 bits before and after the point."""
    return [number / 65536 for number in struct.unpack(f">{len(data) // 4}i", data[: len(data) // 4 * 4])]


def _curve(tag: bytes, x: np.ndarray) -> np.ndarray:
    """Light of values, by a `curv` or a `para` tag (ICC.1:2022, 10.6 and 10.18)."""
    if tag[:4] == b"curv":
        (count,) = struct.unpack_from(">I", tag, 8)
        if count == 0:
            return x
        points = np.array(struct.unpack_from(f">{count}H", tag, 12))
        return x ** (points[0] / 256) if count == 1 else np.interp(x, np.linspace(0, 1, count), points / 65535)
    if tag[:4] != b"para":
        raise ValueError("no curve")
    (kind,) = struct.unpack_from(">H", tag, 8)
    g, a, b, c, d, e, f = (_numbers(tag[12:]) + [0.0] * 7)[:7]
    if kind == 0:
        return x**g
    power = np.clip(a * x + b, 0, None) ** g
    if kind in (1, 2):
        constant = c if kind == 2 else 0.0
        return np.where(x >= -b / a, power + constant, constant)
    if kind == 3:
        return np.where(x >= d, power, c * x)
    if kind == 4:
        return np.where(x >= d, power + e, c * x + f)
    raise ValueError(f"no curve of kind {kind}")
