"""Lifted maps: an equivariant map held as an invariant map and the offset of each group, `x = z + G o`.

Where groups are pooled over the whole image, offsets pass through every layer by themselves: convolution, normalisation
and activation act on `z` alone, and change `o` by what they take out of `z`. So `z` is an ordinary map, which may be
padded with zeros (that is padding `x` with the offset) and computed in low precision whatever the offset, and nothing
is spent on carrying the offset through it. A network of these layers is the network of the ordinary ones, computed
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast.functional import add_offset, group_pool
from lightfast.nn._constrained import Constrained, autocast_weight, forgotten
from lightfast.nn._conv import Conv2d
from lightfast.nn._native import is_last, observed
from lightfast.nn._norm import BatchNorm2d
from lightfast.nn._norm_act import norm_act
from lightfast.nn._norm_act_operators import norm_act_operators, suits_operators
from lightfast.nn._norm_act_triton import norm_act_kernels, padded_width, suits
from lightfast.nn._projection_triton import fit_padded, project_padded, suits_weight
from lightfast.nn._statistics import Operands, Statistics

__all__ = [
    "ConvNormAct2d",
    "Lift",
    "Lifted",
    "Made",
    "NormActUnit",
    "convolve_padded",
    "fit_channels",
    "fit_weight",
    "gets_idle_channels",
    "lifted",
    "lower",
    "made_from",
    "map_of",
    "moved",
    "padded_weight",
    "without_idle",
    "working_dtype",
]

Made: TypeAlias = Callable[[Hashable, Callable[[Tensor], Tensor]], Tensor]
"""Gives what a function makes of a layer's weight, perhaps kept from before under a name."""


class Lifted(NamedTuple):
    """An equivariant map `x = z + G o`: `z` (N, m, *positions) does not answer to offsets, `o` (N, g) takes them all.

    `o` is None where nobody will ask for it: in a network whose output is invariant. After its first `features`
    channels, if that is not None, `z` has idle ones, all zero, which the hardware is faster with.
    """

    map: Tensor
    offset: Tensor | None
    features: int | None = None


class Lift(nn.Module):
    """(N, m, *positions) to the lifted map `z = x - G φ(x)`, `o = φ(x)`, in at least float32.

    Args:
        offset_groups: a number of equal contiguous runs.
        keep_offset: whether anybody will ask for the offset.
    """

    def __init__(self, offset_groups: int = 3, keep_offset: bool = True) -> None:
        super().__init__()
        self.offset_groups, self.keep_offset = offset_groups, keep_offset

    def forward(self, x: Tensor) -> Lifted:
        offset = group_pool(x, self.offset_groups)
        return Lifted(add_offset(x, -offset, self.offset_groups), offset.flatten(1) if self.keep_offset else None)


def lower(x: Lifted, offset_groups: int = 3) -> Tensor:
    """The map itself, `z + G o`.

    >>> lower(Lift(3)(torch.tensor([[1.0, 2.0, 3.0]])))
    tensor([[1., 2., 3.]])
    """
    if x.offset is None:
        raise ValueError("this lifted map was made without its offset: build the network with keep_offset=True")
    return add_offset(x.map[:, : x.features], x.offset, offset_groups)


class NormActUnit(nn.Module):
    """What units share: batch norm, an optional shortcut, and the activation, after whatever makes `u`."""

    conv: Any
    norm: BatchNorm2d
    slope: float
    offset_groups: int
    share_moments: Callable[[Tensor], Tensor] | None

    def _finish(self, x: Lifted, u: Tensor, added: Lifted | None = None) -> Lifted:
        """All of it for `u`, which has the features of the unit and perhaps idle channels after them."""
        norm, features, groups = self.norm, self.conv.out_channels, self.offset_groups
        momentum: Any = norm.momentum
        statistics = Statistics(
            norm.training, norm.running_mean, norm.running_var, momentum, norm.eps, self.share_moments
        )
        shortcut = None if added is None else map_of(added, features)
        # Of a single pixel the kernels have no use for the moments, but in evaluation mode they do all the rest in one.
        worth = self.share_moments is None and (u.shape[2] * u.shape[3] > 1 or not norm.training)
        by_kernels = worth and suits(u, features, groups)
        by_operators = worth and not by_kernels and suits_operators(u, features, groups)
        knows_idle, channels = by_kernels or by_operators, u.shape[1]
        u = u if knows_idle else without_idle(u, features)
        if shortcut is not None:
            shortcut = fit_channels(shortcut.to(u.dtype), channels) if knows_idle else without_idle(shortcut, features)
        given = Operands(u, shortcut, self.conv.bias, norm.weight, norm.bias, statistics, groups, self.slope)
        if by_kernels:
            z, offset = norm_act_kernels(given, norm.num_batches_tracked)
            return moved(x, offset, z, features)
        if norm.training and norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        z, offset = norm_act_operators(given) if by_operators else norm_act(given)
        return moved(x, offset, fit_channels(z, channels), features)


