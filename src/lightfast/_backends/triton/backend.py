"""The backend for GPUs: kernels in Triton, for maps with idle channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operands import Features, Folded, Gradients, Norm, NormActOptions, Operands, Saved, Statistics
from lightfast._backends.plans import UnitPlans, parts_of
from lightfast._backends.reference import Reference
from lightfast._backends.tensors import are_rows, fit_channels, is_last, wants_gradient, working_dtype
from lightfast._backends.triton import center_act, norm_act, projection, unit
from lightfast._backends.triton.examined import examined
from lightfast._backends.weights import WeightCache, is_captured

__all__ = ["Triton"]

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_MOST_FEATURES = 2048  # Of a group.
_NO_PLAN: Any = object()


class Triton(Reference):
    """Kernels for maps (N, channels, H, W) in float32, bfloat16 and float16; torch for all others."""

    name = "Triton"
    fills_channels = True

    def __init__(self, trusted: bool = False) -> None:
        """Args: trusted: whether kernels are used without having been compared with the reference."""
        self._trusted = trusted
        self._verdicts: dict[tuple[str, int], bool] = {}

    def channels(self, features: int, dtype: torch.dtype) -> int:
        """So many that a pixel has a multiple of 16 bytes, which is what a thread loads at once, and of 4 numbers.

        >>> Triton().channels(33, torch.bfloat16), Triton().channels(33, torch.float32)
        (40, 36)
        """
        at_once = max(4, 16 // dtype.itemsize)
        return -(-features // at_once) * at_once

    def has_operators(self, u: Tensor, what: Features) -> bool:
        return _is_known(u, what)

    def has_weight_operator(self, weight: Tensor, constraint: Constraint, form: Form) -> bool:
        return weight.dim() in (2, 4) and projection.takes(weight, constraint, form)

    def _trusts(self, operation: str, x: Tensor) -> bool:
        """Whether the kernels are to do an operation where `x` is: they have to have shown that they are right."""
        if self._trusted:
            return True
        place = (operation, x.get_device())
        known = self._verdicts.get(place)
        if known is None:
            if is_captured(x):
                # Nothing can be compared while a CUDA graph is captured, before which everything has run once.
                return True
            known = self._verdicts[place] = examined(operation, x.device)
        return known

    def unit(
        self,
        z: Tensor,
        shortcut: Tensor | None,
        conv: Any,
        norm: Any,
        groups: int,
        slope: float,
        plans: UnitPlans,
    ) -> tuple[Tensor, Tensor] | None:
        # Read past the modules' own search for attributes, which takes as long as a launch.
        raw, bias = conv._parameters.get("weight"), conv._parameters.get("bias")
        if raw is None or z.get_device() != torch._C._cuda_getDevice():
            return None
        parts, training = parts_of(norm)
        dtype = working_dtype(z)
        key = (z.get_device(), z.shape, z.dtype, dtype, z.is_contiguous(), raw.dtype, raw.is_contiguous())
        plan = plans.get(key, lambda: self._plan(z, dtype, conv, groups, slope))
        if plan is _NO_PLAN or not are_rows(parts if bias is None else (*parts, bias), plan.what.count, z):
            return None
        form = plan.form
        if z.dtype != dtype or z.shape[1] != form.shape[1] or not z.is_contiguous(memory_format=form.layout):
            z = fit_channels(z.to(dtype), form.shape[1]).contiguous(memory_format=form.layout)
        if shortcut is not None and (shortcut.dtype != dtype or shortcut.shape[1] != form.shape[0]):
            shortcut = fit_channels(shortcut.to(dtype), form.shape[0])
        first, second, third, fourth = parts
        if training or wants_gradient(z, shortcut, raw, bias, first, second):
            if isinstance(norm, Folded):
                return None
            if plan.constraint is not None and not conv.training and wants_gradient(raw):
                conv.stop_keeping()
            statistics = Statistics(training, third, fourth, norm.momentum, norm.eps)
            tracked = norm._buffers.get("num_batches_tracked")
            return unit.train(plan, z, shortcut, raw, bias, first, second, statistics, tracked)
        kept: WeightCache = plans.weights if plan.constraint is None else conv._kept
        weight = kept.peek(raw, form)
        if weight is None:
            weight = kept.get(raw, form, lambda raw: self.fit_weight(raw, plan.constraint, form, True))
        known = norm if isinstance(norm, Folded) else Norm(first, second, third, fourth, norm.eps)
        return unit.infer(plan, z, shortcut, weight, bias, known)

    def _plan(self, z: Tensor, dtype: torch.dtype, conv: Any, groups: int, slope: float) -> unit.UnitPlan:
        """The plan of a unit for maps like `z`, or none if it has to be done step by step."""
        what, raw = Features(conv.out_channels, groups), conv.weight
        if conv.transposed or conv.groups > 1 or isinstance(conv.padding, str) or z.dim() != 4:
            return _NO_PLAN
        outputs, inputs = (self.channels(features, dtype) for features in (conv.out_channels, conv.in_channels))
        layout = torch.channels_last if dtype != torch.float32 or is_last(z) else torch.contiguous_format
        form = Form((outputs, inputs, *raw.shape[2:]), dtype, layout)
        constraint = getattr(conv, "weight_constraint", None)
        geometry = (conv.stride, conv.padding, conv.dilation)
        sides = zip(z.shape[2:], conv.kernel_size, *geometry, strict=True)
        height, width = ((side + 2 * pad - gap * (taps - 1) - 1) // step + 1 for side, taps, step, pad, gap in sides)
        known = _is_known(z, what) and dtype in _PRECISIONS and norm_act.can_infer(what) and height * width > 1
        if not known or not projection.takes(raw, constraint, form):
            return _NO_PLAN
        if not all(self._trusts(name, z) for name in ("norm_act", "norm_act_backward", "infer", "project_rows")):
            return _NO_PLAN
        return unit.UnitPlan(form, raw, constraint, geometry, what, slope)

    def norm_act_forward(self, operands: Operands, tracked: Tensor | None = None) -> tuple[Saved, Tensor]:
        u, what = operands.u, Features(len(operands.weight), operands.groups)
        # Of a single pixel the kernels have no use for the moments.
        if (
            operands.statistics.share is not None
            or not _is_known(u, what)
            or u.shape[2] * u.shape[3] == 1
            or not self._trusts("norm_act", u)
        ):
            return super().norm_act_forward(operands, tracked)
        with torch.cuda.device_of(u):
            return norm_act.forward(operands, tracked)

    def norm_act_backward(
        self, dz: Tensor | None, d_offset: Tensor | None, saved: Saved, options: NormActOptions, statistics: Statistics
    ) -> Gradients:
        u, what = saved.u, Features(len(saved.weight), options.groups)
        if (
            statistics.share is not None
            or not _is_known(u, what)
            or u.shape[2] * u.shape[3] == 1
            or not self._trusts("norm_act_backward", u)
        ):
            return super().norm_act_backward(dz, d_offset, saved, options, statistics)
        with torch.cuda.device_of(u):
            return norm_act.backward(dz, d_offset, saved, options)

    def infer(
        self,
        u: Tensor,
        shortcut: Tensor | None,
        pre_bias: Tensor | None,
        norm: Norm | Folded,
        what: Features,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        if not _is_known(u, what) or not norm_act.can_infer(what) or not self._trusts("infer", u):
            return super().infer(u, shortcut, pre_bias, norm, what, slope)
        with torch.cuda.device_of(u):
            return norm_act.infer(u, shortcut, pre_bias, norm, what, slope)

    def center(
        self, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, slope: float, cut: bool
    ) -> tuple[Tensor, Tensor]:
        if not _is_known(u, what) or not center_act.can_center(what) or not self._trusts("center", u):
            return super().center(u, bias, offset, what, slope, cut)
        with torch.cuda.device_of(u):
            return center_act.center(u, bias, offset, what, slope, cut)

    def center_backward(
        self,
        dz: Tensor,
        z: Tensor,
        d_level: Tensor | None,
        shape: torch.Size,
        last: bool,
        bias: Tensor | None,
        what: Features,
        slope: float,
    ) -> tuple[Tensor, Tensor | None]:
        if not _is_known(z, what) or not center_act.can_center(what) or not self._trusts("center_backward", z):
            return super().center_backward(dz, z, d_level, shape, last, bias, what, slope)
        with torch.cuda.device_of(z):
            return center_act.backward_center(dz, z, d_level, shape, last, bias, what, slope)

    def halve(
        self, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, with_places: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if (
            not _is_known(u, what)
            or not center_act.can_center(what)
            or min(u.shape[2:]) < 2
            or not self._trusts("halve", u)
        ):
            return super().halve(u, bias, offset, what, with_places)
        with torch.cuda.device_of(u):
            return center_act.halve(u, bias, offset, what, with_places)

    def halve_backward(
        self,
        dz: Tensor,
        places: Tensor,
        d_level: Tensor | None,
        shape: torch.Size,
        last: bool,
        bias: Tensor | None,
        what: Features,
    ) -> tuple[Tensor, Tensor | None]:
        if not _is_known(dz, what) or not center_act.can_center(what) or not self._trusts("halve_backward", dz):
            return super().halve_backward(dz, places, d_level, shape, last, bias, what)
        with torch.cuda.device_of(dz):
            return center_act.backward_halve(dz, places, d_level, shape, last, bias, what)

    def join(self, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if dtype not in _PRECISIONS or not center_act.can_join(images) or not self._trusts("join", images):
            return super().join(images, dtype)
        with torch.cuda.device_of(images):
            return center_act.join(images, dtype, self.channels(6, dtype))

    def takes_weight(self, weight: Tensor, constraint: Constraint | None, form: Form) -> bool:
        return projection.takes(weight, constraint, form) and self._trusts(_weight_pass(constraint), weight)

    def fit_weight(self, weight: Tensor, constraint: Constraint | None, form: Form, wanted: bool) -> Tensor:
        if not self.takes_weight(weight, constraint, form):
            return super().fit_weight(weight, constraint, form, wanted)
        with torch.cuda.device_of(weight):
            return projection.fit_weight(weight, constraint, form, wanted)


def _weight_pass(constraint: Constraint | None) -> str:
    return "project_columns" if constraint is not None and constraint.transposed else "project_rows"


def _is_known(u: Tensor, what: Features) -> bool:
    """Whether the kernels are written for maps like `u`."""
    small = what.count // what.groups <= _MOST_FEATURES
    return small and u.dim() == 4 and u.dtype in _PRECISIONS and u.numel() > 0
