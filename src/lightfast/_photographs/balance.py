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
from torch.nn import functional as F

from lightfast._photographs.mixed import light_differences
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.pictures import as_photo
from lightfast._photographs.prior import likely_light
from lightfast._photographs.raw import RawPhoto
from lightfast._pipelines.estimator import Estimator
from lightfast.color import SRGB_TO_XYZ, light_of_temperature, temperature_of_light
from lightfast.constancy import CLASSICAL, balance_gains

__all__ = [
    "DEFAULT_ESTIMATOR",
    "NEUTRAL",
    "Balanced",
    "Found",
    "Prior",
    "apply_light",
    "balance",
    "cast_angle",
    "check_choice",
    "choose_estimator",
    "estimate_light",
    "photo_gains",
    "with_prior",
]

DEFAULT_ESTIMATOR = "illuminant"

Estimate = Callable[[Tensor], Tensor]
Prior = Literal["auto", "none"]

NEUTRAL = (3**-0.5, 3**-0.5, 3**-0.5)
_UNSEEN = 0.05


@dataclass(frozen=True)
class Balanced:
    """A picture that was balanced, and what was found in it.

    Attributes:
        picture: of the same kind as the one that was given; a :class:`lightfast.Photo` for a file.
        light: the illuminant that was taken away, three numbers of norm 1.
        gains: by which each channel of linear light was multiplied, up to where channels clip.
        estimated: the illuminant as it was estimated, before the prior.
        temperature: of `light`, in kelvin: see :func:`lightfast.color.temperature_of_light`. White of sRGB has 6502.
        tint: of `light`, above 0 for green and below for magenta. White of sRGB has about 10.
        spread: the error to expect of the estimate, in degrees; None if there is no estimate, or it does not say.
        done: what was done, in words.
    """

    picture: Any
    light: tuple[float, float, float]
    gains: tuple[float, float, float]
    estimated: tuple[float, float, float] = NEUTRAL
    temperature: float = 0.0
    tint: float = 0.0
    spread: float | None = None
    done: str = ""


@dataclass(frozen=True)
class Found:
    """The light of a photograph, and how it was found.

    Attributes:
        light: (3,), of norm 1, float64: what is to be taken away.
        estimated: likewise, before the prior.
        spread: the error to expect of the estimate, in degrees, if that is known.
        how: in words; empty where it was estimated.
    """

    light: Tensor
    estimated: Tensor
    spread: float | None = None
    how: str = ""


def balance(
    picture: Any,
    estimator: str | os.PathLike[str] | Estimate = DEFAULT_ESTIMATOR,
    *,
    strength: float = 1.0,
    linear: bool = False,
    prior: Prior = "auto",
    temperature: float | None = None,
    tint: float | None = None,
    pick: Sequence[float] | None = None,
    reference: Any = None,
    mixed: bool = False,
) -> Balanced:
    """The picture without the color of its light, which is estimated, or given, and divided out of linear light.

    Gains are those of :func:`lightfast.constancy.balance_gains`, times one number that keeps the mean luminance. Values
    are clipped to their range and rounded once; floating point is neither. Everything happens in the picture's own
    primaries, with the curve of its color profile.

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
        temperature: of the light, in kelvin, instead of an estimate. Alone, the tint is that of the picture's own
            white: D65, or what a raw file was shot with.
        tint: of the light, as programs that develop raw files count it. Alone, the temperature is likewise its own.
        pick: `(x, y)`, or `(x, y, radius)`: a spot that should be gray, in pixels of the upright picture.
        reference: a picture, of any of the above kinds, with the right colors. This one gets the light that the other
            seems to be under: if both show the same things, it becomes the other.
        mixed: the light differs over the picture: it is also estimated in parts, see
            :func:`lightfast._photographs.mixed.light_differences`.

    Returns:
        The balanced picture, of the same kind as the one given, with the light and the gains. For a file it is a
        :class:`lightfast.Photo`, whose `save` writes it with EXIF data and color profile.

    >>> yellowish = np.full((8, 8, 3), (200, 180, 120), np.uint8)
    >>> balance(yellowish, "gray-world", prior="none").picture[0, 0]
    array([181, 181, 181], dtype=uint8)
    >>> balance(yellowish, pick=(4, 4)).done
    'the spot made gray'
    """
    check_choice(strength, prior, temperature, tint, pick, reference, mixed)
    photo, back = as_photo(picture, linear)
    reduced = _reduced(photo)
    if temperature is not None or tint is not None:
        found = _by_hand(photo, temperature, tint)
    elif pick is not None:
        found = _of_spot(photo, pick)
    else:
        estimator = estimator if callable(estimator) else choose_estimator(estimator)
        estimated, spread = estimate_light(estimator, reduced)
        found = Found(estimated, estimated, spread)
        if reference is not None:
            found = _like_reference(photo, found, reference, estimator)
        elif prior == "auto":
            found = with_prior(photo, found)
        if mixed:
            return apply_light(photo, found, strength, back, reduced, estimator)
    return apply_light(photo, found, strength, back, reduced)


