"""Centring and activation of a lifted map, without a norm between: one pass for means and one to apply.

`z = act(u + b - G φ(u + b))` and `φ(u + b)`, with `act(q) = max(q, 0) + slope · min(q, 0)`. On the CPU the passes are
those of `norm_act`, and the convolution has added its bias `b` already; on a GPU the kernels add it. Of the map nothing
but `z` is kept for the backward pass, which is likewise two passes.

Maxima commute with what never falls, so 2x2 max pooling after a ReLU is `relu(max (u + b) - G φ(u + b))`: means and
maxima are taken in one pass, and the rest is done on a quarter of the map.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightfast.functional import statistics_dtype
from lightfast.nn import _center_act_triton as kernels
from lightfast.nn import _native
from lightfast.nn._center_act_triton import Features
from lightfast.nn._constrained import autocast_weight
from lightfast.nn._lifted import convolve_padded, fit_channels, gets_idle_channels
from lightfast.nn._norm_act import group_mean, over, spread

__all__ = ["center_act", "center_relu_halve", "convolve"]


def convolve(z: Tensor, conv: Any, groups: int) -> tuple[Tensor, Tensor | None]:
    """A convolution of a lifted map, padded with zeros, and the bias that it leaves to :func:`center_act`, if any.

    On a GPU it does, and the map that it gives has idle channels.
    """
    if gets_idle_channels(z):
        # By the bias it is known how many channels are features.
        bias = z.new_zeros(conv.out_channels) if conv.bias is None else conv.bias
        return convolve_padded(z, conv, groups), bias
    return F.conv2d(z, autocast_weight(conv), conv.bias, conv.stride, conv.padding), None


def center_act(
    u: Tensor,
    groups: int,
    slope: float = 0.0,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
    cut: bool = False,
) -> tuple[Tensor, Tensor]:
    """The formula above.

    Args:
        u: (N, C, *positions), in `groups` equal contiguous runs of features.
        groups: g.
        slope: 0 for ReLU, 1 for no activation.
        bias: `b`, one a feature; channels of `u` after those features are idle, and become zeros.
        offset: (N, g), to which the level is added.
        cut: whether `z` is without idle channels, and contiguous where there were some.

    Returns:
        `z` like `u`, and the level `φ(u + b)` (N, g), or offset and level, in at least float32.

    >>> center_act(torch.tensor([[1.0, 3.0, 10.0, 20.0]]), groups=2)
    (tensor([[0., 1., 0., 5.]]), tensor([[ 2., 15.]]))
    """
    what = Features(u.shape[1] if bias is None else len(bias), groups)
    if u.dim() == 2 and kernels.suits_centring(u[..., None, None], what):
        z, level = center_act(u[..., None, None], groups, slope, bias, offset, cut)
        return z.flatten(1), level
    if kernels.suits_centring(u, what):
        return _CenterActByKernels.apply(u, bias, offset, what, slope, cut)
    channels, u = u.shape[1], _biased(u, bias)
    if _native.observed(u):
        # A compiler differentiates and fuses the plain operations by itself, and transforms know no others.
        z, level = _forward(u, groups, slope)
    elif not torch.is_grad_enabled() and _native.suits(u):
        zeros, ones = _constants(u)
        how = _native.Constants(None, ones, ones, zeros, zeros, zeros)
        z, level = _native.infer(u, None, how, slope, groups)
    else:
        z, level = _CenterAct.apply(u, groups, slope)
    return z if cut else _with_idle(z, channels), level if offset is None else offset + level


def center_relu_halve(
    u: Tensor, groups: int, bias: Tensor | None = None, offset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`relu(max (u + b) - G φ(u + b))`: centring, ReLU and 2x2 max pooling; and the level, over all pixels.

    Args:
        u: (N, C, H, W), in `groups` equal contiguous runs of features.
        groups: g.
        bias: as for :func:`center_act`.
        offset: as for :func:`center_act`.

    Returns:
        (N, C, H // 2, W // 2) in the precision of `u`, and the level (N, g), or offset and level, in at least float32.

    >>> z, level = center_relu_halve(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), groups=1)
    >>> z.item(), level.item()
    (3.0, 3.0)
    """
    what = Features(u.shape[1] if bias is None else len(bias), groups)
    if kernels.suits_centring(u, what) and _halves(u):
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (u, bias, offset)):
            return _CenterReluHalveByKernels.apply(u, bias, offset, what)
        return kernels.halve(u, bias, offset, what, with_places=False)[:2]
    channels, u = u.shape[1], _biased(u, bias)
    if not _native.suits(u) or not _halves(u):
        level = group_mean(_means(u), groups)
        z = torch.relu(F.max_pool2d(u, 2) - over(spread(level, u.shape[1]), u).to(u.dtype))
    elif torch.is_grad_enabled() and u.requires_grad:
        z, level = _CenterReluHalve.apply(u, groups)
    else:
        z, level, _ = _native.halve(u, groups, with_places=False)
    return _with_idle(z, channels), level if offset is None else offset + level


