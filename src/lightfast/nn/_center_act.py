"""Centring and activation of a lifted map, without a norm between: one pass for means and one to apply.

`z = act(u - G φ(u))` and `φ(u)`, with `act(q) = max(q, 0) + slope · min(q, 0)`. The passes are those of `norm_act`; of
the map nothing but `z` is kept for the backward pass, which is likewise two passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightfast.functional import statistics_dtype
from lightfast.nn import _native
from lightfast.nn._norm_act import group_mean, over, spread

__all__ = ["center_act"]


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
    if torch.compiler.is_compiling():
        # A compiler differentiates and fuses the plain operations by itself.
        return _forward(u, groups, slope)
    if not torch.is_grad_enabled() and _native.suits(u):
        ones, zeros = torch.ones(u.shape[1]), torch.zeros(u.shape[1])
        how = _native.Constants(None, ones, ones, zeros, zeros, zeros)
        return _native.infer(u, None, how, slope, groups)
    return _CenterAct.apply(u, groups, slope)


def _forward(u: Tensor, groups: int, slope: float) -> tuple[Tensor, Tensor]:
    native = _native.suits(u)
    level = group_mean(_native.moments(u, None)[0] if native else _means(u), groups)
    shift = -spread(level, u.shape[1])
    if native:
        return _native.apply(u, None, torch.ones_like(shift[0]), shift, slope), level
    return _activated(u + over(shift, u).to(u.dtype), slope), level


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
            mean = _native.backward_moments(dz, z, z, torch.zeros(z.shape[:2]), slope)[0]
        else:
            dz = dz if slope == 1 else torch.where(z > 0, dz, dz * slope if slope else 0)
            mean = _means(dz)
        added = -group_mean(mean, groups)
        if d_level is not None:
            added = added + d_level.to(added.dtype) / (z[0].numel() // groups)
        constant = spread(added, features)
        if native:
            ones, zeros = torch.ones(features), torch.zeros(features)
            return _native.backward_apply(dz, z, z, ones, zeros, constant, constant, slope, False)[0], None, None
        return dz + over(constant, dz).to(dz.dtype), None, None
