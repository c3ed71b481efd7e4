"""Thin holes, filled by what is around them: the smoothest logarithm of light that meets it on all sides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["THIN", "diffused", "is_thin"]

_Map = Callable[[np.ndarray], np.ndarray]

THIN = 4
"""A hole is thin if none of its pixels is farther than so many from its rim."""

# Of the mean of a channel, added before the logarithm: black has none.
_FLOOR = 0.1

# The weight of a difference between neighbors, against that of the sum of four. Chosen on scratches in photographs that
# the benchmark does not use.
_TENSION = 0.25


def is_thin(inside: np.ndarray) -> bool:
    """Whether a hole, boolean (h, w), is gone when its rim is taken away :data:`THIN` times."""
    left = np.pad(inside, 1)
    for _ in range(THIN):
        rows = left[1:-1] & left[:-2] & left[2:]
        left[1:-1] = rows
        left[:, 1:-1] = left[:, 1:-1] & left[:, :-2] & left[:, 2:]
        if not left.any():
            return True
    return False


def diffused(light: np.ndarray, missing: np.ndarray, thin: np.ndarray) -> np.ndarray:
    """Linear light (N, C) for the pixels of `thin`, in their order.

    With `u_c = log(x_c + 0.1 m_c)`, `m_c` the mean of a channel where it is seen, the sum of `(Δu)²` over the pixels
    at and beside the hole is made least (biharmonic inpainting), by conjugate gradients; some of `|∇u|²` in it keeps
    noise at the rim from being continued. A gain of a channel adds to `u`, and so to what is filled in: light is
    followed exactly. No channel gets brighter than the brightest pixel seen.

    Args:
        light: linear (H, W, C); of pixels that are missing, anything.
        missing: boolean (H, W), true where nothing is seen; those that are not in `thin` are left out of the sum.
        thin: boolean (H, W), the pixels to fill in.
    """
    height, width, channels = light.shape
    seen = light[~missing].astype(np.float64)
    floor = np.maximum(_FLOOR * seen.mean(0), 1e-12)
    places = np.flatnonzero(thin)
    known = np.zeros((height * width + 1, channels))
    known[:-1][~missing.ravel()] = np.log(seen + floor)
    others = (missing & ~thin).ravel()
    beside = np.unique(np.concatenate([places, _neighbors(places, height, width).ravel()]))
    around = _neighbors(beside, height, width)
    # Where a neighbor is in a hole of another kind, nothing is asked of the pixel.
    asked = ~(others[beside] | others[around].any(1))
    beside, around = beside[asked], around[asked]
    start = _first_guess(known[:-1], missing.ravel(), places, height, width)
    numbers = np.full(height * width, len(places))
    numbers[places] = np.arange(len(places))
    rows = np.full(height * width, len(beside))
    rows[beside] = np.arange(len(beside))
    near = _neighbors(places, height, width)
    inner, inner_around, inner_near = numbers[beside], numbers[around], numbers[near]
    outer, outer_around = rows[places], rows[near]
    tight = np.where(others[near] | (near == places[:, None]), 0, _TENSION)[..., None]

    def forward(values: np.ndarray) -> np.ndarray:
        padded = np.vstack([values, np.zeros(channels)])
        bent = padded[inner_around].sum(1) - 4 * padded[inner]
        return np.vstack([bent, (tight * (padded[inner_near] - values[:, None])).reshape(-1, channels)])

    def back(values: np.ndarray) -> np.ndarray:
        bent = np.vstack([values[: len(beside)], np.zeros(channels)])
        steep = np.concatenate([tight * values[len(beside) :].reshape(-1, 4, channels), np.zeros((1, 4, channels))])
        # Seen from its upper neighbor, a pixel is the lower one.
        steeper = steep[inner_near, [1, 0, 3, 2]].sum(1) - steep[:-1].sum(1)
        return bent[outer_around].sum(1) - 4 * bent[outer] + steeper

    fixed = np.vstack([known[around].sum(1) - 4 * known[beside], (tight * known[near]).reshape(-1, channels)])
    found = _least(forward, back, -fixed, start)
    return np.clip(np.exp(found) - floor, 0, seen.max(0))


def _least(forward: _Map, back: _Map, wanted: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The least squares solution of `forward(x) = wanted`, by conjugate gradients (CGLS)."""
    found = start.copy()
    left = wanted - forward(found)
    gradient = back(left)
    step, size = gradient.copy(), (gradient**2).sum(0)
    enough = 1e-12 * np.maximum((back(wanted) ** 2).sum(0), 1e-30)
    for _ in range(600):
        if (size <= enough).all():
            break
        ahead = forward(step)
        length = size / np.maximum((ahead**2).sum(0), 1e-300)
        found += length * step
        left -= length * ahead
        gradient = back(left)
        size, before = (gradient**2).sum(0), size
        step = gradient + size / np.maximum(before, 1e-300) * step
    return found


def _first_guess(values: np.ndarray, missing: np.ndarray, places: np.ndarray, height: int, width: int) -> np.ndarray:
    """What is seen nearby, handed on from pixel to pixel."""
    values, missing, left = values.copy(), missing.copy(), places
    while len(left):
        around = _neighbors(left, height, width)
        weights = ~missing[around]
        counts = weights.sum(1)
        ready = counts > 0
        if not ready.any():
            values[left] = values[~missing].mean(0)
            break
        near = (values[around[ready]] * weights[ready][..., None]).sum(1) / counts[ready][:, None]
        values[left[ready]], missing[left[ready]] = near, False
        left = left[~ready]
    return values[places]


def _neighbors(places: np.ndarray, height: int, width: int) -> np.ndarray:
    """The four neighbors (N, 4) of pixels by their number; beyond the edge, the pixel itself."""
    y, x = np.divmod(places, width)
    up, down = np.maximum(y - 1, 0) * width + x, np.minimum(y + 1, height - 1) * width + x
    before, after = y * width + np.maximum(x - 1, 0), y * width + np.minimum(x + 1, width - 1)
    return np.stack([up, down, before, after], 1)