def _halves(u: Tensor) -> bool:
    return u.dim() == 4 and min(u.shape[2:]) > 1


def _biased(u: Tensor, bias: Tensor | None) -> Tensor:
    """`u + b` without idle channels."""
    return u if bias is None else u[:, : len(bias)] + over(bias, u).to(u.dtype)


def _with_idle(z: Tensor, channels: int) -> Tensor:
    return fit_channels(z, channels) if z.dim() == 4 else z


def _forward(u: Tensor, groups: int, slope: float) -> tuple[Tensor, Tensor]:
    native = _native.suits(u)
    level = group_mean(_native.moments(u, None)[0] if native else _means(u), groups)
    shift = -spread(level, u.shape[1])
    if native:
        return _native.apply(u, None, torch.ones_like(shift[0]), shift, slope), level
    return _activated(u + over(shift, u).to(u.dtype), slope), level


def _constants(u: Tensor) -> Tensor:
    """0 and 1 for each feature, (2, C), as the passes in C take them."""
    return torch.stack([u.new_zeros(u.shape[1], dtype=torch.float32), u.new_ones(u.shape[1], dtype=torch.float32)])


def _means(x: Tensor) -> Tensor:
    """(N, C, *positions) to (N, C)."""
    exact = statistics_dtype(x)
    return x.to(exact) if x.dim() == 2 else x.mean(tuple(range(2, x.dim())), dtype=exact)


def _activated(q: Tensor, slope: float) -> Tensor:
    return torch.relu(q) if slope == 0 else q if slope == 1 else torch.where(q > 0, q, slope * q)


class _CenterAct(torch.autograd.Function):
    """`du = dq - G φ(dq)`, with `dq = dz act'`, and what the level adds, equal over a group and its positions."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, groups: int, slope: float) -> tuple[Tensor, Tensor]:
        z, level = _forward(u, groups, slope)
        ctx.save_for_backward(z)
        ctx.groups, ctx.slope = groups, slope
        ctx.set_materialize_grads(False)
        return z, level

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_level = grads
        (z,) = ctx.saved_tensors
        slope, groups = ctx.slope, ctx.groups
        dz = torch.zeros_like(z) if dz is None else dz
        if _wants_torch(dz) or not _native.suits(z):
            return _through_act(dz, z, d_level, groups, slope), None, None
        dz = _native.fit(dz, z)
        mean = _native.backward_moments(dz, z, z, z.new_zeros(z.shape[:2], dtype=torch.float32), slope)[0]
        constant = spread(_added(mean, d_level, groups, z[0, 0].numel()), z.shape[1])
        zeros, ones = _constants(z)
        return _native.backward_apply(dz, z, z, ones, zeros, constant, constant, slope, False)[0], None, None


class _CenterActByKernels(torch.autograd.Function):
    """The same on a GPU, with the gradient of the bias: the sum of `du` over images and positions."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, slope: float, cut: bool
    ) -> tuple[Tensor, Tensor]:
        z, level = kernels.center(u, bias, offset, what, slope, cut)
        ctx.save_for_backward(z, bias)
        ctx.shape, ctx.last, ctx.what, ctx.slope = u.shape, _native.is_last(u), what, slope
        ctx.set_materialize_grads(False)
        return z, level

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_level = grads
        z, bias = ctx.saved_tensors
        dz = torch.zeros_like(z) if dz is None else dz
        what: Features = ctx.what
        if _wants_torch(dz):
            du = _through_act(dz[:, : what.count], z[:, : what.count], d_level, what.groups, ctx.slope)
            du, d_bias = _with_bias(du, bias, ctx.shape[1])
        else:
            du, d_bias = kernels.backward_center(dz, z, d_level, ctx.shape, ctx.last, bias, what, ctx.slope)
        return du, d_bias, d_level if ctx.needs_input_grad[2] else None, None, None, None


