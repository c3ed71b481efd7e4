"""Batch norm, shortcut and activation of a lifted map, in one pass for moments and one to apply.

Of the map `u` (after the convolution) only the mean and the variance of each feature over each image's positions are
needed: group means, batch statistics of the centred map, and the group means after the normalisation follow from them
on tensors of shape (N, C). With `C(·)` the centring `x - G φ(x)`,

    c = C(u + b)                                 b: the convolution's bias
    y = γ (c - μ) / sqrt(σ² + ε) + β + C(s)      μ, σ²: batch or running statistics of c; s: the shortcut, or 0
    z = act(C(y))                                act(q) = max(q, 0) + slope · min(q, 0)

which is `a u + d + s` inside the activation, with `a` a feature and `d` a feature of an image. The map is lifted: its
full value is `z + G (φ(u + b) + φ(y))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightfast.functional import statistics_dtype
from lightfast.nn import _native
from lightfast.nn._statistics import Gradients, How, Operands, Passed, Statistics

__all__ = [
    "backward_passes",
    "forward_passes",
    "group_mean",
    "norm_act",
    "over",
    "spread",
    "update",
]


class _Coefficients(NamedTuple):
    """What follows from the moments: all of shape (N, C), (C,), or (N, g)."""

    scale: Tensor
    shift: Tensor
    deviation: Tensor
    inverse: Tensor
    offset: Tensor
    mean: Tensor
    var: Tensor


def norm_act(given: Operands) -> tuple[Tensor, Tensor]:
    """The formula above: `z` like `u`, and the offset `φ(u + b) + φ(y)` (N, g) to be added to the map's own."""
    inferred = _infer(given)
    if inferred is not None:
        return inferred
    statistics = given.statistics
    if _native.observed(given.u):
        # Transforms and exports know no other operations than these.
        z, found, _ = _forward(given)
        offset = found.offset
        if statistics.training:
            update(statistics, found.mean, _unbiased(found.var, given))
    else:
        z, offset, of_features = _NormAct.apply(*given)
        if statistics.training:
            update(statistics, *of_features[2:])
    return z, offset


def update(statistics: Statistics, mean: Tensor, var: Tensor) -> None:
    """Move the running statistics, if there are some, towards these."""
    if statistics.running_mean is None or statistics.running_var is None:
        return
    with torch.no_grad():
        statistics.running_mean.lerp_(mean.to(statistics.running_mean.dtype), statistics.momentum)
        statistics.running_var.lerp_(var.to(statistics.running_var.dtype), statistics.momentum)


def _infer(given: Operands) -> tuple[Tensor, Tensor] | None:
    """The formula in one go in C, where it is for use and not for training."""
    u, shortcut, pre_bias, weight, bias, statistics, groups, slope = given
    mean, var = statistics.running_mean, statistics.running_var
    if statistics.training or torch.is_grad_enabled() or mean is None or var is None:
        return None
    if not _native.suits(u):
        return None
    constants = _native.constants(weight, bias, mean, var, pre_bias, statistics.eps, groups)
    shortcut = None if shortcut is None else _native.fit(shortcut, u)
    return None if constants is None else _native.infer(u, shortcut, constants, slope, groups)


def group_mean(values: Tensor, groups: int) -> Tensor:
    """(N, C) to (N, g)."""
    return values.unflatten(1, (groups, -1)).mean(2)


