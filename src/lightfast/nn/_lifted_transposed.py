"""Transposed convolutions of lifted maps, and the way through a single pixel: what decoders are made of.

Of a lifted map `x = z + G o` a transposed convolution sees `z` alone. Where some taps of a phase fall outside the map,
they see `z = 0` there, which is `x = o`: so the layers here are `lf.nn.ConvTranspose2d` with `padding_mode="mean"`,
less the means that it would take and give back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast.functional import add_offset, group_pool
from lightfast.nn import _native
from lightfast.nn._constrained import Constrained, autocast_weight
from lightfast.nn._conv import Conv2d
from lightfast.nn._lifted import (
    Lifted,
    Made,
    NormActUnit,
    fit_channels,
    fit_weight,
    gets_idle_channels,
    made_from,
    map_of,
    padded_weight,
    without_idle,
    working_dtype,
)
from lightfast.nn._norm import BatchNorm2d
from lightfast.nn._norm_act_triton import padded_width
from lightfast.nn._projection_triton import layout_of, project_padded, suits_weight
from lightfast.nn._transposed import ConvTranspose2d

__all__ = [
    "ConvTransposeNormAct2d",
    "SqueezeNormAct",
    "as_row",
    "from_pixel",
    "from_row",
    "project_transposed",
    "squeeze_padded",
    "transpose_padded",
]


def project_transposed(weight: Tensor, groups: int, stride: int) -> Tensor:
    """The orthogonal projection of a transposed convolution's weight (m, n, k, k), `k` a multiple of `stride`.

    As `project_weight`, for equal contiguous runs of features, by views and means alone: nothing comes from the host,
    so it can be part of a CUDA graph.

    >>> w = project_transposed(torch.randn(6, 3, 4, 4), 3, 2)
    >>> phases = w.unflatten(0, (3, 2)).unflatten(4, (2, 2)).unflatten(3, (2, 2)).sum((1, 3, 5))
    >>> torch.allclose(phases, torch.eye(3)[..., None, None].expand_as(phases), atol=1e-5)
    True
    """
    taps = weight.shape[2] // stride
    blocks = weight.unflatten(3, (taps, stride)).unflatten(2, (taps, stride)).unflatten(0, (groups, -1))
    outputs = torch.arange(weight.shape[1], device=weight.device) // (weight.shape[1] // groups)
    own = outputs == torch.arange(groups, device=weight.device)[:, None]
    share = own.to(weight.dtype)[..., None, None] / (blocks.shape[1] * taps * taps)
    excess = blocks.mean((1, 3, 5)) - share
    return (blocks - excess[:, None, :, None, :, None]).flatten(5, 6).flatten(3, 4).flatten(0, 1)


def transpose_padded(z: Tensor, conv: nn.ConvTranspose2d, groups: int, made: Made | None = None) -> Tensor:
    """The transposed convolution of a map without its bias; on a GPU with idle channels, in 16 bits channels-last."""
    dtype = working_dtype(z)
    half = dtype in (torch.bfloat16, torch.float16)
    inputs = padded_width(conv.in_channels, z, dtype)
    # A map of 3 colours is the end: nothing follows that would want more.
    outputs = padded_width(conv.out_channels, z, dtype) if conv.out_channels > 3 else conv.out_channels

    def make(raw: Tensor) -> Tensor:
        layout = torch.channels_last if half else layout_of(raw)
        return _met(raw, conv, groups, (inputs, outputs), dtype, layout)

    weight = (made or made_from(conv))((inputs, outputs, dtype), make)
    z = fit_channels(z.to(dtype), inputs)
    z = z.contiguous(memory_format=torch.channels_last) if half else z
    padding: Any = conv.padding
    return F.conv_transpose2d(z, weight, None, conv.stride, padding)


def from_pixel(z: Tensor, conv: nn.ConvTranspose2d, groups: int, made: Made | None = None) -> Tensor:
    """The transposed convolution of a single pixel with kernel = stride, without its bias: a linear layer.

    On a GPU with idle channels.
    """
    dtype = working_dtype(z)
    channels = padded_width(conv.in_channels, z, dtype), padded_width(conv.out_channels, z, dtype)

    def make(raw: Tensor) -> Tensor:
        return _met(raw, conv, groups, channels, dtype, layout_of(raw))

    weight = (made or made_from(conv))(("row", channels, dtype), make)
    return from_row(fit_channels(z.to(dtype), channels[0]).flatten(1) @ as_row(weight, weight), weight)


def from_centred_pixel(z: Tensor, conv: nn.ConvTranspose2d, groups: int) -> tuple[Tensor, Tensor]:
    """As :func:`from_pixel`, less the level `φ(z)` (N, g), which is given beside it: `W (z - G φ(z))`."""
    dtype = working_dtype(z)
    channels = padded_width(conv.in_channels, z, dtype), padded_width(conv.out_channels, z, dtype)
    z, level = _centred(without_idle(z, conv.in_channels), groups)
    weight = fit_weight(conv.weight, *channels, dtype, layout_of(conv.weight))
    rows = fit_channels(z.to(dtype), channels[0]).flatten(1) @ as_row(weight, weight)
    return from_row(rows, weight), level


def squeeze_padded(z: Tensor, conv: nn.Conv2d, groups: int, made: Made | None = None) -> Tensor:
    """The convolution of the whole map without its bias, with idle channels: a linear layer."""
    dtype = working_dtype(z)
    layout = torch.contiguous_format if conv.weight.is_contiguous() else torch.channels_last
    weight = padded_weight(conv, groups, dtype, layout, made)
    z = fit_channels(z.to(dtype), weight.shape[1])
    return F.linear(as_row(z, weight), as_row(weight, weight))[..., None, None]


def as_row(x: Tensor, like: Tensor) -> Tensor:
    """(N, C, k, k) as rows (N, C k k), with the positions in the order in which `like` (.., C, k, k) has them."""
    return x.flatten(1) if like.is_contiguous() else x.permute(0, 2, 3, 1).flatten(1)


def from_row(y: Tensor, like: Tensor) -> Tensor:
    """Rows (N, C k k) as (N, C, k, k): the inverse of :func:`as_row`."""
    channels, side = like.shape[1], like.shape[2]
    if like.is_contiguous():
        return y.unflatten(1, (channels, side, side))
    return y.unflatten(1, (side, side, channels)).permute(0, 3, 1, 2)


class ConvTransposeNormAct2d(NormActUnit):
    """Transposed convolution, batch norm and a (leaky) ReLU on lifted maps, as `ConvNormAct2d` for convolutions.

    The parts hold the parameters and the state, `conv` and `norm`, and are the layers it equals when run one after
    another. Each phase of taps meets the constraint by itself. From a single pixel with kernel = stride, where every
    output sees one tap, every tap does; it is then computed as the linear layer that it is.

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: a multiple of `stride`; so are `stride`, `padding` and `bias` as in torch.
        slope: of the activation below the group's mean: 0 for ReLU, 1 for none.
        offset_groups: a number of equal contiguous runs.
        constrained: as for `ConvNormAct2d`: whether the weight meets the constraint. It follows offsets without.

    Shapes: (N, m, H, W) to (N, n, H', W').
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
        if kernel_size % stride:
            raise ValueError(f"the kernel must be a multiple of the stride, but {kernel_size} is none of {stride}")
        geometry = (in_channels, out_channels, kernel_size, stride, padding)
        self.conv: nn.ConvTranspose2d = (
            ConvTranspose2d(*geometry, bias=bias, padding_mode="mean", offset_groups=offset_groups)
            if constrained
            else nn.ConvTranspose2d(*geometry, bias=bias)
        )
        self.norm = BatchNorm2d(out_channels, offset_groups=offset_groups)
        self.slope, self.offset_groups = slope, offset_groups
        self.share_moments = None

    def forward(self, x: Lifted) -> Lifted:
        conv, z = self.conv, map_of(x, self.conv.in_channels)
        pixel = z.shape[2] == z.shape[3] == 1 and conv.kernel_size == conv.stride and not any(conv.padding)
        if pixel and _centres(conv, z):
            return self._finish(*_less_level(x, *from_centred_pixel(z, conv, self.offset_groups)))
        return self._finish(x, (from_pixel if pixel else transpose_padded)(z, conv, self.offset_groups))


