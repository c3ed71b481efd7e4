"""The backend for CPUs: passes over maps and weights in C, built by the machine's compiler at first use."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.native import build
from lightfast._backends.operands import Features, Folded, Norm
from lightfast._backends.plans import UnitPlans, parts_of
from lightfast._backends.reference import Reference, centering_gradient, spread
from lightfast._backends.tensors import are_rows, is_last, layout_of, wants_gradient, working_dtype
from lightfast._backends.weights import WeightCache
from lightfast._compilers import known_to_compilers
from lightfast.functional import tap_phases

_TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
_CONVERSIONS = {(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)}
_MOST_FEATURES = 8192  # Their coefficients lie on the stack,
_MOST_TAPS = 128  # and so do sums over the taps of some outputs.
_NO_PLAN: Any = object()


class Passes:
    """The functions of a library, called with tensors and numbers; some of them may have been refused.

    Args:
        library: the compiled passes.
        refused: passes that are not to be used, by name, and why.
    """

    def __init__(self, library: ctypes.CDLL, refused: Mapping[str, str]) -> None:
        self.library, self.refused = library, refused
        self._functions: dict[str, Any] = {}

    def run(self, name: str, tensors: Sequence[Tensor | None], *numbers: float) -> None:
        """A function of the library on these tensors and numbers: `float` or `long`, as Python has them."""
        function = self._functions.get(name)
        if function is None:
            kinds = [ctypes.c_float if isinstance(number, float) else ctypes.c_long for number in numbers]
            function = self.function(name, [*[ctypes.c_void_p] * len(tensors), *kinds, ctypes.c_int])
        function(*[None if x is None else x.data_ptr() for x in tensors], *numbers, torch.get_num_threads())

    def function(self, name: str, kinds: Sequence[Any]) -> Any:
        """A function of the library that takes arguments of these kinds."""
        function = self._functions.get(name)
        if function is None:
            function = getattr(self.library, name)
            function.argtypes, function.restype = list(kinds), None
            self._functions[name] = function
        return function


@cache
def library() -> build.Library | None:
    """The passes of this machine, compiled and compared with torch; None where torch has to do the work."""
    from lightfast._backends.trust import verdict_on_passes

    trial = (
        "from lightfast._backends.native import build; from lightfast._backends.trust import verdict_on_passes; "
        "build.report(verdict_on_passes)"
    )
    return build.load(verdict_on_passes, [sys.executable, "-c", trial])


@cache
def _passes() -> Passes | None:
    built = library()
    return None if built is None else Passes(built.passes, built.refused)


@known_to_compilers
def _available() -> bool:
    return _passes() is not None


class _UnitPlan:
    """What a unit has worked out about maps of one kind; the last of it when it first sees one convolved."""

    def __init__(self, backend: Native, form: Form, constraint: Constraint | None, what: Features) -> None:
        self.backend, self.form, self.constraint, self.what = backend, form, constraint, what
        self._run: Any = None
        self._like: tuple[Any, ...] = ()
        self.sizes: tuple[int, ...] = ()
        self.offset: tuple[int, int] = (0, 0)

    def pass_for(self, u: Tensor) -> Any:
        """The function in C for maps like `u`, or None."""
        like = (u.shape, u.stride(), u.dtype)
        if like != self._like:
            passes = self.backend._for("infer", u)
            self._like, self._run = like, None
            if passes is not None and u.shape[1] == self.what.count:
                kinds = [*[ctypes.c_void_p] * 9, ctypes.c_float, ctypes.c_float, *[ctypes.c_long] * 4, ctypes.c_int]
                self._run = passes.function(_variant("infer_norm", u), kinds)
                self.sizes, self.offset = _sizes(u), (u.shape[0], self.what.groups)
        return self._run


class Native(Reference):
    """C for maps in float32 and bfloat16 that lie in a row, contiguous or channels-last; torch for all others.

    Args:
        passes: those to use; by default the machine's own.
    """

    name = "C"

    def __init__(self, passes: Passes | None = None) -> None:
        self._own = passes

    @property
    def passes(self) -> Passes | None:
        return _passes() if self._own is None else self._own

    def has_operators(self, u: Tensor, what: Features) -> bool:
        return u.shape[1] == what.count and _is_known(u) and _available()

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
        raw, bias = conv._parameters.get("weight"), conv._parameters.get("bias")
        parts, training = parts_of(norm)
        if training or raw is None or wants_gradient(z, shortcut, raw, bias, *parts):
            return None
        dtype = working_dtype(z)
        key = (z.shape, z.dtype, dtype, z.is_contiguous(), raw.dtype, raw.is_contiguous())
        plan = plans.get(key, lambda: self._plan(z, dtype, conv, groups))
        if plan is _NO_PLAN or not are_rows(parts if bias is None else (*parts, bias), plan.what.count, z):
            return None
        constraint, form = plan.constraint, plan.form
        if constraint is None and form.dtype == raw.dtype:
            weight = raw
        else:
            kept: WeightCache = plans.weights if constraint is None else conv._kept
            weight = kept.peek(raw, form)
            if weight is None:
                weight = kept.get(raw, form, lambda raw: self.fit_weight(raw, constraint, form, True))
        first, second, third, fourth = parts
        if isinstance(norm, Folded):
            u = torch.conv2d(z, weight, bias, conv.stride, conv.padding, conv.dilation)
            return self.infer(u, shortcut, None, norm, plan.what, slope)
        u = torch.conv2d(z, weight, None, conv.stride, conv.padding, conv.dilation)
        run = plan.pass_for(u)
        if run is None:
            return self.infer(u, shortcut, bias, Norm(first, second, third, fourth, norm.eps), plan.what, slope)
        if shortcut is not None and (shortcut.dtype != u.dtype or shortcut.stride() != u.stride()):
            shortcut = self.like(shortcut, u)
        out, offset = torch.empty_like(u), _room(*plan.offset)
        run(
            u.data_ptr(), None if shortcut is None else shortcut.data_ptr(), first.data_ptr(), second.data_ptr(),
            third.data_ptr(), fourth.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
            offset.data_ptr(), norm.eps, slope, groups, *plan.sizes, torch.get_num_threads(),
        )  # fmt: skip
        return out, offset

    def _plan(self, z: Tensor, dtype: torch.dtype, conv: Any, groups: int) -> _UnitPlan:
        """The plan of a unit for maps like `z`, or none if it has to be done step by step."""
        raw = conv.weight
        if (
            conv.transposed
            or conv.groups > 1
            or isinstance(conv.padding, str)
            or z.dim() != 4
            or conv.out_channels % groups
        ):
            return _NO_PLAN
        if z.shape[1] != conv.in_channels or z.dtype not in _TYPES or tuple(z.shape[2:]) == conv.kernel_size:
            return _NO_PLAN
        # Autocast rounds weights in float32, and those alone.
        form = Form.of(raw, dtype if raw.dtype == torch.float32 and dtype != z.dtype else None)
        what = Features(conv.out_channels, groups)
        return _UnitPlan(self, form, getattr(conv, "weight_constraint", None), what)

    def _for(self, name: str, u: Tensor) -> Passes | None:
        """The passes, if this one of them is to be used on maps like `u`."""
        if not _is_known(u):
            return None
        passes = self.passes
        return None if passes is None or name in passes.refused else passes

    def like(self, x: Tensor, u: Tensor) -> Tensor:
        x = super().like(x, u)
        return x.to(u.dtype).contiguous(memory_format=layout_of(u)) if _is_known(u) else x

    def moments(self, u: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        passes = self._for("moments", u)
        if passes is None:
            return super().moments(u, shortcut)
        mean, var = _room(*u.shape[:2]), _room(*u.shape[:2])
        s_mean = None if shortcut is None else _room(*u.shape[:2])
        passes.run(_variant("moments", u), [u, shortcut, mean, var, s_mean], *_sizes(u))
        return mean, var, s_mean

    def apply(self, u: Tensor, shortcut: Tensor | None, scale: Tensor, shift: Tensor, slope: float) -> Tensor:
        passes = self._for("apply", u)
        if passes is None:
            return super().apply(u, shortcut, scale, shift, slope)
        z = torch.empty_like(u)
        tensors = [u, shortcut, scale.contiguous(), shift.contiguous(), z]
        passes.run(_variant("apply", u), tensors, float(slope), *_sizes(u))
        return z

    def backward_moments(self, dz: Tensor, z: Tensor, u: Tensor, mean: Tensor, slope: float) -> tuple[Tensor, Tensor]:
        passes = self._for("backward_moments", u)
        if passes is None:
            return super().backward_moments(dz, z, u, mean, slope)
        first, second = _room(*u.shape[:2]), _room(*u.shape[:2])
        tensors = [dz, z, u, mean.contiguous(), first, second]
        passes.run(_variant("backward_moments", u), tensors, float(slope), *_sizes(u))
        return first, second

    def backward_apply(
        self, dz: Tensor, z: Tensor, u: Tensor, coefficients: Sequence[Tensor], slope: float, with_shortcut: bool
    ) -> tuple[Tensor, Tensor | None]:
        passes = self._for("backward_apply", u)
        coefficients = [values.contiguous() for values in coefficients]
        if passes is None:
            return super().backward_apply(dz, z, u, coefficients, slope, with_shortcut)
        du = torch.empty_like(u)
        ds = torch.empty_like(u) if with_shortcut else None
        passes.run(_variant("backward_apply", u), [dz, z, u, *coefficients, du, ds], float(slope), *_sizes(u))
        return du, ds

    def infer(
        self,
        u: Tensor,
        shortcut: Tensor | None,
        pre_bias: Tensor | None,
        norm: Norm | Folded,
        what: Features,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        passes = self._for("infer", u)
        rows = norm[:4] if pre_bias is None else (*norm[:4], pre_bias)
        known = u.shape[1] == what.count and (pre_bias is None or isinstance(norm, Norm))
        if passes is None or not known or not are_rows(rows, what.count, u):
            return super().infer(u, shortcut, pre_bias, norm, what, slope)
        shortcut = None if shortcut is None else self.like(shortcut, u)
        z, offset = torch.empty_like(u), _room(u.shape[0], what.groups)
        if isinstance(norm, Folded):
            scale, shift, undo, factor = norm
            tensors = [u, shortcut, undo, factor, scale, shift, z, offset]
            passes.run(_variant("infer_folded", u), tensors, float(slope), what.groups, *_sizes(u))
        else:
            tensors = [u, shortcut, *norm[:4], pre_bias, z, offset]
            passes.run(_variant("infer_norm", u), tensors, float(norm.eps), float(slope), what.groups, *_sizes(u))
        return z, offset

    def center(
        self, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, slope: float, cut: bool
    ) -> tuple[Tensor, Tensor]:
        passes = self._for("center", u)
        if passes is None or bias is not None or u.shape[1] != what.count:
            return super().center(u, bias, offset, what, slope, cut)
        z, level = torch.empty_like(u), _room(u.shape[0], what.groups)
        passes.run(_variant("center", u), [u, z, level], float(slope), what.groups, *_sizes(u))
        return z, level if offset is None else offset + level

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
        if bias is not None or self._for("center_backward", z) is None or z.shape[1] != what.count:
            return super().center_backward(dz, z, d_level, shape, last, bias, what, slope)
        dz = self.like(dz, z)
        nothing = torch.zeros(z.shape[:2], dtype=torch.float32, device="cpu")
        mean = self.backward_moments(dz, z, z, nothing, slope)[0]
        constant = spread(centering_gradient(mean, d_level, what.groups, z[0, 0].numel()), z.shape[1])
        ones = torch.ones(z.shape[1], dtype=torch.float32, device="cpu")
        return self.backward_apply(dz, z, z, (ones, nothing[0], constant, constant), slope, False)[0], None

    def halve(
        self, u: Tensor, bias: Tensor | None, offset: Tensor | None, what: Features, with_places: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        passes = self._for("halve", u)
        if passes is None or bias is not None or u.shape[1] != what.count or u.dim() != 4 or min(u.shape[2:]) < 2:
            return super().halve(u, bias, offset, what, with_places)
        images, features, height, width = u.shape
        shape, layout = (images, features, height // 2, width // 2), layout_of(u)
        z = torch.empty(shape, dtype=u.dtype, device="cpu", memory_format=layout)
        places = torch.empty(shape, dtype=torch.uint8, device="cpu", memory_format=layout) if with_places else None
        level = _room(images, what.groups)
        passes.run(_variant("halve", u), [u, z, places, level], what.groups, *u.shape)
        return z, level if offset is None else offset + level, places

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
        layout = torch.channels_last if last else torch.contiguous_format
        dz = dz.contiguous(memory_format=layout)
        passes = self._for("halve_backward", dz)
        if passes is None or bias is not None or shape[1] != what.count:
            return super().halve_backward(dz, places, d_level, shape, last, bias, what)
        du = torch.empty(shape, dtype=dz.dtype, device="cpu", memory_format=layout)
        d_level = None if d_level is None else d_level.float().contiguous()
        places = places.contiguous(memory_format=layout)
        passes.run(_named("backward_halve", dz.dtype, last), [dz, places, d_level, du], what.groups, *shape)
        return du, None

    def join(self, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        passes = self._for("join", images)
        if passes is None or images.dtype != torch.float32 or dtype not in _TYPES:
            return super().join(images, dtype)
        count, colors, height, width = images.shape
        shape = (count, 2 * colors, height, width)
        joined = torch.empty(shape, dtype=dtype, device="cpu", memory_format=layout_of(images))
        offset = _room(count, colors)
        passes.run(_named("join", dtype, is_last(images)), [images, joined, offset], count, height * width)
        return joined, offset

    def takes_weight(self, weight: Tensor, constraint: Constraint | None, form: Form) -> bool:
        if constraint is None or not constraint.is_even or (weight.dtype, form.dtype) not in _CONVERSIONS:
            return False
        if tuple(weight.shape) != form.shape or layout_of(weight) != form.layout or not _is_in_a_row(weight):
            return False
        known = constraint.transposed or constraint.taps == "sum"
        if not known or weight.numel() == 0 or weight.shape[2:].numel() > _MOST_TAPS:
            return False
        return self.passes is not None and _weight_pass(constraint) not in self.passes.refused

    def fit_weight(self, weight: Tensor, constraint: Constraint | None, form: Form, wanted: bool) -> Tensor:
        if constraint is None or not self.takes_weight(weight, constraint, form):
            return super().fit_weight(weight, constraint, form, wanted)
        passes = self.passes
        assert passes is not None
        projected = torch.empty_like(weight, dtype=form.dtype)
        name = f"{_weight_pass(constraint)}_{_TYPES[weight.dtype]}_{_TYPES[form.dtype]}"
        groups, taps, last = constraint.in_groups.count, weight.shape[2:].numel(), is_last(weight)
        if not constraint.transposed:
            # It lies (outputs, pieces, groups, run); an output's weights for its own group get the sum `wanted`.
            outputs, inputs = weight.shape[:2]
            sizes = (outputs, taps, inputs // groups) if last else (outputs, 1, inputs // groups * taps)
            passes.run(name, [weight, projected], float(wanted), groups, *sizes)
            return projected
        # It lies (groups, rows, outputs, taps), or (groups, rows, taps, outputs) if channels-last.
        phase, shares = tap_phases(tuple(weight.shape[2:]), constraint.stride, constraint.dilation, constraint.taps)
        outputs = features = weight.shape[1]
        if last and len(shares) == taps and len(set(shares)) == 1:
            # Each tap for itself: the outputs of all taps lie in a row.
            outputs, phase, shares, last = taps * features, [0], shares[:1], False
        counts = [float(phase.count(p)) for p in range(len(shares))]
        phases = torch.tensor(phase, dtype=torch.int32, device="cpu")
        numbers = torch.tensor([[share * wanted for share in shares], counts], dtype=torch.float32, device="cpu")
        sizes = (groups, weight.shape[0] // groups, outputs, len(phase), len(shares), features, int(last))
        passes.run(name, [weight, projected, phases, *numbers], *sizes)
        return projected


def _weight_pass(constraint: Constraint) -> str:
    return "project_columns" if constraint.transposed else "project_rows"


def _is_known(u: Tensor) -> bool:
    """Whether the passes are written for maps like `u`."""
    if u.dtype not in _TYPES or u.dim() < 3 or not u.is_cpu:
        return False
    return _is_in_a_row(u) and u.numel() > 0 and u.shape[1] <= _MOST_FEATURES


def _is_in_a_row(x: Tensor) -> bool:
    return x.is_contiguous() or is_last(x)


def _room(*shape: int) -> Tensor:
    """For numbers of each image, whatever torch's default precision and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _sizes(u: Tensor) -> tuple[int, int, int]:
    """Images, features and positions."""
    images, features = u.shape[:2]
    return images, features, u.numel() // (images * features)


def _variant(name: str, u: Tensor) -> str:
    """The name of a pass for maps like `u`."""
    return _named(name, u.dtype, is_last(u))


def _named(name: str, dtype: torch.dtype, last: bool) -> str:
    return f"{name}{'_last' if last else ''}_{_TYPES[dtype]}"