def spread(values: Tensor, features: int) -> Tensor:
    """(N, g) to (N, C)."""
    return values.repeat_interleave(features // values.shape[1], 1)


def _coefficients(
    mean: Tensor,
    var: Tensor,
    shortcut_mean: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    groups: int,
) -> _Coefficients:
    """From the mean and variance (N, C) of each feature of each image to what the pass over the map needs."""
    features = mean.shape[1]
    offset = group_mean(mean, groups)
    centred = mean - spread(offset, features)
    if statistics.training or statistics.running_mean is None or statistics.running_var is None:
        share = statistics.share or _alone
        batch_mean = share(centred.mean(0))
        # Not mean squares, which cancel in float32 where features are far from zero.
        batch_var = share(var.mean(0) + (centred - batch_mean).square().mean(0))
    else:
        batch_mean = statistics.running_mean.to(mean.dtype)
        batch_var = statistics.running_var.to(mean.dtype)
    inverse = torch.rsqrt(batch_var + statistics.eps)
    scale = weight.to(mean.dtype) * inverse
    deviation = centred - batch_mean
    after = group_mean(scale * deviation + bias.to(mean.dtype), groups)
    floor = after if shortcut_mean is None else after + group_mean(shortcut_mean, groups)
    shift = bias.to(mean.dtype) - scale * (mean - deviation) - spread(floor, features)
    return _Coefficients(scale, shift, deviation, inverse, offset + after, batch_mean, batch_var)


def _forward(given: Operands) -> tuple[Tensor, _Coefficients, Tensor]:
    """`z`, the coefficients, and the mean (N, C) of `u`."""
    u, shortcut, pre_bias, weight, bias, statistics, groups, slope = given
    native = _native.suits(u)
    shortcut = _native.fit(shortcut, u) if native and shortcut is not None else shortcut
    mean, var, shortcut_mean = _native.moments(u, shortcut) if native else _moments(u, shortcut)
    biased = mean if pre_bias is None else mean + pre_bias.to(mean.dtype)
    found = _coefficients(biased, var, shortcut_mean, weight, bias, statistics, groups)
    shift = found.shift if pre_bias is None else found.shift + found.scale * pre_bias.to(mean.dtype)
    z = (_native.apply if native else _apply)(u, shortcut, found.scale, shift, slope)
    return z, found, mean


def _moments(u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance (N, C) of `u` over its positions, and the mean of the shortcut."""
    exact = statistics_dtype(u)
    positions = tuple(range(2, u.dim()))
    if not positions:
        return u.to(exact), torch.zeros_like(u, dtype=exact), None if shortcut is None else shortcut.to(exact)
    var, mean = torch.var_mean(u.to(exact), positions, correction=0)
    return mean, var, None if shortcut is None else shortcut.mean(positions, dtype=exact)


def _apply(u: Tensor, shortcut: Tensor | None, scale: Tensor, shift: Tensor, slope: float) -> Tensor:
    """`act(scale u + shift + shortcut)`, with `scale` (C,) and `shift` (N, C)."""
    q = torch.addcmul(over(shift, u), u, over(scale, u))
    if shortcut is not None:
        q = q.add_(shortcut)
    z = torch.relu_(q) if slope == 0 else torch.where(q > 0, q, q * slope) if slope != 1 else q
    return z.to(u.dtype)


def _backward_moments(dz: Tensor, z: Tensor, u: Tensor, mean: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """The means over positions (N, C) of `dq = dz act'` and of `dq (u - mean)`."""
    dq = _through_activation(dz, z, slope).to(mean.dtype)
    positions = tuple(range(2, u.dim()))
    if not positions:
        return dq, torch.zeros_like(mean)
    return dq.mean(positions), (dq * (u.to(mean.dtype) - over(mean, u))).mean(positions)


def _backward_apply(
    dz: Tensor,
    z: Tensor,
    u: Tensor,
    scale: Tensor,
    slant: Tensor,
    constant: Tensor,
    centring: Tensor,
    slope: float,
    with_shortcut: bool,
) -> tuple[Tensor, Tensor | None]:
    """`scale dq - slant u + constant`, and `dq + centring` for the shortcut."""
    dq = _through_activation(dz, z, slope)
    du = torch.addcmul(over(constant, u), dq, over(scale, u)).sub_(over(slant, u) * u).to(u.dtype)
    return du, (dq + over(centring, u)).to(u.dtype) if with_shortcut else None


def _through_activation(dz: Tensor, z: Tensor, slope: float) -> Tensor:
    """The gradient before the activation, whose sign its output keeps."""
    return dz if slope == 1 else torch.where(z > 0, dz, dz * slope if slope else 0)


def forward_passes(given: Operands) -> tuple[Passed, Tensor]:
    """`z` with what the way back needs, and the offset."""
    z, found, mean = _forward(given)
    of_images = torch.stack([mean, found.deviation])
    of_features = torch.stack([found.scale, found.inverse, found.mean, _unbiased(found.var, given)])
    return Passed(given.u, z, of_images, of_features, given.pre_bias, given.weight, given.bias), found.offset


def backward_passes(
    dz: Tensor | None,
    d_offset: Tensor | None,
    passed: Passed,
    how: How,
    share: Callable[[Tensor], Tensor] | None = None,
) -> Gradients:
    """From the gradients of `z` and of the offset; `share` as in `Statistics`."""
    u, z, (mean, deviation), (scale, inverse, *_), pre_bias, weight, bias = passed
    of_batch, has_shortcut, groups, slope = how
    features = u.shape[1]
    per_image = u[0, 0].numel()
    exact = mean.dtype
    dz = torch.zeros_like(z) if dz is None else dz
    native = _native.suits(u) and not _native.observed(dz)
    dz = _native.fit(dz, u) if native else dz
    dq_mean, dq_u = (_native.backward_moments if native else _backward_moments)(dz, z, u, mean, slope)

    # C(dq) is the gradient of y; the offset φ(u + b) + φ(y) adds its own, equal over a group and its positions. It
    # does not reach the shortcut, which is centred.
    lift = torch.zeros_like(dq_mean)
    if d_offset is not None:
        lift = spread(d_offset.to(exact), features) / (features // groups * per_image)
    centring = -spread(group_mean(dq_mean, groups), features)
    level = centring + lift
    d_mean = dq_mean + level
    d_bias = d_mean.sum(0) * per_image
    normal = deviation * inverse
    d_normal = dq_u * inverse + d_mean * normal
    d_weight = d_normal.sum(0) * per_image
    if of_batch:
        share = share or _alone
        k1, k2 = share(d_mean.mean(0)), share(d_normal.mean(0))
    else:
        k1 = k2 = torch.zeros_like(scale)
    slant = scale * k2 * inverse
    dc_mean = scale * (d_mean - k1) - slant * deviation
    constant = scale * (level - k1) - slant * (deviation - mean) - spread(group_mean(dc_mean, groups), features)
    du_mean = dc_mean - spread(group_mean(dc_mean, groups), features)
    if d_offset is not None:
        constant = constant + lift
        du_mean = du_mean + lift
    du, d_shortcut = (_native.backward_apply if native else _backward_apply)(
        dz, z, u, scale, slant, constant, centring, slope, has_shortcut
    )
    d_pre_bias = None if pre_bias is None else (du_mean.sum(0) * per_image).to(pre_bias.dtype)
    return Gradients(du, d_shortcut, d_pre_bias, d_weight.to(weight.dtype), d_bias.to(bias.dtype))


class _NormAct(torch.autograd.Function):
    """Forward and backward in two passes each; everything between them on (N, C), and kept without its own gradient."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> tuple[Tensor, Tensor, Tensor]:
        given = Operands(*operands)
        passed, offset = forward_passes(given)
        ctx.save_for_backward(*passed)
        ctx.how, ctx.share = given.how, given.statistics.share
        ctx.mark_non_differentiable(passed.of_features)
        ctx.set_materialize_grads(False)
        return passed.z, offset, passed.of_features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_offset, _ = grads
        return *backward_passes(dz, d_offset, Passed(*ctx.saved_tensors), ctx.how, ctx.share), None, None, None


def _unbiased(var: Tensor, given: Operands) -> Tensor:
    """The variance of a batch, of all processes, as an estimate."""
    count = given.u.numel() // given.u.shape[1] * (1 if given.statistics.share is None else dist.get_world_size())
    return var * (count / max(count - 1, 1))


def _alone(values: Tensor) -> Tensor:
    """The mean over all processes, where there is one."""
    return values


def over(values: Tensor, u: Tensor) -> Tensor:
    """(C,) or (N, C), shaped to broadcast over the positions of `u`."""
    shape = values.shape if values.dim() == 2 else (1, *values.shape)
    return values.reshape(*shape, *[1] * (u.dim() - 2))