class SqueezeNormAct(NormActUnit):
    """A convolution of the whole map to a single pixel, batch norm and a (leaky) ReLU, on lifted maps.

    `ConvNormAct2d` with a kernel of the size of the map, computed as the linear layer that it is.

    Args:
        in_channels: m.
        out_channels: n.
        kernel_size: height and width of the map.
        slope: of the activation below the group's mean.
        offset_groups: a number of equal contiguous runs.
        constrained: whether the weight meets the constraint.

    Shapes: (N, m, k, k) to (N, n, 1, 1).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        slope: float = 0.0,
        offset_groups: int = 3,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        geometry = (in_channels, out_channels, kernel_size)
        self.conv: nn.Conv2d = Conv2d(*geometry, offset_groups=offset_groups) if constrained else nn.Conv2d(*geometry)
        self.norm = BatchNorm2d(out_channels, offset_groups=offset_groups)
        self.slope, self.offset_groups = slope, offset_groups
        self.share_moments = None

    def forward(self, x: Lifted) -> Lifted:
        conv, z = self.conv, map_of(x, self.conv.in_channels)
        if gets_idle_channels(z):
            return self._finish(x, squeeze_padded(z, conv, self.offset_groups))
        z = without_idle(z, conv.in_channels)
        if _centres(conv, z):
            z, level = _centred(z, self.offset_groups)
            u = F.linear(as_row(z, conv.weight), as_row(conv.weight, conv.weight))[..., None, None]
            return self._finish(*_less_level(x, u, level))
        weight = autocast_weight(conv)
        return self._finish(x, F.linear(as_row(z, weight), as_row(weight, weight))[..., None, None])


def _centres(conv: Any, z: Tensor) -> bool:
    """Whether a layer of a whole map does better to centre the map than to project its weight, which is much larger.

    `P(W) z = W (z - G φ(z)) + G φ(z)`, and the gradient of the weight comes out projected. Not so where the projected
    weight is kept, which it is neither in training nor in a CUDA graph; nor on the CPU in 16 bits, where the weight is
    rounded in any case, and projected in the same pass.
    """
    if not isinstance(conv, Constrained):
        return False
    if not (torch.is_grad_enabled() and conv.weight.requires_grad):
        return z.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()
    if not z.is_cuda and (z.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cpu")):
        return False
    # The weight is about to change.
    conv.stop_keeping()
    return True


def _centred(z: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """`z - G φ(z)` and `φ(z)` (N, g)."""
    level = group_pool(z, groups)
    return add_offset(z, -level, groups), level.flatten(1)


def _less_level(x: Lifted, u: Tensor, level: Tensor) -> tuple[Lifted, Tensor]:
    """The same as `x` and `u + G level` to what centres `u`: the level then matters to the offset alone."""
    return x._replace(offset=None if x.offset is None else x.offset + level), u


def _met(
    weight: Tensor,
    conv: nn.ConvTranspose2d,
    groups: int,
    channels: tuple[int, int],
    dtype: torch.dtype,
    layout: torch.memory_format,
) -> Tensor:
    """The weight (m, n, k, k) with idle channels, (*channels, k, k), projected if it is constrained: in one pass."""
    if isinstance(conv, ConvTranspose2d):
        stride = conv.stride[0]
        if suits_weight(weight, dtype):
            inputs, outputs = channels
            return project_padded(weight, groups, outputs, inputs, dtype, layout, transposed=True, stride=stride)
        natively = _native.suits_weight(weight, dtype)
        weight = conv._project(weight, dtype) if natively else project_transposed(weight, groups, stride)
    return fit_weight(weight, *channels, dtype, layout)
