"""The constraint that a weight is to meet, and the form in which it is wanted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightfast._backends.tensors import layout_of
from lightfast._groups import Groups
from lightfast.functional import ConstraintKind, project_weight


class Form(NamedTuple):
    """What a weight is like: its shape with idle channels, its precision, and its memory format."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: torch.memory_format

    @classmethod
    def of(cls, weight: Tensor, dtype: torch.dtype | None = None) -> Form:
        """That of a weight, perhaps in another precision."""
        return cls(tuple(weight.shape), weight.dtype if dtype is None else dtype, layout_of(weight))


class Constraint(NamedTuple):
    """`(Σ_taps W) G_m = G_n`; the arguments are those of `lightfast.functional.project_weight`."""

    in_groups: Groups
    out_groups: Groups
    conv_groups: int = 1
    taps: ConstraintKind = "sum"
    transposed: bool = False
    stride: tuple[int, ...] | int = 1
    dilation: tuple[int, ...] | int = 1

    def project(self, weight: Tensor, wanted: bool = True) -> Tensor:
        """The orthogonal projection of a weight; without `wanted` its linear part, where all sums are to be 0."""
        if not wanted:
            # Not in the precision of the weight, in which the difference of two projections would be rounded twice.
            exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
            return self.project(exact) - self.project(torch.zeros_like(exact))
        if self.transposed and (stride := self.phases_of(weight)) is not None:
            return project_phases(weight, self.in_groups.count, stride)
        return project_weight(
            weight,
            self.in_groups,
            self.out_groups,
            conv_groups=self.conv_groups,
            constraint=self.taps,
            transposed=self.transposed,
            stride=self.stride,
            dilation=self.dilation,
        )

    @property
    def is_even(self) -> bool:
        """Whether the blocks are equal contiguous runs, in which every output sees every input."""
        even = self.in_groups.is_even and self.out_groups.is_even and self.in_groups.count == self.out_groups.count
        return even and self.conv_groups == 1

    def phases_of(self, weight: Tensor) -> int | None:
        """The stride of a transposed convolution if its taps are equal phases of square kernels in even blocks."""
        strides = {self.stride} if isinstance(self.stride, int) else set(self.stride)
        dilations = {self.dilation} if isinstance(self.dilation, int) else set(self.dilation)
        if not self.is_even or weight.dim() != 4 or len(strides) > 1 or dilations != {1}:
            return None
        (stride,), (height, width) = strides, weight.shape[2:]
        square = height == width and height % stride == 0
        return stride if square and (self.taps == "sum" or height == stride) else None


def project_phases(weight: Tensor, groups: int, stride: int) -> Tensor:
    """The orthogonal projection of a transposed convolution's weight (m, n, k, k), `k` a multiple of `stride`.

    As `project_weight`, for equal contiguous runs of features, by views and means alone: nothing comes from the host,
    so it can be part of a CUDA graph.

    >>> w = project_phases(torch.randn(6, 3, 4, 4), 3, 2)
    >>> phases = w.unflatten(0, (3, 2)).unflatten(4, (2, 2)).unflatten(3, (2, 2)).sum((1, 3, 5))
    >>> torch.allclose(phases, torch.eye(3)[..., None, None].expand_as(phases), atol=1e-5)
    True
    """
    exact = weight.to(torch.promote_types(weight.dtype, torch.float32))
    taps = weight.shape[2] // stride
    # Not `unflatten`, which batches of gradients (`is_grads_batched`) do not know.
    blocks = exact.reshape(groups, -1, weight.shape[1], taps, stride, taps, stride)
    outputs = torch.arange(weight.shape[1], device=weight.device) // (weight.shape[1] // groups)
    own = outputs == torch.arange(groups, device=weight.device)[:, None]
    share = own.to(exact.dtype)[..., None, None] / (blocks.shape[1] * taps * taps)
    excess = blocks.mean((1, 3, 5)) - share
    return (blocks - excess[:, None, :, None, :, None]).reshape(weight.shape).to(weight.dtype)
