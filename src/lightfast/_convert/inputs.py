"""From log RGB to what a conventional network was trained on, so that what it has learned still means the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightfast.color import ChannelNorm, linear_to_srgb, srgb_to_linear

__all__ = ["FromLog"]

_BRIGHTEST = 4.0
"""Linear light beyond which a picture about its mean is cut: sRGB of it is about 1.8."""


class FromLog(nn.Module):
    """Normalized sRGB, from log RGB about the mean of each image: `(srgb(exp(-(z + m))) - mean) / std`.

    `z` is log RGB, `log(1/x)`, less the mean of each channel over the image, as the network of a classifier on log RGB
    sees it, or the inside of :func:`lightfast.wrap`. The picture that comes out is the one in a light in which each
    channel has the (geometric) mean `exp(-m)`, whatever light it was taken in.

    Args:
        norm: mean and standard deviation of sRGB that the network was trained with.
        usual: `m`, the mean of log RGB over usual images, 3 numbers; by default that of `norm`'s mean color.

    Shapes: (N, 3, H, W), unchanged.

    >>> norm = ChannelNorm([0.5] * 3, [0.25] * 3)
    >>> FromLog(norm)(torch.zeros(1, 3, 1, 1)).flatten().abs().max().item() < 1e-5
    True
    """

    usual: Tensor

    def __init__(self, norm: ChannelNorm, usual: Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        mean, std = norm.mean.detach().clone(), norm.std.detach().clone()
        if usual is None:
            usual = -srgb_to_linear(mean.clamp(0.01, 1)).log()
        self.norm = ChannelNorm(mean, std)
        self.register_buffer("usual", torch.as_tensor(usual, dtype=mean.dtype).reshape(3, 1, 1))

    def forward(self, z: Tensor) -> Tensor:
        linear = (-(z + self.usual)).exp().clamp(max=_BRIGHTEST)
        return self.norm(linear_to_srgb(linear))
