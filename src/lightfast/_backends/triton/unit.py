"""Convolution, norm and activation on a GPU in one autograd function: launches, and next to nothing between them.

The first time that a unit sees maps of some kind it goes through `norm_act.py`, which works out how to launch the
kernels. From then on they are launched by the addresses of tensors alone, as long as nothing differs from that time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operands import Features, Folded, Norm, NormActOptions, Operands, Saved, Statistics
from lightfast._backends.triton import norm_act, projection
from lightfast._backends.triton.launch import Launch

__all__ = ["UnitPlan", "infer", "train"]

_Run = Callable[..., Any]
_FLOAT = torch.float32


class _Kernels(NamedTuple):
    """Kernels that are launched by addresses, for maps that lie as `like` says."""

    like: tuple[Any, ...]
    runs: tuple[_Run, ...]


class UnitPlan:
    """What a unit has worked out about maps of one kind.

    Args:
        form: of the weight.
        raw: the weight as the layer has it.
        constraint: of the weight, or None.
        geometry: stride, padding and dilation of the convolution.
        what: the features of the result.
        slope: of the activation.
    """

    def __init__(
        self,
        form: Form,
        raw: Tensor,
        constraint: Constraint | None,
        geometry: tuple[Any, Any, Any],
        what: Features,
        slope: float,
    ) -> None:
        self.form, self.raw, self.constraint, self.geometry = form, Form.of(raw), constraint, geometry
        self.what, self.slope = what, slope
        self.same_form = constraint is None and form == self.raw
        self.infers: _Kernels | None = None
        self.forward: _Kernels | None = None
        self.backward: _Kernels | None = None
        self.fit: _Kernels | None = None
        self.fit_back: _Kernels | None = None


def _address(x: Tensor | None, other: int) -> int:
    """A pointer has to be passed even where nothing is read from it."""
    return other if x is None else x.data_ptr()


def _runs(device: int, *launches: tuple[Launch, tuple[torch.dtype, ...]]) -> tuple[_Run, ...] | None:
    found = [launch.known(device, *dtypes) for launch, dtypes in launches]
    return None if any(run is None for run in found) else tuple(run for run in found if run is not None)


def _fitted(plan: UnitPlan, weight: Tensor, onto: Form, wanted: bool) -> Tensor:
    """The weight in its form, or back from it without `wanted`; by its address from the second time on."""
    kernels = plan.fit if wanted else plan.fit_back
    like = (weight.stride(), weight.dtype)
    if kernels is not None and kernels.like[0] == like:
        out = weight.new_empty_strided(onto.shape, kernels.like[1], dtype=onto.dtype)
        source, target = weight.data_ptr(), out.data_ptr()
        if not (source | target) & 15:
            kernels.runs[0](torch._C._cuda_getCurrentRawStream(weight.get_device()), source, target)
            return out
    out = projection.fit_weight(weight, plan.constraint, onto, wanted)
    launch = projection.launch_for(weight, out, plan.constraint, wanted)
    runs = None if launch is None else _runs(weight.get_device(), (launch, (weight.dtype, out.dtype)))
    found = None if runs is None else _Kernels((like, out.stride()), runs)
    if wanted:
        plan.fit = found
    else:
        plan.fit_back = found
    return out


def infer(
    plan: UnitPlan, z: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, norm: Norm | Folded
) -> tuple[Tensor, Tensor]:
    """In evaluation mode, without gradients, by a weight in its form; the norm is in float32."""
    u = torch.conv2d(z, weight, None, *plan.geometry)
    like = (u.stride(), None if added is None else added.stride(), norm[4:])
    kernels, (features, groups) = plan.infers, plan.what
    if kernels is not None and kernels.like == like:
        out, offset = torch.empty_like(u), u.new_empty((u.shape[0], groups), dtype=_FLOAT)
        first, second, third, fourth = [x.data_ptr() for x in norm[:4]]
        up, op, at, before = u.data_ptr(), out.data_ptr(), offset.data_ptr(), _address(bias, first)
        sp = _address(added, up)
        if not (up | sp | op | before | first | second | third | fourth) & 15:
            stream = torch._C._cuda_getCurrentRawStream(u.get_device())
            if len(kernels.runs) == 1:
                kernels.runs[0](stream, up, sp, before, first, second, third, fourth, op, at)
                return out, offset
            of_images = u.new_empty((5, u.shape[0], features), dtype=_FLOAT)
            of_features = u.new_empty(features, dtype=_FLOAT)
            ip, fp = of_images.data_ptr(), of_features.data_ptr()
            moments, coefficients, apply = kernels.runs
            moments(stream, up, sp, ip)
            coefficients(stream, ip, fp, before, first, second, third, fourth, at)
            apply(stream, up, sp, ip, fp, op)
            return out, offset
    out, offset = norm_act.infer(u, added, bias, norm, plan.what, plan.slope)
    if out.stride() == u.stride():
        plan.infers = _known_inference(plan, u, added, bias, norm, like)
    return out, offset


def _known_inference(
    plan: UnitPlan, u: Tensor, added: Tensor | None, bias: Tensor | None, norm: Norm | Folded, like: tuple[Any, ...]
) -> _Kernels | None:
    s, has = u if added is None else added, (isinstance(norm, Folded), bias is not None, added is not None)
    eps = norm.eps if isinstance(norm, Norm) else 0.0
    launch, map_, parts = norm_act.infer_passes(u, s, plan.what, has, plan.slope, eps), u.dtype, (_FLOAT,) * 5
    if isinstance(launch, Launch):
        runs = _runs(u.get_device(), (launch, (map_, map_, *parts, map_, _FLOAT)))
    else:
        runs = _runs(
            u.get_device(),
            (launch.moments, (map_, map_, _FLOAT)),
            (launch.coefficients, (_FLOAT, _FLOAT, *parts, _FLOAT)),
            (launch.apply, (map_, map_, _FLOAT, _FLOAT, map_)),
        )
    return None if runs is None else _Kernels(like, runs)


def train(
    plan: UnitPlan,
    z: Tensor,
    added: Tensor | None,
    raw: Tensor,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    statistics: Statistics,
    tracked: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """With gradients, by the weight as the layer has it; parameters of the norm are in float32."""
    return _apply(z, added, raw, bias, gamma, beta, plan, statistics, tracked)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        added: Tensor | None,
        raw: Tensor,
        bias: Tensor | None,
        gamma: Tensor,
        beta: Tensor,
        plan: UnitPlan,
        statistics: Statistics,
        tracked: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        weight = raw if plan.same_form else _fitted(plan, raw, plan.form, True)
        u = torch.conv2d(z, weight, None, *plan.geometry)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.options = NormActOptions(statistics.of_batch, added is not None, *plan.what[1:], plan.slope)
        found = _forward_by_address(plan, u, added, bias, gamma, beta, statistics, tracked)
        if found is None:
            found = _forward(plan, u, added, bias, gamma, beta, statistics, tracked)
        out, offset, of_images, of_features = found
        ctx.save_for_backward(z, weight, u, out, of_images, of_features, bias, gamma, beta)
        return out, offset

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # The decorator, which refuses a gradient of the gradient, takes its time; here it is for those who want one.
        return _gradients_once(ctx, *grads) if torch.is_grad_enabled() else _gradients(ctx, *grads)


# Without the look for transforms of `torch.func`, which have been looked for already.
_parent: Any = super(torch.autograd.Function, _Unit)
_apply: Callable[..., Any] = _parent.apply


def _gradients(ctx: Any, d_out: Tensor | None, d_offset: Tensor | None) -> tuple[Tensor | None, ...]:
    z, weight, *rest = ctx.saved_tensors
    plan: UnitPlan = ctx.plan
    wants_z, _, wants_weight = ctx.needs_input_grad[:3]
    found = _backward_by_address(plan, d_out, d_offset, rest, ctx.options)
    if found is None:
        found = _backward(plan, d_out, d_offset, rest, ctx.options)
    du, ds, d_bias, d_gamma, d_beta = found
    stride, padding, dilation = plan.geometry
    dz, d_weight, _ = torch.ops.aten.convolution_backward.default(
        du, z, weight, None, stride, padding, dilation, False, (0, 0), 1, (wants_z, wants_weight, False)
    )
    if wants_weight and not plan.same_form:
        d_weight = _fitted(plan, d_weight, plan.raw, False)
    return dz, ds, d_weight, d_bias, d_gamma, d_beta, None, None, None


_gradients_once: Callable[..., Any] = once_differentiable(_gradients)


def _forward(
    plan: UnitPlan,
    u: Tensor,
    added: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    statistics: Statistics,
    tracked: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`z`, the offset, and both tables of `Saved`; and how to do it by addresses the next time."""
    operands = Operands(u, added, bias, gamma, beta, statistics, plan.what.groups, plan.slope)
    saved, offset = norm_act.forward(operands, tracked)
    if saved.u is u:
        s, training = u if added is None else added, statistics.of_batch
        has = (added is not None, bias is not None, training, True, training and tracked is not None)
        numbers = (plan.slope, statistics.momentum, statistics.eps)
        passes = norm_act.forward_passes(u, s, plan.what.count, plan.what.groups, has, numbers)
        counted = _FLOAT if tracked is None else tracked.dtype
        runs = _runs(
            u.get_device(),
            (passes.moments, (u.dtype, u.dtype, _FLOAT)),
            (passes.coefficients, (*(_FLOAT,) * 7, counted, _FLOAT)),
            (passes.apply, (u.dtype, u.dtype, _FLOAT, _FLOAT, u.dtype)),
        )
        like = _like_forward(u, added, statistics, tracked)
        plan.forward = None if runs is None else _Kernels(like, runs)
    return saved.z, offset, saved.of_images, saved.of_features


