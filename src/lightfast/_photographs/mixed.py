"""Light that differs over a photograph: the same estimator, asked about parts of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["light_differences"]

# Windows along each side, the share of the side that each covers, and how much of what they say is believed.
_WINDOWS, _SHARE, _BELIEVED = 5, 0.4, 0.7
# Of the side: how far the word of a window reaches.
_REACH = 0.15


def light_differences(estimator: Callable[[Tensor], Tensor], reduced: np.ndarray, cells: int = 16) -> np.ndarray:
    """By how much the light at each place differs from the light of the whole: log RGB (3, cells, cells), of mean 0.

    The estimator answers for windows `k` in log RGB, `a_k`, and for the whole, `a`. At a place `p`, the light differs
    by `s Σ_k w_k(p) (a_k - a)`, with weights that sum to 1, fall off as a Gaussian about the middle of a window, and
    are smaller for windows of which little is seen; `s` is how much of differences is believed, since windows show less
    than the whole and their errors are larger.

    If one light is multiplied onto the picture, every `a_k` and `a` moves by the same, so that the differences do not
    change: one light is followed exactly. Light that differs is followed as far as windows see only one of it.

    Args:
        estimator: from linear images (N, 3, H, W) to illuminants (N, 3).
        reduced: linear (3, h, w); pixels that are 0 in all channels do not count.
        cells: of the map along each side.
    """
    height, width = reduced.shape[1:]
    middles = (np.arange(_WINDOWS) / (_WINDOWS - 1)) * (1 - _SHARE) + _SHARE / 2
    sides = [max(1, round(_SHARE * length)) for length in (height, width)]
    parts, seen, places = [], [], []
    for y in middles:
        for x in middles:
            top, left = (
                min(max(0, round(at * length - side / 2)), length - side)
                for at, length, side in ((y, height, sides[0]), (x, width, sides[1]))
            )
            part = reduced[:, top : top + sides[0], left : left + sides[1]]
            parts.append(part)
            seen.append((part > 0).any(0).mean())
            places.append((y, x))
    if not np.any(seen):
        return np.zeros((3, cells, cells))
    with torch.no_grad():
        answers = torch.cat([estimator(torch.from_numpy(np.stack(parts))), estimator(torch.from_numpy(reduced)[None])])
    logs = answers.double().clamp(min=1e-6).log().numpy()
    logs = logs - logs.mean(1, keepdims=True)
    grid = (np.arange(cells) + 0.5) / cells
    at = np.array(places)
    distance = (grid[:, None, None] - at[:, 0]) ** 2 + (grid[None, :, None] - at[:, 1]) ** 2
    weights = np.exp(-distance / (2 * _REACH**2)) * np.array(seen)
    weights = weights / weights.sum(-1, keepdims=True)
    return _BELIEVED * np.moveaxis(weights @ (logs[:-1] - logs[-1]), -1, 0)
