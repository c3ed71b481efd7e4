"""From sRGB images to what a classifier's network sees: color balance, color space and normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from lightfast.color import EPSILON, ChannelNorm, linear_to_srgb, srgb_to_linear, srgb_to_log
from lightfast.constancy import QuasiUnsupervised, correct, gray_world, shades_of_gray
from lightfast.fields import FieldSpec, remove_field
from lightfast.fields._bases import check_field
from lightfast.nn._group_dropout import GroupFill

__all__ = ["BALANCES", "Balance", "ColorSpace", "Preparation"]

ColorSpace = Literal["srgb", "log"]
Balance = Literal["gray-world", "shades-of-gray", "quasi-unsupervised"]


class _Estimate(nn.Module):
    """An estimator without weights, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, linear_images: Tensor) -> Tensor:
        return self.function(linear_images)


BALANCES: dict[str, Callable[[], nn.Module]] = {
    "gray-world": lambda: _Estimate(gray_world),
    "shades-of-gray": lambda: _Estimate(shades_of_gray),
    "quasi-unsupervised": QuasiUnsupervised,
}
"""Automatic color balancing, by name: makes an estimator from linear images (N, 3, H, W) to illuminants (N, 3)."""


class Preparation(nn.Module):
    """From sRGB images in [0, 1] to what a network sees; the same shape, (N, 3, H, W).

    `srgb`: an optional automatic color balance, then the normalization. `log`: log RGB, the normalization, and each
    channel less its mean over the image. The network that follows does not see that mean (its scores are invariant, or
    it is wrapped), but without it half precision keeps its digits under any light. With a `field`, each channel is
    without its projection onto a plane, a quadratic or another field, which the network then cannot see.

    Args:
        norm: mean and standard deviation, in the color space.
        color: `srgb` or `log`.
        balance: an estimator, from :data:`BALANCES`.
        fill: give a channel that the light left dark the pattern of the others; see :class:`lightfast.nn.GroupFill`.
        epsilon: of log RGB.
        field: light that is taken away from log RGB: 0, 1, 2 or a basis; see :mod:`lightfast.fields`.

    >>> import torch
    >>> norm = ChannelNorm([0.5] * 3, [0.25] * 3)
    >>> Preparation(norm)(torch.full((1, 3, 1, 1), 0.75)).flatten()
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        norm: ChannelNorm,
        color: ColorSpace = "srgb",
        balance: nn.Module | None = None,
        fill: bool = False,
        epsilon: float = EPSILON,
        field: FieldSpec = 0,
    ) -> None:
        super().__init__()
        if color not in ("srgb", "log"):
            raise ValueError(f"a network sees srgb or log colors, not {color!r}")
        if color == "srgb" and field != 0:
            raise ValueError("a field of light is taken away from log RGB, not from sRGB: use color='log'")
        self.norm, self.color, self.balance, self.epsilon = norm, color, balance, epsilon
        self.field = check_field(field)
        self.fill = GroupFill(3) if fill else nn.Identity()

    def correct(self, images: Tensor) -> Tensor:
        """The images after automatic color balance, in [0, 1] again; unchanged if there is none."""
        if self.balance is None:
            return images
        linear = srgb_to_linear(images)
        return linear_to_srgb(correct(linear, self.balance(linear)).clamp(0, 1))

    def encode(self, images: Tensor) -> Tensor:
        """Color space and normalization, for images that are balanced already."""
        if self.color == "srgb":
            return self.norm(images)
        return self.from_log(srgb_to_log(images, self.epsilon))

    def from_log(self, log: Tensor) -> Tensor:
        """What is done to log RGB, where light is an offset: normalization, and taking the field away.

        Dark channels are filled after that, when there is no light left that could have a say in which are dark.
        """
        return self.fill(remove_field(self.norm(log), 3, self.field)[0])

    def forward(self, images: Tensor) -> Tensor:
        return self.encode(self.correct(images))