class ConvNormAct2d(NormActUnit):
    """Convolution, batch norm, an optional shortcut, and a (leaky) ReLU, on lifted maps: the formula is in `norm_act`.

    The parts hold the parameters and the state, `conv` and `norm`, and are the layers it equals when run one after
    another with the shortcut centred; outside the map the convolution sees the offset.

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: of the convolution, and so are `stride`, `padding` and `bias`.
        slope: of the activation below the group's mean: 0 for ReLU, 1 for none.
        offset_groups: a number of equal contiguous runs.
        constrained: whether the weight meets the constraint of :class:`Conv2d`. A lifted map follows offsets without:
            the convolution sees `z` alone, and with a free weight this is the adapter `W * z + b + G o`.

    `share_moments`, where processes train together, averages a tensor over them; batch statistics are then of all.

    Shapes: (N, m, H, W) to (N, n, H, W).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        slope: float = 0.0,
        offset_groups: int = 3,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        shape = (in_channels, out_channels, kernel_size, stride, padding)
        self.conv = (
            Conv2d(*shape, bias=bias, padding_mode="mean", offset_groups=offset_groups)
            if constrained
            else nn.Conv2d(*shape, bias=bias)
        )
        self.norm = BatchNorm2d(out_channels, offset_groups=offset_groups)
        self.slope, self.offset_groups = slope, offset_groups
        self.share_moments = None

    def forward(self, x: Lifted, shortcut: Lifted | None = None) -> Lifted:
        conv, z = self.conv, map_of(x, self.conv.in_channels)
        if gets_idle_channels(z):
            return self._finish(x, convolve_padded(z, conv, self.offset_groups), shortcut)
        weight = autocast_weight(conv)
        with forgotten(conv, weight):
            u = F.conv2d(without_idle(z, conv.in_channels), weight, None, conv.stride, conv.padding)
        return self._finish(x, u, shortcut)


def lifted(z: Tensor, offset: Tensor | None, features: int) -> Lifted:
    """A map of so many features; what channels there are after them are idle."""
    return Lifted(z, offset, features if z.shape[1] > features else None)


def map_of(x: Lifted, features: int) -> Tensor:
    """The map, which must have so many features: idle channels would hide that it has others."""
    found = x.map.shape[1] if x.features is None else x.features
    if found != features:
        raise ValueError(f"expected a map of {features} features, but got one of {found}")
    return x.map


def moved(x: Lifted, offset: Tensor, z: Tensor, features: int) -> Lifted:
    """The map that a unit makes of `x`: `z` with so many features, and perhaps idle channels; the offset is added."""
    return lifted(z, None if x.offset is None else x.offset + offset, features)


def gets_idle_channels(z: Tensor) -> bool:
    """Whether what is convolved from `z` gets idle channels: on a GPU, compilers or not."""
    return z.is_cuda


def working_dtype(z: Tensor) -> torch.dtype:
    """The precision in which a map is convolved: that of autocast on a GPU, or its own."""
    return torch.get_autocast_dtype("cuda") if z.is_cuda and torch.is_autocast_enabled("cuda") else z.dtype


def convolve_padded(z: Tensor, conv: nn.Conv2d, groups: int, made: Made | None = None) -> Tensor:
    """The convolution of a map without its bias, with idle channels, which a GPU is faster with.

    16-bit maps lie channels-last, others as `z` does. `made` keeps the weight that is applied, if it is not as
    :func:`made_from` has it.
    """
    dtype = working_dtype(z)
    last = dtype != torch.float32 or (not observed(z) and is_last(z))
    layout = torch.channels_last if last else torch.contiguous_format
    weight = padded_weight(conv, groups, dtype, layout, made)
    z = fit_channels(z.to(dtype), weight.shape[1]).contiguous(memory_format=layout)
    padding: Any = conv.padding
    return F.conv2d(z, weight, None, conv.stride, padding)


def padded_weight(
    conv: nn.Conv2d, groups: int, dtype: torch.dtype, layout: torch.memory_format, made: Made | None = None
) -> Tensor:
    """The weight that a convolution applies to maps with idle channels, projected if it is constrained."""
    outputs, inputs = (padded_width(features, conv.weight, dtype) for features in (conv.out_channels, conv.in_channels))
    shape = (outputs, inputs, dtype, layout)

    def make(raw: Tensor) -> Tensor:
        if not isinstance(conv, Conv2d):
            return fit_weight(raw, *shape)
        if suits_weight(raw, dtype):
            return project_padded(raw, groups, *shape)
        return fit_weight(conv._project(raw), *shape)

    return (made or made_from(conv))(shape, make)


def made_from(conv: Any) -> Made:
    """What units make of a weight: kept while it may be, where it has a constraint to meet, and else made each time."""
    return conv.projection if isinstance(conv, Constrained) else lambda _, make: make(conv.weight)


def fit_weight(
    weight: Tensor, first: int, second: int, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """The weight (a, b, k, k) with idle channels, which are zero: (first, second, k, k); itself if it is that."""
    if suits_weight(weight, dtype):
        return fit_padded(weight, (first, second), dtype, memory_format)
    idle = (0, 0, 0, 0, 0, second - weight.shape[1], 0, first - weight.shape[0])
    weight = weight.to(dtype)
    return (F.pad(weight, idle) if any(idle) else weight).contiguous(memory_format=memory_format)


def fit_channels(z: Tensor, channels: int) -> Tensor:
    """`z` with as many idle channels as make it `channels`: more of them, or fewer."""
    missing = channels - z.shape[1]
    return F.pad(z, (0, 0, 0, 0, 0, missing)) if missing else z


def without_idle(z: Tensor, features: int) -> Tensor:
    """The features of a map alone."""
    return z if z.shape[1] == features else z[:, :features]
