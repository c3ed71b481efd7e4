"""Centering and activation of a lifted map, without a norm between: one pass for means and one to apply.

`z = act(u + b - G φ(u + b))` and `φ(u + b)`, with `act(q) = max(q, 0) + slope · min(q, 0)`. Where maps have no idle
channels, the convolution has added its bias `b` already. Of the map nothing but `z` is kept for the backward pass,
which is likewise two passes.

Maxima commute with what never falls, so 2x2 max pooling after a ReLU is `relu(max (u + b) - G φ(u + b))`: means and
maxima are taken in one pass, and the rest is done on a quarter of the map.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightfast._backends.choose import REFERENCE, backend_of
from lightfast._backends.operands import Features
from lightfast._backends.reference import Reference, group_mean, means
from lightfast._backends.tensors import is_last, observed, wants_gradient, working_dtype
from lightfast.functional import statistics_dtype


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
        bias: `b`, one per feature; channels of `u` after those features are idle, and become zeros.
        offset: (N, g), to which the level is added.
        cut: whether `z` is without idle channels, and contiguous where there were some.

    Returns:
        `z` like `u`, and the level `φ(u + b)` (N, g), or offset and level, in at least float32.

    >>> z, level = center_act(torch.tensor([[1.0, 3.0, 10.0, 20.0]]), groups=2)
    >>> z + 0, level
    (tensor([[0., 1., 0., 5.]]), tensor([[ 2., 15.]]))
    """
    what = Features(u.shape[1] if bias is None else len(bias), groups)
    if observed(u):
        # A compiler differentiates and fuses the plain operations by itself, and transforms know no others.
        return REFERENCE.center(u, bias, offset, what, slope, cut)
    backend, are_rows = backend_of(u), u.dim() == 2
    u = u[..., None, None] if are_rows else u
    if wants_gradient(u, bias, offset):
        z, level = _CenterAct.apply(backend, u, bias, offset, what, slope, cut)
    else:
        z, level = backend.center(u, bias, offset, what, slope, cut)
    return z.flatten(1) if are_rows else z, level


def center_relu_halve(
    u: Tensor, groups: int, bias: Tensor | None = None, offset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`relu(max (u + b) - G φ(u + b))`: centering, ReLU and 2x2 max pooling; and the level, over all pixels.

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
    if observed(u) or u.dim() != 4 or min(u.shape[2:]) < 2:
        return REFERENCE.halve(u, bias, offset, what, with_places=False)[:2]
    backend = backend_of(u)
    if wants_gradient(u, bias, offset):
        return _CenterReluHalve.apply(backend, u, bias, offset, what)
    return backend.halve(u, bias, offset, what, with_places=False)[:2]


def join_average(images: Tensor) -> tuple[Tensor, Tensor]:
    """Images in log RGB less the log of their mean color, each color beside its average: what Cerberus sees.

    Args:
        images: (N, 3, H, W).

    Returns:
        `z = x - o` and its average over the image, (N, 6, H, W) in turn for each color, with idle channels after them
        where maps have some; and `o = -log mean exp(-x)` (N, 3).
    """
    if observed(images) or wants_gradient(images):
        return REFERENCE.join(images, images.dtype)
    return backend_of(images).join(images, working_dtype(images))


def center_subsample(z: Tensor, groups: int, stride: int, missing: int) -> Tensor:
    """Every `stride`-th pixel of `z - G φ(z)`, with so many features that are zero added to each group.

    Args:
        z: (N, C, H, W), in `groups` equal contiguous runs of features.
        groups: g.
        stride: s.
        missing: features that a group of the result has more.

    Returns:
        (N, C + g missing, H / s, W / s), in the memory format of `z`.
    """
    if observed(z) or not is_last(z):
        runs = z.unflatten(1, (groups, -1))
        level = runs.mean((2, 3, 4), keepdim=True, dtype=statistics_dtype(z))
        kept = (runs[..., ::stride, ::stride] - level).to(z.dtype)
        return F.pad(kept, (0, 0, 0, 0, 0, missing)).flatten(1, 2)
    # As the map lies, with features last.
    level = group_mean(means(z), groups)[:, None, None, :, None]
    kept = z[:, :, ::stride, ::stride].permute(0, 2, 3, 1).unflatten(3, (groups, -1))
    return F.pad((kept - level).to(z.dtype), (0, missing)).flatten(3, 4).permute(0, 3, 1, 2)


class _CenterAct(torch.autograd.Function):
    """`du = dq - G φ(dq)`, with `dq = dz act'`, and what the level adds, equal over a group and its positions."""

    @staticmethod
    def forward(
        ctx: Any,
        backend: Reference,
        u: Tensor,
        bias: Tensor | None,
        offset: Tensor | None,
        what: Features,
        slope: float,
        cut: bool,
    ) -> tuple[Tensor, Tensor]:
        z, level = backend.center(u, bias, offset, what, slope, cut)
        ctx.save_for_backward(z, bias)
        ctx.backend, ctx.shape, ctx.last, ctx.what, ctx.slope = backend, u.shape, is_last(u), what, slope
        ctx.set_materialize_grads(False)
        return z, level

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_level = grads
        z, bias = ctx.saved_tensors
        dz = torch.zeros_like(z) if dz is None else dz
        backend = _differentiating(ctx.backend, dz)
        du, d_bias = backend.center_backward(dz, z, d_level, ctx.shape, ctx.last, bias, ctx.what, ctx.slope)
        return None, du, d_bias, d_level if ctx.needs_input_grad[3] else None, None, None, None


class _CenterReluHalve(torch.autograd.Function):
    """`du = dq - G φ(dq)`, with `dq = dz relu'` at the place of each maximum, 0 elsewhere; and what the level adds."""

    @staticmethod
    def forward(
        ctx: Any, backend: Reference, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features
    ) -> tuple[Tensor, Tensor]:
        z, level, places = backend.halve(u, bias, offset, what, with_places=True)
        ctx.save_for_backward(places, bias)
        ctx.backend, ctx.shape, ctx.dtype, ctx.last, ctx.what = backend, u.shape, u.dtype, is_last(u), what
        ctx.set_materialize_grads(False)
        return z, level

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_level = grads
        places, bias = ctx.saved_tensors
        dz = torch.zeros_like(places, dtype=ctx.dtype) if dz is None else dz
        backend = _differentiating(ctx.backend, dz)
        du, d_bias = backend.halve_backward(dz, places, d_level, ctx.shape, ctx.last, bias, ctx.what)
        return None, du, d_bias, d_level if ctx.needs_input_grad[3] else None, None


def _differentiating(backend: Reference, dz: Tensor) -> Reference:
    """Plain torch where somebody wants the gradient of the gradient, or a batch of them."""
    return REFERENCE if torch.is_grad_enabled() or observed(dz) else backend