def check_choice(
    strength: float = 1.0,
    prior: str = "auto",
    temperature: float | None = None,
    tint: float | None = None,
    pick: Sequence[float] | None = None,
    reference: Any = None,
    mixed: bool = False,
    series: bool = False,
) -> None:
    """A sentence if the choices of :func:`balance` contradict each other, or cannot be meant."""
    if not 0 <= strength <= 1:
        raise ValueError(f"strength is how much of the light's color is taken away, from 0 to 1, not {strength}")
    if prior not in ("auto", "none"):
        raise ValueError(f"the prior is 'auto' or 'none', not {prior!r}")
    ways = {
        "temperature and tint": temperature is not None or tint is not None,
        "pick": pick is not None,
        "reference": reference is not None,
        "mixed": mixed,
        "series": series,
    }
    chosen = [name for name, given in ways.items() if given]
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} each say what the light is: choose one of them")
    if temperature is not None and not 1000 <= temperature <= 1e6:
        raise ValueError(f"the temperature of light is in kelvin, from 2000 (candles) to 50000, not {temperature:g}")
    if tint is not None and not -1000 <= tint <= 1000:
        raise ValueError(f"tint goes from -150 (magenta) to 150 (green), not to {tint:g}")
    if pick is not None and (len(pick) not in (2, 3) or (len(pick) == 3 and pick[2] < 0)):
        raise ValueError("a spot is x and y in pixels of the upright picture, and a radius if you like")


def apply_light(
    photo: Photo | RawPhoto,
    found: Found,
    strength: float = 1.0,
    back: Callable[[Photo], Any] = lambda photo: photo,
    reduced: np.ndarray | None = None,
    estimator: Estimate | None = None,
) -> Balanced:
    """The photograph without a light; with an estimator, also without the differences of light over it."""
    reduced = _reduced(photo) if reduced is None else reduced
    gains = photo_gains(found.light, reduced, strength, photo.white, photo.to_xyz[1])
    picture = photo.balanced(gains)
    temperature, tint = temperature_of_light(found.light, torch.from_numpy(photo.to_xyz))
    away = cast_angle((found.light / torch.from_numpy(photo.white)).tolist())
    change = f"changed by {away:.1f}°" if away * strength >= _UNSEEN else "left as it was"
    done = ": ".join(part for part in (found.how, change if found.how != _SPOT else "") if part)
    if estimator is not None:
        differences = strength * light_differences(estimator, picture.reduced())
        picture = picture.balanced(np.ones(3), differences)
        most = math.degrees(float(np.abs(differences).max())) / math.sqrt(3)
        done = f"{done}; light that differs by up to {most:.1f}° over the picture taken away"
    return Balanced(
        back(picture),
        tuple(found.light.tolist()),
        tuple(gains.tolist()),
        tuple(found.estimated.tolist()),
        float(temperature),
        float(tint),
        found.spread,
        done,
    )


def estimate_light(estimator: Estimate, reduced: np.ndarray) -> tuple[Tensor, float | None]:
    """The light (3,) of linear values (3, h, w), of norm 1, float64, and the error to expect of it, if it is known."""
    if not reduced.any():
        # All black or clipped: nothing tells the light.
        return torch.tensor(NEUTRAL, dtype=torch.float64), None
    images = torch.from_numpy(reduced)[None]
    with torch.no_grad():
        if isinstance(estimator, Estimator) and estimator.says_spread:
            light, spread = estimator.confident(images)
            return light[0].double(), float(spread)
        return estimator(images)[0].double(), None


def with_prior(photo: Photo | RawPhoto, found: Found) -> Found:
    """The same, if a camera may have balanced the photograph already: then less is to be taken away."""
    if isinstance(photo, RawPhoto) or photo.linear:
        return found
    return Found(likely_light(found.estimated), found.estimated, found.spread, found.how)


def _by_hand(photo: Photo | RawPhoto, temperature: float | None, tint: float | None) -> Found:
    to_xyz = torch.from_numpy(photo.to_xyz)
    own_temperature, own_tint = temperature_of_light(torch.from_numpy(photo.white), to_xyz)
    light = light_of_temperature(
        own_temperature if temperature is None else temperature, own_tint if tint is None else tint, to_xyz
    )
    return Found(light, light, how="set by hand")


_SPOT = "the spot made gray"


def _of_spot(photo: Photo | RawPhoto, pick: Sequence[float]) -> Found:
    light = F.normalize(torch.from_numpy(photo.spot(*pick)).double(), dim=0)
    return Found(light, light, how=_SPOT)


def _like_reference(photo: Photo | RawPhoto, found: Found, reference: Any, estimator: Estimate) -> Found:
    other = as_photo(reference)[0]
    # What is left of the light in the reference, as it is seen, and what that is in this photograph's own numbers.
    left = other.to_srgb @ (estimate_light(estimator, _reduced(other))[0].numpy() / other.white)
    own = np.linalg.solve(photo.to_srgb, left)
    light = found.estimated / torch.from_numpy(own).clamp(min=1e-4)
    return Found(F.normalize(light, dim=0), found.estimated, found.spread, "as the reference")


def _reduced(photo: Photo | RawPhoto) -> np.ndarray:
    reduced = photo.reduced()
    if len(reduced) != 3:
        raise PhotoError("a gray picture has no red, green and blue to balance")
    return reduced


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


def photo_gains(
    light: Tensor,
    reduced: np.ndarray,
    strength: float = 1.0,
    white: Sequence[float] | np.ndarray = (1.0, 1.0, 1.0),
    luminance: Sequence[float] | np.ndarray = SRGB_TO_XYZ[1],
) -> np.ndarray:
    """Gains (3,) that take away the color of a light (3,), or a part of it, and keep the mean luminance.

    Args:
        light: of norm 1.
        reduced: the photograph, linear (3, h, w).
        strength: see :func:`balance`.
        white: what has no color that could be taken away, as the camera balanced it.
        luminance: of each channel, sRGB's by default.
    """
    color = F.normalize(light / torch.as_tensor(white, dtype=light.dtype), dim=0)
    gains = balance_gains(color[None], strength)[0].numpy() / white
    mean = reduced.reshape(3, -1).mean(1)
    before, after = float(luminance @ mean), float(luminance @ (gains * mean))
    return gains * (before / after if after > 0 else 1 / gains[1])