def _wants_torch(dz: Tensor) -> bool:
    """Whether somebody wants the gradient of the gradient, or a batch of them."""
    return torch.is_grad_enabled() or _native.observed(dz)


def _with_bias(du: Tensor, bias: Tensor | None, channels: int) -> tuple[Tensor, Tensor | None]:
    """The gradient of the map with its idle channels, and that of the bias."""
    return fit_channels(du, channels), None if bias is None else du.sum((0, 2, 3), dtype=bias.dtype)


def _through_act(dz: Tensor, z: Tensor, d_level: Tensor | None, groups: int, slope: float) -> Tensor:
    """The gradient of `u`, in torch, from those of `z` and of the level."""
    dq = dz if slope == 1 else torch.where(z > 0, dz, dz * slope if slope else 0)
    return dq + over(spread(_added(_means(dq), d_level, groups, z[0, 0].numel()), z.shape[1]), dq).to(dq.dtype)


def _added(mean: Tensor, d_level: Tensor | None, groups: int, positions: int) -> Tensor:
    """What centring and level add to the gradient `dq`, from its means (N, C): (N, g)."""
    added = -group_mean(mean, groups)
    return added if d_level is None else added + d_level.to(added.dtype) / (mean.shape[1] // groups * positions)


class _CenterReluHalve(torch.autograd.Function):
    """`du = dq - G φ(dq)`, with `dq = dz relu'` at the place of each maximum, 0 elsewhere; and what the level adds."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        z, level, places = _native.halve(u, groups, with_places=True)
        ctx.save_for_backward(places)
        ctx.shape, ctx.dtype, ctx.last, ctx.groups = u.shape, u.dtype, _native.is_last(u), groups
        ctx.set_materialize_grads(False)
        return z, level

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_level = grads
        (places,) = ctx.saved_tensors
        dz = torch.zeros_like(places, dtype=ctx.dtype) if dz is None else dz
        if _wants_torch(dz):
            return _spread_to_maxima(dz, places, d_level, ctx.shape[2:], ctx.groups), None
        return _native.backward_halve(dz, places, d_level, ctx.shape, ctx.groups, ctx.last), None


class _CenterReluHalveByKernels(torch.autograd.Function):
    """The same on a GPU, with the gradient of the bias."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features
    ) -> tuple[Tensor, Tensor]:
        z, level, places = kernels.halve(u, bias, offset, what, with_places=True)
        ctx.save_for_backward(places, bias)
        ctx.shape, ctx.dtype, ctx.last, ctx.what = u.shape, u.dtype, _native.is_last(u), what
        ctx.set_materialize_grads(False)
        return z, level

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_level = grads
        places, bias = ctx.saved_tensors
        dz = torch.zeros_like(places, dtype=ctx.dtype) if dz is None else dz
        what: Features = ctx.what
        if _wants_torch(dz):
            real = dz[:, : what.count], places[:, : what.count]
            du, d_bias = _with_bias(_spread_to_maxima(*real, d_level, ctx.shape[2:], what.groups), bias, ctx.shape[1])
        else:
            du, d_bias = kernels.backward_halve(dz, places, d_level, ctx.shape, ctx.last, bias, what)
        return du, d_bias, d_level if ctx.needs_input_grad[2] else None, None


def _spread_to_maxima(dz: Tensor, places: Tensor, d_level: Tensor | None, size: torch.Size, groups: int) -> Tensor:
    """The gradient of `u`, in torch, from that of its maxima at their `places`, as `_native.halve` gives them."""
    height, width = size
    of_pixel = torch.arange(4, device=places.device).reshape(2, 2).repeat(height // 2, width // 2)
    four = [x.repeat_interleave(2, 2).repeat_interleave(2, 3) for x in (dz, places)]
    dq = F.pad(four[0] * (four[1] == of_pixel), (0, width % 2, 0, height % 2))
    added = _added(_means(dq), d_level, groups, height * width)
    return dq + over(spread(added, dq.shape[1]), dq).to(dq.dtype)
