"""Operators that compilers call and do not look into: `norm_act`, and weights in their form.

The passes in C and in Triton stay what they are: from the plain formulas a compiler would make passes of its own, which
take longer. What is exported are the formulas.
Without a compiler the passes are called directly: torch's dispatcher takes 35 µs more for a forward pass, and 60 for
both, than an autograd function does (`benchmarks/dispatch.py`), which is as long as the passes themselves.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from lightfast._backends.choose import backend_of
from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operands import Features, Folded, Norm, NormActOptions, Operands, Saved, Statistics
from lightfast._backends.reference import update
from lightfast._backends.tensors import exported, is_last, transformed
from lightfast._groups import Groups

__all__ = [
    "fit_weight_operator",
    "infer_folded_operator",
    "norm_act_operators",
    "wants_inference_operator",
    "wants_operators",
    "wants_weight_operator",
]


def _compiled() -> bool:
    """Whether this is under a compiler that may be shown operators: not for an export, nor for a transform."""
    return torch.compiler.is_compiling() and not exported() and not transformed()


def wants_operators(operands: Operands) -> bool:
    """Whether the operators are to take these: under a compiler, where there are passes for them."""
    if not _compiled() or operands.statistics.share is not None:
        return False
    u, training = operands.u, operands.statistics.training
    if training and u.dim() == 4 and u.shape[2] * u.shape[3] == 1:
        return False
    return backend_of(u).has_operators(u, Features(operands.weight.shape[0], operands.groups))


def norm_act_operators(operands: Operands, tracked: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `norm_act`."""
    statistics = operands.statistics
    # As the schema has them: without statistics, the batch's are used.
    known = (None, None) if statistics.of_batch else (statistics.running_mean, statistics.running_var)
    flat = (*operands[:5], *known, statistics.eps, operands.groups, operands.slope)
    if not statistics.of_batch and not torch.is_grad_enabled():
        return _infer(*flat)
    z, offset, _, of_features = _forward(*flat)
    if statistics.training:
        batch = of_features.detach()
        update(statistics, batch[2], batch[3], tracked)
    return z, offset


def wants_inference_operator(u: Tensor, what: Features) -> bool:
    """Whether a compiler is to call an operator for what `lf.fuse` has left of a norm."""
    return _compiled() and backend_of(u).has_operators(u, what)


def infer_folded_operator(
    u: Tensor, shortcut: Tensor | None, pre_bias: Tensor | None, norm: Folded, groups: int, slope: float
) -> tuple[Tensor, Tensor]:
    """As `infer_folded`, without a gradient."""
    return _infer_folded(u, shortcut, pre_bias, *norm, groups, slope)


def wants_weight_operator(weight: Tensor, constraint: Constraint | None, form: Form) -> bool:
    """Whether a compiler is to call an operator that projects a weight: where there is a kernel for it."""
    return constraint is not None and _compiled() and backend_of(weight).has_weight_operator(weight, constraint, form)


def fit_weight_operator(weight: Tensor, constraint: Constraint, form: Form) -> Tensor:
    """As `fit_weight`, for even groups."""
    stride = constraint.phases_of(weight) if constraint.transposed else 1
    last = form.layout == torch.channels_last
    return _fit(weight, constraint.in_groups.count, constraint.transposed, stride, form.shape, form.dtype, last, True)


