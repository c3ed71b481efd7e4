"""`norm_act` as operators that compilers call and do not look into: the passes in C and in Triton stay what they are.

From the plain formula a compiler would make passes of its own, which take longer. What is exported is the formula.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from lightfast.nn import _native, _norm_act, _norm_act_triton, _triton
from lightfast.nn._statistics import Passed, Statistics

__all__ = ["norm_act_operators", "suits_operators"]


def suits_operators(u: Tensor, features: int, groups: int) -> bool:
    """Whether the operators are to take maps like `u`: under a compiler, where there are passes for them."""
    if not torch.compiler.is_compiling() or _native.exported() or _transformed():
        return False
    if u.is_cuda:
        return _norm_act_triton.takes(u, features, groups) and _has_kernels()
    return u.shape[1] == features and _native.takes(u) and _has_native_passes()


@torch.compiler.assume_constant_result
def _transformed() -> bool:
    """Whether this is compiled for a transform of `torch.func`, which knows torch's own operators alone."""
    return peek_interpreter_stack() is not None


@torch.compiler.assume_constant_result
def _has_kernels() -> bool:
    return _triton.available()


@torch.compiler.assume_constant_result
def _has_native_passes() -> bool:
    return _native.available()


def norm_act_operators(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """As `norm_act`; on a GPU for `u` with idle channels after its features."""
    mean, var, eps = statistics.running_mean, statistics.running_var, statistics.eps
    for_use = not statistics.of_batch and not torch.is_grad_enabled()
    if for_use and mean is not None and var is not None:
        return _infer(u, shortcut, pre_bias, weight, bias, mean, var, eps, groups, slope)
    given = (None, None) if statistics.of_batch else (mean, var)
    z, offset, _, of_features = _forward(u, shortcut, pre_bias, weight, bias, *given, eps, groups, slope)
    if statistics.training:
        _norm_act.update(statistics, *of_features.detach()[2:])
    return z, offset


@torch.library.custom_op("lightfast::norm_act_infer", mutates_args=())
def _infer(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """`z` and the offset (N, g), with running statistics and without a gradient."""
    statistics = Statistics(False, mean, var, 0.0, eps)
    arguments = (u, shortcut, pre_bias, weight, bias, statistics)
    if u.is_cuda:
        return _norm_act_triton.norm_act_kernels(*arguments, None, groups, slope)
    return _norm_act.norm_act(*arguments, groups, slope)


@_infer.register_fake
def _(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u), u.new_empty(u.shape[0], groups, dtype=torch.float32)


@torch.library.custom_op("lightfast::norm_act", mutates_args=())
def _forward(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    eps: float,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """With the statistics `mean` and `var`, or those of the batch: `z`, the offset (N, g), and the rest of `Passed`."""
    statistics = Statistics(mean is None, mean, var, 0.0, eps)
    arguments = (u, shortcut, pre_bias, weight, bias, statistics)
    if u.is_cuda:
        with torch.cuda.device_of(u):
            passed, offset = _norm_act_triton.forward_passes(*arguments, None, groups, slope)
    else:
        passed, offset = _norm_act.forward_passes(*arguments, groups, slope)
    return passed.z, offset, passed.of_images, passed.of_features


@_forward.register_fake
def _(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    eps: float,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, features = u.shape[0], weight.shape[0]
    offset = u.new_empty(images, groups, dtype=torch.float32)
    of_images = u.new_empty(2, images, features, dtype=torch.float32)
    return torch.empty_like(u), offset, of_images, u.new_empty(4, features, dtype=torch.float32)


@torch.library.custom_op("lightfast::norm_act_backward", mutates_args=())
def _backward(
    dz: Tensor | None,
    d_offset: Tensor | None,
    u: Tensor,
    z: Tensor,
    of_images: Tensor,
    of_features: Tensor,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    training: bool,
    has_shortcut: bool,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients in the order of `Gradients`; empty are those of what there is not."""
    arguments = (dz, d_offset, Passed(u, z, of_images, of_features), pre_bias, weight, bias)
    how = (training, has_shortcut, groups, slope)
    if u.is_cuda:
        with torch.cuda.device_of(u):
            found = _norm_act_triton.backward_passes(*arguments, *how)
    else:
        found = _norm_act.backward_passes(*arguments, *how)
    du, ds, d_pre_bias, d_weight, d_bias = (u.new_empty(0) if x is None else x for x in found)
    return du, ds, d_pre_bias, d_weight, d_bias


@_backward.register_fake
def _(
    dz: Tensor | None,
    d_offset: Tensor | None,
    u: Tensor,
    z: Tensor,
    of_images: Tensor,
    of_features: Tensor,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    training: bool,
    has_shortcut: bool,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    ds = torch.empty_like(z) if has_shortcut else u.new_empty(0)
    d_pre_bias = u.new_empty(0) if pre_bias is None else torch.empty_like(pre_bias)
    return torch.empty_like(z), ds, d_pre_bias, torch.empty_like(weight), torch.empty_like(bias)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, shortcut, pre_bias, weight, bias, mean, _, _, groups, slope = inputs
    z, _, of_images, of_features = output
    ctx.save_for_backward(u, z, of_images, of_features, pre_bias, weight, bias)
    ctx.how = (mean is None, shortcut is not None, groups, slope)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    du, ds, d_pre_bias, d_weight, d_bias = _backward(*grads[:2], *ctx.saved_tensors, *ctx.how)
    has_shortcut, has_pre_bias = ctx.how[1], ctx.saved_tensors[4] is not None
    return du, ds if has_shortcut else None, d_pre_bias if has_pre_bias else None, d_weight, d_bias, *[None] * 5


_forward.register_autograd(_differentiate, setup_context=_remember)
