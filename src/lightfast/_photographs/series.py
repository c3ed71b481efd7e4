"""Photographs that one camera took together: one light for all of them, or one that changes slowly."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast._photographs.balance import (
    DEFAULT_ESTIMATOR,
    Balanced,
    Found,
    Prior,
    apply_light,
    check_choice,
    choose_estimator,
    choose_light,
)
from lightfast._photographs.photo import Photo
from lightfast._photographs.pictures import as_photo
from lightfast._photographs.raw import RawPhoto

__all__ = ["Shot", "balance_series", "join_lights", "series_lights", "shot_of"]

# By how much light may change, as the variance of its log chroma per second: not at all, by 0.1 in an hour, ten minutes
# and a minute. A change has to foretell photographs that are left out better than one light does, by this factor.
_RATES = (0.0, 0.01 / 3600, 0.01 / 600, 0.01 / 60)
_BETTER = 0.9
_FOLDS, _ROUNDS = 5, 15


@dataclass(frozen=True)
class Shot:
    """What a series needs to know of a photograph.

    Attributes:
        found: its light, from it alone.
        camera: its maker and model, as EXIF data has them; empty if they are unknown.
        time: when it was taken, in seconds; None if that is unknown.
    """

    found: Found
    camera: str = ""
    time: float | None = None


def balance_series(
    pictures: Sequence[Any],
    estimator: str | os.PathLike[str] | Callable[[Tensor], Tensor] = DEFAULT_ESTIMATOR,
    *,
    strength: float = 1.0,
    linear: bool = False,
    prior: Prior = "auto",
    times: Sequence[float] | None = None,
) -> list[Balanced]:
    """Photographs that were taken together, without the color of the light that they share.

    Those of one camera have one light, or one that changes slowly where that foretells them better: see
    :func:`series_lights`. This holds for raw files, and for pictures of a camera whose white balance was fixed; where a
    camera balances every picture anew, they do not share a light.

    Args:
        pictures: each of any kind that :func:`lightfast.balance` takes; files are read twice instead of kept.
        estimator: as for :func:`lightfast.balance`.
        strength: likewise.
        linear: likewise.
        prior: likewise, for each before they are joined.
        times: when each was taken, in seconds; by default as EXIF data says, if it does.

    Returns:
        For each picture what :func:`lightfast.balance` returns.

    >>> pictures = torch.rand(2, 3, 48, 64) * torch.tensor([1.0, 0.8, 0.5])[:, None, None]
    >>> first, second = balance_series(list(pictures), linear=True, prior="none")
    >>> first.light == second.light
    True
    """
    check_choice(strength, prior, series=True)
    if times is not None and len(times) != len(pictures):
        raise ValueError(f"there are {len(pictures)} pictures, but {len(times)} times: give one for each")
    estimate = estimator if callable(estimator) else choose_estimator(estimator)
    shots = [shot_of(as_photo(picture, linear)[0], estimate, prior) for picture in pictures]
    if times is not None:
        shots = [replace(shot, time=time) for shot, time in zip(shots, times, strict=True)]
    balanced = []
    for picture, found in zip(pictures, join_lights(shots), strict=True):
        photo, back = as_photo(picture, linear)
        one = apply_light(photo, found, strength)
        balanced.append(replace(one, picture=back(one.picture)))
    return balanced


def shot_of(photo: Photo | RawPhoto, estimator: Callable[[Tensor], Tensor], prior: Prior = "auto") -> Shot:
    """What a series needs to know of a photograph."""
    return Shot(choose_light(photo, estimator, prior=prior), *_taken(photo))


def join_lights(shots: Sequence[Shot]) -> list[Found]:
    """The light of each photograph, now that the others are known, camera by camera."""
    founds = [shot.found for shot in shots]
    for camera in dict.fromkeys(shot.camera for shot in shots):
        places = [place for place, shot in enumerate(shots) if shot.camera == camera]
        times = [shots[place].time for place in places]
        known = [time for time in times if time is not None]
        lights, changes = series_lights(
            torch.stack([founds[place].light for place in places]),
            torch.tensor(known, dtype=torch.float64) if len(known) == len(times) else None,
        )
        how = f"{'a light that changes slowly' if changes else 'one light'} for {len(places)} photographs"
        for place, light in zip(places, lights, strict=True):
            founds[place] = replace(founds[place], light=light, how=how)
    return founds


def series_lights(lights: Tensor, times: Tensor | None = None) -> tuple[Tensor, bool]:
    """One light, or a smooth curve of them in time, through estimates of which some are far off.

    In log RGB less its mean, `x_i` at the time `t_i`, the curve minimizes
    `Σ w_i |x_i - c_i|² / s² + Σ |c_i+1 - c_i|² / (κ (t_i+1 - t_i))`: a random walk of variance `κ` per second, seen
    with errors of variance `s²`. With Cauchy's weights `w_i = 1 / (1 + |x_i - c_i|² / 4 s²)` and `s` from the median of
    what is left, strangers do not count. `κ` is 0, one light for all, unless a larger one of a few foretells
    photographs that are left out better by a tenth. If all photographs are relit alike, so is the curve.

    Args:
        lights: (N, 3), of norm 1.
        times: (N,) in seconds; None for one light.

    Returns:
        The lights (N, 3), of norm 1, float64, and whether they change.
    """
    x = lights.double().clamp(min=1e-9).log()
    x = x - x.mean(1, keepdim=True)
    order = torch.arange(len(x)) if times is None else torch.argsort(times, stable=True)
    gaps = torch.zeros(len(x) - 1, dtype=torch.float64) if times is None else times[order].diff().clamp(min=0)
    x = x[order]
    rate = _chosen_rate(x, gaps) if len(x) >= 2 * _FOLDS and bool(gaps.sum() > 0) else 0.0
    curve = torch.empty_like(x)
    curve[order] = _robust_curve(x, gaps, rate, torch.ones(len(x), dtype=torch.float64))
    return F.normalize(curve.exp(), dim=1), rate > 0


def _chosen_rate(x: Tensor, gaps: Tensor) -> float:
    """The variance per second with which photographs that are left out, one in five at a time, are foretold best."""
    missed = []
    fold = torch.arange(len(x)) % _FOLDS
    for rate in _RATES:
        apart = torch.empty(len(x), dtype=torch.float64)
        for left_out in range(_FOLDS):
            curve = _robust_curve(x, gaps, rate, (fold != left_out).double())
            apart[fold == left_out] = (x - curve).norm(dim=1)[fold == left_out]
        missed.append(float(apart.clamp(max=3 * float(apart.median())).square().mean().sqrt()))
    best = min(range(len(_RATES)), key=missed.__getitem__)
    return _RATES[best] if missed[best] < _BETTER * missed[0] else 0.0


def _robust_curve(x: Tensor, gaps: Tensor, rate: float, counted: Tensor) -> Tensor:
    """The curve (N, 3) through points (N, 3) in order of time; those that count 0 only get an answer."""
    weights, curve = counted, x
    for _ in range(_ROUNDS):
        left = x - curve if curve is not x else x - x[counted > 0].median(0).values
        squared = left.square().sum(1)
        scale = squared[counted > 0].median().clamp(min=1e-8)
        weights = counted / (1 + squared / (4 * scale))
        if rate == 0:
            curve = ((weights[:, None] * x).sum(0) / weights.sum()).expand_as(x)
        else:
            curve = _smooth(x, weights / scale, 1 / (rate * gaps).clamp(min=1e-9))
    return curve


def _smooth(x: Tensor, weights: Tensor, ties: Tensor) -> Tensor:
    """Minimize `Σ w_i |x_i - c_i|² + Σ k_i |c_i+1 - c_i|²`: a tridiagonal system, solved by elimination."""
    full = weights.clone()
    full[:-1] += ties
    full[1:] += ties
    # Numbers one by one, which Python's own are fastest for.
    tie, diagonal, factors = ties.tolist(), full.tolist(), [0.0]
    for i in range(1, len(diagonal)):
        factors.append(tie[i - 1] / diagonal[i - 1])
        diagonal[i] -= factors[i] * tie[i - 1]
    columns = []
    for right in (weights[:, None] * x).T.tolist():
        for i in range(1, len(right)):
            right[i] += factors[i] * right[i - 1]
        right[-1] /= diagonal[-1]
        for i in range(len(right) - 2, -1, -1):
            right[i] = (right[i] + tie[i] * right[i + 1]) / diagonal[i]
        columns.append(right)
    return torch.tensor(columns, dtype=x.dtype).T


def _taken(photo: Photo | RawPhoto) -> tuple[str, float | None]:
    """The camera, and the time in seconds, as EXIF data says."""
    content = photo.kept.get("exif")
    if not content:
        return "", None
    from PIL import ExifTags, Image

    exif = Image.Exif()
    try:
        exif.load(content)
        inner = exif.get_ifd(ExifTags.IFD.Exif)
    except Exception:
        # What cameras write there may be anything, and a photograph without a time is one, too.
        return "", None
    camera = " ".join(str(exif.get(tag, "")).strip("\0 ") for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
    written = str(inner.get(ExifTags.Base.DateTimeOriginal) or exif.get(ExifTags.Base.DateTime)).strip("\0 ")
    fraction = str(inner.get(ExifTags.Base.SubsecTimeOriginal, "0")).strip("\0 ")
    try:
        moment = datetime.strptime(written, "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return camera.strip(), None
    return camera.strip(), moment.timestamp() + float(f"0.{fraction if fraction.isdigit() else 0}")