def _like_forward(u: Tensor, added: Tensor | None, statistics: Statistics, tracked: Tensor | None) -> tuple[Any, ...]:
    strides = (u.stride(), None if added is None else added.stride())
    return *strides, statistics.training, statistics.momentum, statistics.eps, tracked is None


def _forward_by_address(
    plan: UnitPlan,
    u: Tensor,
    added: Tensor | None,
    bias: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    statistics: Statistics,
    tracked: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    kernels, mean, var = plan.forward, statistics.running_mean, statistics.running_var
    if kernels is None or mean is None or var is None or not statistics.training:
        return None
    if kernels.like != _like_forward(u, added, statistics, tracked):
        return None
    images, (features, groups) = u.shape[0], plan.what
    of_images = u.new_empty((5, images, features), dtype=_FLOAT)
    of_features = u.new_empty((4, features), dtype=_FLOAT)
    offset = u.new_empty((images, groups), dtype=_FLOAT)
    out = torch.empty_like(u)
    up, op, gp, bp = u.data_ptr(), out.data_ptr(), gamma.data_ptr(), beta.data_ptr()
    sp, pp, mp, vp = _address(added, up), _address(bias, gp), mean.data_ptr(), var.data_ptr()
    ip, fp, at = of_images.data_ptr(), of_features.data_ptr(), offset.data_ptr()
    tp = _address(tracked, fp)
    if (up | op | gp | bp | sp | pp | mp | vp | tp) & 15:
        return None
    stream = torch._C._cuda_getCurrentRawStream(u.get_device())
    moments, coefficients, apply = kernels.runs
    moments(stream, up, sp, ip)
    coefficients(stream, ip, fp, pp, gp, bp, mp, vp, tp, at)
    apply(stream, up, sp, ip, fp, op)
    return out, offset, of_images, of_features


def _backward(
    plan: UnitPlan, d_out: Tensor | None, d_offset: Tensor | None, saved: list[Tensor], options: NormActOptions
) -> tuple[Tensor | None, ...]:
    """The gradients in the order of `Gradients`; and how to do it by addresses the next time."""
    u, _, _, _, bias, gamma, _ = saved
    found = norm_act.backward(d_out, d_offset, Saved(*saved), options)
    if d_out is not None and d_out.dtype == u.dtype and norm_act.merges(d_out):
        has = (d_offset is not None, bias is not None)
        passes = norm_act.backward_passes(u, d_out, len(gamma), has, options)
        map_ = u.dtype
        runs = _runs(
            u.get_device(),
            (passes.moments, (map_, map_, map_, _FLOAT, _FLOAT)),
            (passes.coefficients, (_FLOAT,) * 7),
            (passes.apply, (map_, map_, map_, _FLOAT, _FLOAT, map_, map_)),
        )
        like = (u.stride(), d_out.stride(), d_offset is None, options)
        plan.backward = None if runs is None else _Kernels(like, runs)
    return found


def _backward_by_address(
    plan: UnitPlan, d_out: Tensor | None, d_offset: Tensor | None, saved: list[Tensor], options: NormActOptions
) -> tuple[Tensor | None, ...] | None:
    kernels = plan.backward
    if kernels is None or d_out is None:
        return None
    u, z, of_images, of_features, bias, gamma, beta = saved
    if kernels.like != (u.stride(), d_out.stride(), d_offset is None, options):
        return None
    if d_offset is not None and (d_offset.dtype != _FLOAT or not d_offset.is_contiguous()):
        return None
    back = u.new_empty(4 * u.shape[0] * plan.what.count + plan.what.count, dtype=_FLOAT)
    d_gamma, d_beta, du = torch.empty_like(gamma), torch.empty_like(beta), torch.empty_like(z)
    d_bias = None if bias is None else torch.empty_like(bias)
    ds = torch.empty_like(z) if options.has_shortcut else None
    up, zp, dp, kp = u.data_ptr(), z.data_ptr(), d_out.data_ptr(), back.data_ptr()
    ip, fp, gp, bp = of_images.data_ptr(), of_features.data_ptr(), d_gamma.data_ptr(), d_beta.data_ptr()
    op, pp, dup = _address(d_offset, kp), _address(d_bias, bp), du.data_ptr()
    dsp = _address(ds, dup)
    if (up | zp | dp | op | ip | fp) & 15:
        return None
    stream = torch._C._cuda_getCurrentRawStream(u.get_device())
    moments, coefficients, apply = kernels.runs
    moments(stream, dp, zp, up, ip, kp)
    coefficients(stream, kp, ip, fp, op, gp, bp, pp)
    apply(stream, dp, zp, up, fp, kp, dup, dsp)
    return du, ds, d_bias, d_gamma, d_beta
