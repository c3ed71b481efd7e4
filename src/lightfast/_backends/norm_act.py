"""Batch norm, shortcut and activation of a lifted map, in one pass for moments and one to apply.

Of the map `u` (after the convolution) only the mean and the variance of each feature over each image's positions are
needed: group means, batch statistics of the centered map, and the group means after the normalization follow from them
on tensors of shape (N, C). With `C(·)` the centering `x - G φ(x)`,

    c = C(u + b)                                 b: the convolution's bias
    y = γ (c - μ) / sqrt(σ² + ε) + β + C(s)      μ, σ²: batch or running statistics of c; s: the shortcut, or 0
    z = act(C(y))                                act(q) = max(q, 0) + slope · min(q, 0)

which is `a u + d + s` inside the activation, with `a` per feature and `d` per feature and image. The map is lifted: its
full value is `z + G (φ(u + b) + φ(y))`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightfast._backends.choose import REFERENCE, backend_of
from lightfast._backends.operands import Features, Folded, Norm, Operands, Saved
from lightfast._backends.operators import (
    infer_folded_operator,
    norm_act_operators,
    wants_inference_operator,
    wants_operators,
)
from lightfast._backends.reference import Reference
from lightfast._backends.tensors import fit_channels, observed, wants_gradient


def norm_act(operands: Operands, tracked: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The formula above: `z` like `u`, and the offset `φ(u + b) + φ(y)` (N, g) to be added to the map's own.

    In training running statistics are moved, and `tracked`, which counts batches, goes on by one.
    """
    u, shortcut, pre_bias, weight, bias, statistics, groups, slope = operands
    if shortcut is not None and (shortcut.shape[1] != u.shape[1] or shortcut.dtype != u.dtype):
        shortcut = fit_channels(shortcut.to(u.dtype), u.shape[1])
        operands = operands._replace(shortcut=shortcut)
    if observed(u):
        # Transforms and exports know no other operations than torch's; compilers are shown operators where that pays.
        if wants_operators(operands):
            return norm_act_operators(operands, tracked)
        return REFERENCE.norm_act_plain(operands, tracked)
    backend, mean, var = backend_of(u), statistics.running_mean, statistics.running_var
    if statistics.training or mean is None or var is None or wants_gradient(u, shortcut, pre_bias, weight, bias):
        return _NormAct.apply(backend, tracked, *operands)
    norm = Norm(weight, bias, mean, var, statistics.eps)
    return backend.infer(u, shortcut, pre_bias, norm, Features(weight.shape[0], groups), slope)


def infer_folded(
    u: Tensor, shortcut: Tensor | None, pre_bias: Tensor | None, norm: Folded, groups: int, slope: float
) -> tuple[Tensor, Tensor]:
    """`norm_act` with running statistics that are in part in the convolution's weight; see `Reference.infer`."""
    if shortcut is not None:
        shortcut = fit_channels(shortcut.to(u.dtype), u.shape[1])
    what, differentiable = Features(norm.scale.shape[0], groups), wants_gradient(u, shortcut, pre_bias, *norm)
    if not differentiable and wants_inference_operator(u, what):
        return infer_folded_operator(u, shortcut, pre_bias, norm, groups, slope)
    backend = REFERENCE if differentiable or observed(u) else backend_of(u)
    return backend.infer(u, shortcut, pre_bias, norm, what, slope)


class _NormAct(torch.autograd.Function):
    """Forward and backward in two passes each; everything between them on (N, C), and kept without its own gradient."""

    @staticmethod
    def forward(ctx: Any, backend: Reference, tracked: Tensor | None, *flat: Any) -> tuple[Tensor, Tensor]:
        operands = Operands(*flat)
        saved, offset = backend.norm_act_forward(operands, tracked)
        ctx.save_for_backward(*saved)
        ctx.backend, ctx.options, ctx.statistics = backend, operands.options, operands.statistics
        ctx.set_materialize_grads(False)
        return saved.z, offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        dz, d_offset = grads
        backend = REFERENCE if dz is not None and observed(dz) else ctx.backend
        saved = Saved(*ctx.saved_tensors)
        gradients = backend.norm_act_backward(dz, d_offset, saved, ctx.options, ctx.statistics)
        return None, None, *gradients, None, None, None
