"""Resampling by area, as a product with weights."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["area_weights"]


def area_weights(first: Tensor, last: Tensor, size: int, pixels: int) -> Tensor:
    """Weights of area resampling along an axis: how much each of `pixels` counts in each of `size` cells.

    The stretch from `first` to `last`, in pixels, is cut into equal cells, and a pixel counts as far as it lies inside
    one. Both are (N,); the weights are (N, size, pixels), and those of a cell sum to its length.

    >>> area_weights(torch.zeros(1), torch.tensor([3.0]), size=2, pixels=3)
    tensor([[[1.0000, 0.5000, 0.0000],
             [0.0000, 0.5000, 1.0000]]])
    """
    steps = torch.arange(size + 1, device=first.device, dtype=first.dtype) / size
    edges = first[:, None] + (last - first)[:, None] * steps
    left = torch.arange(pixels, device=first.device, dtype=first.dtype)
    upper, lower = torch.minimum(edges[:, 1:, None], left + 1), torch.maximum(edges[:, :-1, None], left)
    return (upper - lower).clamp(min=0)
