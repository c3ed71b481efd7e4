"""The projection of a layer's weight: `project_weight` in one pass, and in the precision that is wanted of it.

The projection is affine, `P(W) = W - M W + S`, with `M` the mean of each block of weights that meets the constraint
together, and `S` its share of it. `I - M` is symmetric, so the gradient is projected by the same passes without `S`,
and so is the gradient of that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightfast.functional import Constraint, project_weight, tap_phases
from lightfast.groups import Groups
from lightfast.nn import _native, _projection_triton

__all__ = ["project"]

_MOST_TAPS = 128  # Sums over the taps of some outputs lie on the stack.


class _Constraint(NamedTuple):
    """What a weight is to meet; the arguments of `project_weight`."""

    in_groups: Groups
    out_groups: Groups
    conv_groups: int
    constraint: Constraint
    transposed: bool
    stride: tuple[int, ...] | int
    dilation: tuple[int, ...] | int

    def project(self, weight: Tensor) -> Tensor:
        return project_weight(
            weight,
            self.in_groups,
            self.out_groups,
            conv_groups=self.conv_groups,
            constraint=self.constraint,
            transposed=self.transposed,
            stride=self.stride,
            dilation=self.dilation,
        )

    @property
    def is_even(self) -> bool:
        """Whether the blocks are equal contiguous runs, in which every output sees every input."""
        even = self.in_groups.is_even and self.out_groups.is_even and self.in_groups.count == self.out_groups.count
        return even and self.conv_groups == 1

    @property
    def has_passes(self) -> bool:
        """Whether the C passes know such blocks: even ones, of taps that meet the constraint together."""
        return self.is_even and (self.transposed or self.constraint == "sum")

    def has_kernel(self, weight: Tensor) -> bool:
        """Whether the GPU's kernel knows such blocks: of all taps, or of equal phases of square kernels."""
        if not self.transposed:
            return self.is_even and (self.constraint == "sum" or weight.shape[2:].numel() == 1)
        strides = {self.stride} if isinstance(self.stride, int) else set(self.stride)
        dilations = {self.dilation} if isinstance(self.dilation, int) else set(self.dilation)
        if not self.is_even or weight.dim() != 4 or len(strides) > 1 or dilations != {1}:
            return False
        (stride,), (height, width) = strides, weight.shape[2:]
        return height == width and height % stride == 0 and (self.constraint == "sum" or height == stride)

    def project_by_kernel(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The projection of a weight that suits."""
        stride = self.stride if isinstance(self.stride, int) else self.stride[0]
        return _projection_triton.project_padded(
            weight,
            self.in_groups.count,
            self.out_groups.features,
            self.in_groups.features,
            dtype,
            _projection_triton.layout_of(weight),
            transposed=self.transposed,
            stride=stride if self.transposed else 1,
        )

    def project_in_c(self, weight: Tensor, dtype: torch.dtype, wanted: bool) -> Tensor:
        """The projection of a weight that suits, or without `wanted` that of its gradient."""
        groups, taps, last = self.in_groups.count, weight[0, 0].numel(), _native.is_last(weight)
        if not self.transposed:
            outputs, inputs = weight.shape[:2]
            run = inputs // groups if last else inputs // groups * taps
            return _native.project_rows(weight, dtype, float(wanted), groups, outputs, taps if last else 1, run)
        phase, shares = tap_phases(tuple(weight.shape[2:]), self.stride, self.dilation, self.constraint)
        outputs = features = weight.shape[1]
        if last and len(shares) == taps and len(set(shares)) == 1:
            # Each tap for itself: the outputs of all taps lie in a row.
            outputs, phase, shares, last = taps * features, [0], shares[:1], False
        shares = [share * wanted for share in shares]
        rows = weight.shape[0] // groups
        return _native.project_columns(weight, dtype, phase, shares, groups, rows, outputs, features, last)


def project(
    weight: Tensor,
    in_groups: Groups,
    out_groups: Groups,
    *,
    conv_groups: int = 1,
    constraint: Constraint = "sum",
    transposed: bool = False,
    stride: tuple[int, ...] | int = 1,
    dilation: tuple[int, ...] | int = 1,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`project_weight`, in C or by the GPU's kernel where that suits.

    Args:
        weight: as there, and so are all the other arguments but the last.
        in_groups: the assignment of the input features.
        out_groups: the assignment of the output features.
        conv_groups: the convolution's own groups.
        constraint: what meets the constraint: the `sum` over the taps, or every `tap`.
        transposed: whether the weight belongs to a transposed convolution.
        stride: of the transposed convolution.
        dilation: of the transposed convolution.
        dtype: the precision of the result; by default the weight's.

    Returns:
        The shape of `weight`.
    """
    dtype = weight.dtype if dtype is None else dtype
    what = _Constraint(in_groups, out_groups, conv_groups, constraint, transposed, stride, dilation)
    known = what.has_passes and weight.dtype == torch.float32 and weight.shape[2:].numel() <= _MOST_TAPS
    if known and _native.suits_weight(weight, dtype):
        return _Project.apply(weight, what, dtype, True)
    if _projection_triton.suits_weight(weight, dtype) and what.has_kernel(weight):
        return what.project_by_kernel(weight, dtype)
    return what.project(weight).to(dtype)


class _Project(torch.autograd.Function):
    """`P` where something is `wanted` of the blocks, and its linear part otherwise, which is its own transpose."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, what: _Constraint, dtype: torch.dtype, wanted: bool) -> Tensor:
        ctx.what, ctx.dtypes, ctx.last = what, (weight.dtype, dtype), _native.is_last(weight)
        return what.project_in_c(weight, dtype, wanted)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        grad = grad.contiguous(memory_format=torch.channels_last if ctx.last else torch.contiguous_format)
        return _linear_part(grad, ctx.what, ctx.dtypes[0]), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        return None if tangents[0] is None else _linear_part(tangents[0], ctx.what, ctx.dtypes[1])


def _linear_part(change: Tensor, what: _Constraint, dtype: torch.dtype) -> Tensor:
    if _native.suits_weight(change, dtype):
        return _Project.apply(change, what, dtype, False)
    exact = change.to(torch.float32)
    return (what.project(exact) - what.project(torch.zeros_like(exact))).to(dtype)
