"""Estimators that need no training: what the colors of an image average to is the light."""

from __future__ import annotations

import torch
from torch import Tensor


def gray_world(linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
    """Gray world (Buchsbaum 1980): the mean color of an image is the color of its light.

    Args:
        linear_images: (N, 3, H, W), linear in light.
        mask: (N, 1, H, W), true where a pixel counts; all of them by default.

    Returns:
        Illuminants (N, 3) of norm 1.

    >>> gray_world(torch.tensor([3.0, 4.0, 0.0]).reshape(1, 3, 1, 1))
    tensor([[0.6000, 0.8000, 0.0000]])
    """
    return shades_of_gray(linear_images, mask, p=1)


def shades_of_gray(linear_images: Tensor, mask: Tensor | None = None, p: float = 6) -> Tensor:
    """Shades of gray (Finlayson and Trezzi 2004): the light is the Minkowski mean `(mean x_c^p)^(1/p)`.

    `p = 1` is gray world; the larger `p`, the more the brightest pixels count.

    Args:
        linear_images: (N, 3, H, W), linear in light; negative values count as 0.
        mask: (N, 1, H, W), true where a pixel counts; all of them by default.
        p: the exponent, at least 1.

    Returns:
        Illuminants (N, 3) of norm 1.

    >>> shades_of_gray(torch.tensor([3.0, 4.0, 0.0]).reshape(1, 3, 1, 1))
    tensor([[0.6000, 0.8000, 0.0000]])
    """
    if not p >= 1:
        raise ValueError(f"the exponent of shades of gray must be at least 1, but is {p}")
    check_images(linear_images, mask)
    x = linear_images.clamp(min=0)
    # Brought to a largest value of 1, powers neither overflow nor vanish, and the norm does not care.
    x = x / x.amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    powers = x if p == 1 else x**p
    if mask is None:
        mean = powers.mean((2, 3))
    else:
        weight = mask.to(x.dtype)
        mean = (powers * weight).sum((2, 3)) / weight.sum((2, 3)).clamp(min=torch.finfo(x.dtype).tiny)
    # The root's slope is infinite at 0, where a dark channel would turn every gradient into NaN.
    lowest = 1e-30 if x.dtype != torch.float16 else 1e-7
    return unit(mean if p == 1 else torch.where(mean > lowest, mean.clamp(min=lowest) ** (1 / p), mean))


def unit(colors: Tensor) -> Tensor:
    """Colors (N, 3) of norm 1; black, which has no direction, becomes white.

    >>> unit(torch.tensor([[0.0, 0.0, 0.0], [0.0, 5.0, 0.0]]))
    tensor([[0.5774, 0.5774, 0.5774],
            [0.0000, 1.0000, 0.0000]])
    """
    black = (colors == 0).all(1, keepdim=True)
    return torch.nn.functional.normalize(torch.where(black, torch.ones_like(colors), colors), dim=1, eps=1e-30)


def check_images(linear_images: Tensor, mask: Tensor | None) -> None:
    """Raise a sentence unless these are images (N, 3, H, W), with a mask (N, 1, H, W) if any."""
    if linear_images.ndim != 4 or linear_images.shape[1] != 3 or not linear_images.is_floating_point():
        raise ValueError(
            f"expected linear images (N, 3, H, W) in floating point, but got {linear_images.dtype} of shape "
            f"{tuple(linear_images.shape)}"
        )
    n, _, height, width = linear_images.shape
    if mask is not None and tuple(mask.shape) != (n, 1, height, width):
        raise ValueError(f"expected a mask of shape {(n, 1, height, width)}, but it has {tuple(mask.shape)}")