_OPERANDS = (
    "Tensor u, Tensor? shortcut, Tensor? pre_bias, Tensor weight, Tensor bias, Tensor? mean, Tensor? var, "
    "float eps, int groups, float slope"
)
_SAVED = (
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
    u, shortcut, pre_bias, weight, bias, mean, var, eps, groups, slope = flat
    norm = Norm(weight, bias, mean, var, eps)
    return backend_of(u).infer(u, shortcut, pre_bias, norm, Features(len(weight), groups), slope)


@_infer.register_fake
def _(*flat: Any) -> tuple[Tensor, Tensor]:
    operands = _operands(*flat)
    return torch.empty_like(operands.u), _room(operands.u, operands.u.shape[0], operands.groups)


@torch.library.custom_op(
    "lightfast::infer_folded",
    mutates_args=(),
    schema="(Tensor u, Tensor? shortcut, Tensor? pre_bias, Tensor scale, Tensor shift, Tensor undo, Tensor factor, "
    "int groups, float slope) -> (Tensor, Tensor)",
)
def _infer_folded(*flat: Any) -> tuple[Tensor, Tensor]:
    """`z` and the offset (N, g), of a norm that is in part in the convolution's weight."""
    u, shortcut, pre_bias, *folded, groups, slope = flat
    norm = Folded(*folded)
    return backend_of(u).infer(u, shortcut, pre_bias, norm, Features(len(norm.scale), groups), slope)


@_infer_folded.register_fake
def _(*flat: Any) -> tuple[Tensor, Tensor]:
    u, groups = flat[0], flat[-2]
    return torch.empty_like(u), _room(u, u.shape[0], groups)


@torch.library.custom_op(
    "lightfast::norm_act", mutates_args=(), schema=f"({_OPERANDS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _forward(*flat: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`z`, the offset (N, g), `of_images` (2, N, C) and `of_features` of `Saved`."""
    operands = _operands(*flat)
    saved, offset = backend_of(operands.u).norm_act_forward(operands)
    return saved.z, offset, saved.of_images[:2], saved.of_features


@_forward.register_fake
def _(*flat: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    operands = _operands(*flat)
    u, images, features = operands.u, operands.u.shape[0], operands.weight.shape[0]
    return torch.empty_like(u), _room(u, images, operands.groups), _room(u, 2, images, features), _room(u, 4, features)


@torch.library.custom_op(
    "lightfast::norm_act_backward",
    mutates_args=(),
    schema=f"(Tensor? dz, Tensor? d_offset, {_SAVED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(dz: Tensor | None, d_offset: Tensor | None, *flat: Any) -> tuple[Tensor, ...]:
    """The gradients in the order of `Gradients`; empty are those of what there is not."""
    saved, options = Saved(*flat[:7]), NormActOptions(*flat[7:])
    alone = Statistics(options.of_batch, None, None, 0.0, 0.0)
    found = backend_of(saved.u).norm_act_backward(dz, d_offset, saved, options, alone)
    return tuple(saved.u.new_empty(0) if x is None else x for x in found)


@_backward.register_fake
def _(dz: Tensor | None, d_offset: Tensor | None, *flat: Any) -> tuple[Tensor, ...]:
    saved, options = Saved(*flat[:7]), NormActOptions(*flat[7:])
    there = (saved.z, saved.z if options.has_shortcut else None, *saved[4:])
    return tuple(saved.u.new_empty(0) if x is None else torch.empty_like(x) for x in there)


def _room(u: Tensor, *shape: int) -> Tensor:
    return u.new_empty(shape, dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    operands, (z, _, of_images, of_features) = _operands(*inputs), output
    ctx.save_for_backward(*Saved(operands.u, z, of_images, of_features, *operands[2:5]))
    ctx.options = operands.options
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = Saved(*ctx.saved_tensors)
    du, ds, d_pre_bias, d_weight, d_bias = _backward(*grads[:2], *saved, *ctx.options)
    ds = ds if ctx.options.has_shortcut else None
    return du, ds, None if saved.pre_bias is None else d_pre_bias, d_weight, d_bias, *[None] * 5


_forward.register_autograd(_differentiate, setup_context=_remember)


@torch.library.custom_op(
    "lightfast::fit_weight",
    mutates_args=(),
    schema="(Tensor weight, int groups, bool transposed, int stride, SymInt[] shape, ScalarType dtype, bool last, "
    "bool wanted) -> Tensor",
)
def _fit(
    weight: Tensor,
    groups: int,
    transposed: bool,
    stride: int,
    shape: list[int],
    dtype: torch.dtype,
    last: bool,
    wanted: bool,
) -> Tensor:
    """A weight projected, in another form, without a gradient."""
    form = Form(tuple(shape), dtype, torch.channels_last if last else torch.contiguous_format)
    fewest = [min(here, there) for here, there in zip(weight.shape[:2], shape[:2], strict=True)]
    constraint = _even_constraint(*fewest, groups, transposed, stride)
    return backend_of(weight).fit_weight(weight, constraint, form, wanted)


@_fit.register_fake
def _(
    weight: Tensor,
    groups: int,
    transposed: bool,
    stride: int,
    shape: list[int],
    dtype: torch.dtype,
    last: bool,
    wanted: bool,
) -> Tensor:
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=weight.device, memory_format=layout)


@cache
def _even_constraint(first: int, second: int, groups: int, transposed: bool, stride: int) -> Constraint:
    one, other = Groups.even(first, groups), Groups.even(second, groups)
    if not transposed:
        return Constraint(other, one)
    return Constraint(one, other, transposed=True, stride=stride)


def _remember_form(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, *ctx.blocks = inputs[:4]
    ctx.form = list(weight.shape), weight.dtype, is_last(weight)


def _fit_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _fit(grad, *ctx.blocks, *ctx.form, False), *[None] * 7


_fit.register_autograd(_fit_back, setup_context=_remember_form)
