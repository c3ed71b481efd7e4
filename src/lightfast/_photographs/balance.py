"""White balance of a photograph: which light, and which gains."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.pictures import as_photo
from lightfast._photographs.prior import likely_light
from lightfast._pipelines.estimator import Estimator
from lightfast.constancy import CLASSICAL, balance_gains

__all__ = [
    "DEFAULT_ESTIMATOR",
    "NEUTRAL",
    "Balanced",
    "Prior",
    "balance",
    "cast_angle",
    "choose_estimator",
    "photo_gains",
]

DEFAULT_ESTIMATOR = "illuminant"

_LUMINANCE = np.array([0.2126, 0.7152, 0.0722])

Estimate = Callable[[Tensor], Tensor]
Prior = Literal["auto", "none"]

NEUTRAL = (3**-0.5, 3**-0.5, 3**-0.5)


@dataclass(frozen=True)
class Balanced:
    """A picture that was balanced, and what was found in it.

    Attributes:
        picture: of the same kind as the one that was given; a :class:`lightfast.Photo` for a file.
        light: the illuminant that was taken away, three numbers of norm 1.
        gains: by which each channel of linear light was multiplied, up to where channels clip.
        estimated: the illuminant as it was estimated, before the prior.
    """

    picture: Any
    light: tuple[float, float, float]
    gains: tuple[float, float, float]
    estimated: tuple[float, float, float] = NEUTRAL


def balance(
    picture: Any,
    estimator: str | os.PathLike[str] | Estimate = DEFAULT_ESTIMATOR,
    *,
    strength: float = 1.0,
    linear: bool = False,
    prior: Prior = "auto",
) -> Balanced:
    """The picture without the color of its light: the light is estimated, and divided out of linear light.

    Gains are those of :func:`lightfast.constancy.balance_gains`, times one number that keeps the mean luminance. Values
    are clipped to their range and rounded once; floating point is neither.

    Args:
        picture: a JPEG, PNG, TIFF, WebP, HEIC, AVIF or camera raw file; an array (H, W, 3) or a tensor (3, H, W), of
            uint8, uint16 or floating point in [0, 1]; or a Pillow image. Alpha, as a fourth channel, is left alone.
        estimator: a name that :func:`lightfast.load` knows, one of :data:`lightfast.constancy.CLASSICAL`, or a function
            from linear images (1, 3, H, W) to illuminants (1, 3).
        strength: how much of the light's color is taken away, from 0 to 1.
        linear: whether the numbers of an array or a tensor are linear in light, instead of sRGB.
        prior: `auto`: sRGB pictures have been balanced by a camera, mostly well, and are changed where the estimate
            says clearly that they have not, see :func:`lightfast._photographs.prior.likely_light`; raw files and linear
            numbers have no such prior. `none`: the estimate alone, which follows any change of light exactly.

    Returns:
        The balanced picture, of the same kind as the one given, with the light and the gains. For a file it is a
        :class:`lightfast.Photo`, whose `save` writes it with EXIF data and color profile.

    >>> yellowish = np.full((8, 8, 3), (200, 180, 120), np.uint8)
    >>> balance(yellowish, "gray-world", prior="none").picture[0, 0]
    array([181, 181, 181], dtype=uint8)
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"strength is how much of the light's color is taken away, from 0 to 1, not {strength}")
    photo, back = as_photo(picture, linear)
    reduced = photo.reduced()
    if len(reduced) != 3:
        raise PhotoError("a gray picture has no red, green and blue to balance")
    if prior not in ("auto", "none"):
        raise ValueError(f"the prior is 'auto' or 'none', not {prior!r}")
    if reduced.any():
        estimate = estimator if callable(estimator) else choose_estimator(estimator)
        with torch.no_grad():
            estimated = estimate(torch.from_numpy(reduced)[None])[0].double()
    else:
        # All black or clipped: nothing tells the light.
        estimated = torch.tensor(NEUTRAL, dtype=torch.float64)
    rendered = isinstance(photo, Photo) and not photo.linear
    light = likely_light(estimated) if prior == "auto" and rendered else estimated
    gains = photo_gains(light, reduced, strength)
    return Balanced(
        back(photo.balanced(gains)), tuple(light.tolist()), tuple(gains.tolist()), tuple(estimated.tolist())
    )


def cast_angle(light: Sequence[float]) -> float:
    """The angle between a light and white light, in degrees.

    >>> round(cast_angle((0.8, 0.59, 0.0995)), 1)
    30.6
    """
    return math.degrees(math.acos(min(1.0, sum(light) / math.sqrt(3) / math.hypot(*light))))


def choose_estimator(name: str | os.PathLike[str]) -> Estimate:
    """A classical or trained estimator by its name: from linear images (1, 3, H, W) to illuminants (1, 3)."""
    if isinstance(name, str) and name in CLASSICAL:
        classical = CLASSICAL[name]
        return lambda images: classical(images, (images > 0).any(1, keepdim=True))
    return Estimator.load(name)


def photo_gains(light: Tensor, reduced: np.ndarray, strength: float = 1.0) -> np.ndarray:
    """Gains (3,) that take away the color of a light (3,), or a part of it, and keep the mean luminance.

    Args:
        light: of norm 1.
        reduced: the photograph, linear (3, h, w).
        strength: see :func:`balance`.
    """
    gains = balance_gains(light[None], strength)[0].numpy()
    mean = reduced.reshape(3, -1).mean(1)
    before, after = float(_LUMINANCE @ mean), float(_LUMINANCE @ (gains * mean))
    return gains * (before / after if after > 0 else 1 / gains[1])
