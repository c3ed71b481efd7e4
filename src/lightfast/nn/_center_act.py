"""Centring and activation of a lifted map, without a norm between: one pass for means and one to apply.

`z = act(u - G φ(u))` and `φ(u)`, with `act(q) = max(q, 0) + slope · min(q, 0)`. The passes are those of `norm_act`; of
the map nothing but `z` is kept for the backward pass, which is likewise two passes.

Maxima commute with what never falls, so 2x2 max pooling after a ReLU is `relu(max u - G φ(u))`: means and maxima are
taken in one pass, and the rest is done on a quarter of the map.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightfast.functional import statistics_dtype
from lightfast.nn import _native
from lightfast.nn._norm_act import group_mean, over, spread

__all__ = ["center_act", "center_relu_halve"]


def center_act(u: Tensor, groups: int, slope: float = 0.0) -> tuple[Tensor, Tensor]:
    """The formula above.

    Args:
        u: (N, C, *positions), in `groups` equal contiguous runs of features.
        groups: g.
        slope: 0 for ReLU, 1 for no activation.

    Returns:
        `z` like `u`, and the level `φ(u)` (N, g), in at least float32.

    >>> center_act(torch.tensor([[1.0, 3.0, 10.0, 20.0]]), groups=2)
    (tensor([[0., 1., 0., 5.]]), tensor([[ 2., 15.]]))
    """
    if _native.observed(u):
        # A compiler differentiates and fuses the plain operations by itself, and transforms know no others.
        return _forward(u, groups, slope)
    if not torch.is_grad_enabled() and _native.suits(u):
        zeros, ones = _constants(u)
        how = _native.Constants(None, ones, ones, zeros, zeros, zeros)
        return _native.infer(u, None, how, slope, groups)
    return _CenterAct.apply(u, groups, slope)


def center_relu_halve(u: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """`relu(max u - G φ(u))`: centring, ReLU and 2x2 max pooling; and the level `φ(u)`, over all pixels.

    Args:
        u: (N, C, H, W), in `groups` equal contiguous runs of features.
        groups: g.

    Returns:
        (N, C, H // 2, W // 2) in the precision of `u`, and the level (N, g), in at least float32.

    >>> z, level = center_relu_halve(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), groups=1)
    >>> z.item(), level.item()
    (3.0, 3.0)
    """
    if not (_native.suits(u) and u.dim() == 4 and min(u.shape[2:]) > 1):
        level = group_mean(_means(u), groups)
        return torch.relu(F.max_pool2d(u, 2) - over(spread(level, u.shape[1]), u).to(u.dtype)), level
    if torch.is_grad_enabled() and u.requires_grad:
        return _CenterReluHalve.apply(u, groups)
    return _native.halve(u, groups, with_places=False)[:2]


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
        slope, groups, features = ctx.slope, ctx.groups, z.shape[1]
        dz = torch.zeros_like(z) if dz is None else dz
        native = _native.suits(z)
        if native:
            dz = _native.fit(dz, z)
            mean = _native.backward_moments(dz, z, z, z.new_zeros(z.shape[:2], dtype=torch.float32), slope)[0]
        else:
            dz = dz if slope == 1 else torch.where(z > 0, dz, dz * slope if slope else 0)
            mean = _means(dz)
        added = -group_mean(mean, groups)
        if d_level is not None:
            added = added + d_level.to(added.dtype) / (z[0].numel() // groups)
        constant = spread(added, features)
        if native:
            zeros, ones = _constants(z)
            return _native.backward_apply(dz, z, z, ones, zeros, constant, constant, slope, False)[0], None, None
        return dz + over(constant, dz).to(dz.dtype), None, None


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
        if torch.is_grad_enabled() or _native.observed(dz):
            # Somebody wants the gradient of the gradient, or a batch of them.
            return _spread_to_maxima(dz, places, d_level, ctx.shape, ctx.groups), None
        return _native.backward_halve(dz, places, d_level, ctx.shape, ctx.groups, ctx.last), None


def _spread_to_maxima(dz: Tensor, places: Tensor, d_level: Tensor | None, shape: torch.Size, groups: int) -> Tensor:
    """The gradient of `u`, in torch, from that of its maxima at their `places`, as `_native.halve` gives them."""
    _, features, height, width = shape
    of_pixel = torch.arange(4, device=places.device).reshape(2, 2).repeat(height // 2, width // 2)
    four = [x.repeat_interleave(2, 2).repeat_interleave(2, 3) for x in (dz, places)]
    dq = F.pad(four[0] * (four[1] == of_pixel), (0, width % 2, 0, height % 2))
    added = -group_mean(_means(dq), groups)
    if d_level is not None:
        added = added + d_level / (features // groups * height * width)
    return dq + over(spread(added, features), dq).to(dq.dtype)
