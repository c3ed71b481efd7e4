"""Log RGB images held as what no light changes, and the log RGB of their mean color, which takes all of the light."""

from __future__ import annotations

from torch import Tensor

from lightfast import _backends
from lightfast.nn import LiftedMap


def about_mean_color(images: Tensor) -> LiftedMap:
    """(N, 3, H, W) in log RGB, `-log` of linear values, to `z = x - o` and `o = -log mean exp(-x)` over the pixels.

    >>> import torch
    >>> dark, bright = torch.full((1, 3, 4, 4), 2.0), torch.zeros(1, 3, 4, 4)
    >>> torch.equal(about_mean_color(dark).map, about_mean_color(bright).map)
    True
    """
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"expected images (N, 3, H, W), but got {tuple(images.shape)}")
    return LiftedMap(*_backends.about_mean_color(images))
