"""From log RGB to what a conventional network was trained on, so that what it has learned still means the same."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightfast.color import ChannelNorm, linear_to_srgb, srgb_to_linear

__all__ = ["FromLog"]

POWER = 12.0
"""The least that is as good as any, on images that a network was trained on: `benchmarks/choose_level.py`."""

_BRIGHTEST = 4.0
"""Linear light beyond which a picture is cut: sRGB of it is about 1.8."""


class FromLog(nn.Module):
    """Normalized sRGB, from log RGB: `(srgb(exp(m - l(z) - z)) - mean) / std`.

    `l` is how bright each channel of an image is, the log of the power mean of its linear light `exp(-z)`,
    `l(z) = log(mean(exp(-p z))) / p`, as in shades of gray (Finlayson and Trezzi 2004): the brightest pixels, often
    white or lamps, count most. So the picture that comes out is as bright, in each channel, as usual images are: it is
    the one in their light, whatever light it was taken in. An offset that is added to a channel of `z` changes nothing.

    Args:
        norm: mean and standard deviation of sRGB that the network was trained with.
        images: log RGB of usual images, (N, 3, H, W), whose mean level is `m`; without them, `m` is that of normally
            distributed sRGB of the mean and deviation of `norm`.
        power: `p`.

    Shapes: (N, 3, H, W), unchanged.

    >>> to_srgb, z = FromLog(ChannelNorm([0.5] * 3, [0.25] * 3)), torch.rand(1, 3, 4, 4)
    >>> torch.allclose(to_srgb(z), to_srgb(z + torch.tensor([0.0, 1.0, 2.0]).reshape(3, 1, 1)), atol=1e-5)
    True
    """

    usual: Tensor

    def __init__(self, norm: ChannelNorm, images: Tensor | None = None, power: float = POWER) -> None:
        super().__init__()
        self.norm, self.power = ChannelNorm(norm.mean.detach().clone(), norm.std.detach().clone()), power
        usual = self._level_of(self.norm) if images is None else self._level(images).mean(0)
        self.register_buffer("usual", usual.to(self.norm.mean.dtype).reshape(3, 1, 1))

    def forward(self, z: Tensor) -> Tensor:
        wide = z if z.dtype == torch.float64 else z.float()
        linear = (self.usual - self._level(wide)[..., None, None] - wide).exp().clamp(max=_BRIGHTEST)
        return self.norm(linear_to_srgb(linear))

    def _level(self, z: Tensor) -> Tensor:
        """`l(z)`, of log RGB (N, 3, H, W): (N, 3)."""
        return ((-self.power * z).flatten(2).logsumexp(2) - math.log(z.shape[2] * z.shape[3])) / self.power

    def _level_of(self, norm: ChannelNorm) -> Tensor:
        """The level of normally distributed sRGB, cut to [0, 1]: (3,)."""
        values = torch.linspace(0, 1, 1001, dtype=norm.mean.dtype)[:, None]
        shares = torch.softmax(-((values - norm.mean) / norm.std).square() / 2, 0)
        return (shares * srgb_to_linear(values) ** self.power).sum(0).log() / self.power
