"""`norm_act` as operators that compilers call and do not look into: the passes in C and in Triton stay what they are.

From the plain formula a compiler would make passes of its own, which take longer. What is exported is the formula.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from lightfast.nn import _native, _norm_act, _norm_act_triton, _triton
from lightfast.nn._statistics import How, Operands, Passed, Statistics

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


def norm_act_operators(given: Operands) -> tuple[Tensor, Tensor]:
    """As `norm_act`; on a GPU for `u` with idle channels after its features."""
    statistics = given.statistics
    # As the schema has them: without statistics, the batch's are used.
    known = (None, None) if statistics.of_batch else (statistics.running_mean, statistics.running_var)
    operands = (*given[:5], *known, statistics.eps, given.groups, given.slope)
    if not statistics.of_batch and not torch.is_grad_enabled():
        return _infer(*operands)
    z, offset, _, of_features = _forward(*operands)
    if statistics.training:
        _norm_act.update(statistics, *of_features.detach()[2:])
    return z, offset


_OPERANDS = (
    "Tensor u, Tensor? shortcut, Tensor? pre_bias, Tensor weight, Tensor bias, Tensor? mean, Tensor? var, "
    "float eps, int groups, float slope"
)
_PASSED = (
    "Tensor u, Tensor z, Tensor of_images, Tensor of_features, Tensor? pre_bias, Tensor weight, Tensor bias, "
    "bool of_batch, bool has_shortcut, int groups, float slope"
)


def _operands(*flat: Any) -> Operands:
    """From the order of the schema."""
    u, shortcut, pre_bias, weight, bias, mean, var, eps, groups, slope = flat
    statistics = Statistics(mean is None, mean, var, 0.0, eps)
    return Operands(u, shortcut, pre_bias, weight, bias, statistics, groups, slope)


@torch.library.custom_op("lightfast::norm_act_infer", mutates_args=(), schema=f"({_OPERANDS}) -> (Tensor, Tensor)")
def _infer(*flat: Any) -> tuple[Tensor, Tensor]:
    """`z` and the offset (N, g), with running statistics and without a gradient."""
    given = _operands(*flat)
    return _norm_act_triton.norm_act_kernels(given, None) if given.u.is_cuda else _norm_act.norm_act(given)


@_infer.register_fake
def _(*flat: Any) -> tuple[Tensor, Tensor]:
    given = _operands(*flat)
    return torch.empty_like(given.u), _room(given.u, given.u.shape[0], given.groups)


@torch.library.custom_op(
    "lightfast::norm_act", mutates_args=(), schema=f"({_OPERANDS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _forward(*flat: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`z`, the offset (N, g), `of_images` and `of_features` of `Passed`."""
    given = _operands(*flat)
    if given.u.is_cuda:
        with torch.cuda.device_of(given.u):
            passed, offset = _norm_act_triton.forward_passes(given, None)
    else:
        passed, offset = _norm_act.forward_passes(given)
    return passed.z, offset, passed.of_images, passed.of_features


@_forward.register_fake
def _(*flat: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = _operands(*flat)
    u, images, features = given.u, given.u.shape[0], given.weight.shape[0]
    return torch.empty_like(u), _room(u, images, given.groups), _room(u, 2, images, features), _room(u, 4, features)


@torch.library.custom_op(
    "lightfast::norm_act_backward",
    mutates_args=(),
    schema=f"(Tensor? dz, Tensor? d_offset, {_PASSED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(dz: Tensor | None, d_offset: Tensor | None, *flat: Any) -> tuple[Tensor, ...]:
    """The gradients in the order of `Gradients`; empty are those of what there is not."""
    passed, how = Passed(*flat[:7]), How(*flat[7:])
    if passed.u.is_cuda:
        with torch.cuda.device_of(passed.u):
            found = _norm_act_triton.backward_passes(dz, d_offset, passed, how)
    else:
        found = _norm_act.backward_passes(dz, d_offset, passed, how)
    return tuple(passed.u.new_empty(0) if x is None else x for x in found)


@_backward.register_fake
def _(dz: Tensor | None, d_offset: Tensor | None, *flat: Any) -> tuple[Tensor, ...]:
    passed, how = Passed(*flat[:7]), How(*flat[7:])
    there = (passed.z, passed.z if how.has_shortcut else None, *passed[4:])
    return tuple(passed.u.new_empty(0) if x is None else torch.empty_like(x) for x in there)


def _room(u: Tensor, *shape: int) -> Tensor:
    return u.new_empty(shape, dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given, (z, _, of_images, of_features) = _operands(*inputs), output
    ctx.save_for_backward(*Passed(given.u, z, of_images, of_features, *given[2:5]))
    ctx.how = given.how
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    passed = Passed(*ctx.saved_tensors)
    du, ds, d_pre_bias, d_weight, d_bias = _backward(*grads[:2], *passed, *ctx.how)
    ds = ds if ctx.how.has_shortcut else None
    return du, ds, None if passed.pre_bias is None else d_pre_bias, d_weight, d_bias, *[None] * 5


_forward.register_autograd(_differentiate, setup_context=_remember)
