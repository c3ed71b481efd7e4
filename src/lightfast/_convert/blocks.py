"""The small modules that a converted network needs besides the layers of `lightfast.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lightfast.nn as lf
from lightfast._groups import Groups, GroupSpec
from lightfast.functional import Scope, add_offset, center, group_pool, project_weight


class _Grouped(nn.Module):
    """Something done to an equivariant value with images on axis `images` and features on axis `dim`."""

    def __init__(self, groups: GroupSpec, images: int = 0, dim: int = 1) -> None:
        super().__init__()
        self.groups, self.images, self.dim = groups, images, dim
        self.moved_dim = dim + 1 if dim < images else dim

    def to_front(self, x: Tensor) -> Tensor:
        """`x` with images on axis 0, so that features are on axis `moved_dim`."""
        return x.movedim(self.images, 0) if self.images else x

    def to_place(self, x: Tensor) -> Tensor:
        return x.movedim(0, self.images) if self.images else x

    def extra_repr(self) -> str:
        return f"{self.groups}, images={self.images}, dim={self.dim}"


class Pool(_Grouped):
    """`φ(x)`: the mean of each group over all features and positions of an image.

    Shapes: (N, m, *positions) to (N, g, 1, ...), for images on axis 0 and features on axis 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        return group_pool(self.to_front(x), self.groups, dim=self.moved_dim)


class Shift(_Grouped):
    """`x + sign · G φ`: takes a map's group means away (sign -1) or gives them back (sign 1).

    Shapes: a map (N, m, *positions) and what :class:`Pool` gave, of that map or of one with other positions; the map's
    shape.
    """

    def __init__(self, groups: GroupSpec, sign: int, images: int = 0, dim: int = 1) -> None:
        super().__init__(groups, images, dim)
        self.sign = sign

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        if offset.dim() != x.dim():
            # Positions are of size 1 in the group means, so what is left is (N, g).
            offset = offset.flatten(1)
        return self.to_place(add_offset(self.to_front(x), self.sign * offset, self.groups, self.moved_dim))

    def extra_repr(self) -> str:
        return f"{'+' if self.sign > 0 else '-'}, {super().extra_repr()}"


class Center(_Grouped):
    """`x - G φ(x)`, for the shortcut of a residual sum. Shapes: any map, unchanged."""

    scope: Scope

    def __init__(self, groups: GroupSpec, scope: Scope = "image", images: int = 0, dim: int = 1) -> None:
        super().__init__(groups, images, dim)
        self.scope = scope

    def forward(self, x: Tensor) -> Tensor:
        return self.to_place(center(self.to_front(x), self.groups, "mean", self.scope, self.moved_dim))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scope={self.scope!r}"


class GroupScores(nn.Module):
    """k x g scores averaged over groups, less their mean over classes, which changes no probability.

    Averaged scores all move by the same mean of the offset; without their mean they do not move at all.

    Shapes: (N, ..., g k, ...) with features on axis `dim`, groups outermost, to (N, ..., k, ...).
    """

    def __init__(self, groups: int, dim: int = 1) -> None:
        super().__init__()
        self.groups, self.dim = groups, dim

    def forward(self, x: Tensor) -> Tensor:
        scores = x.unflatten(self.dim, (self.groups, -1)).mean(self.dim)
        return scores - scores.mean(self.dim, keepdim=True)

    def extra_repr(self) -> str:
        return f"groups={self.groups}, dim={self.dim}"


class ProjectedWeight(nn.Module):
    """The orthogonal projection of a weight that is computed in `forward`, as weight norm does.

    Shapes: (n, m / conv_groups, *kernel), unchanged.
    """

    def __init__(self, in_groups: Groups, out_groups: Groups, conv_groups: int = 1) -> None:
        super().__init__()
        self.in_groups, self.out_groups, self.conv_groups = in_groups, out_groups, conv_groups

    def forward(self, weight: Tensor) -> Tensor:
        return project_weight(weight, self.in_groups, self.out_groups, conv_groups=self.conv_groups)

    def extra_repr(self) -> str:
        return f"{self.in_groups}, {self.out_groups}"


class _ZeroPadded:
    """A convolution of a lifted map: `z` may be padded with zeros, which is padding `x` with what the light adds."""

    padding: Any

    def _pads(self) -> bool:
        return False

    def _apply_weight(self, x: Tensor, padding: Any) -> Tensor:
        layer: Any = super()
        return layer._apply_weight(x, self.padding)


class ZeroPaddedConv1d(_ZeroPadded, lf.Conv1d):
    __doc__ = _ZeroPadded.__doc__


class ZeroPaddedConv2d(_ZeroPadded, lf.Conv2d):
    __doc__ = _ZeroPadded.__doc__


class ZeroPaddedConv3d(_ZeroPadded, lf.Conv3d):
    __doc__ = _ZeroPadded.__doc__


ZERO_PADDED = {lf.Conv1d: ZeroPaddedConv1d, lf.Conv2d: ZeroPaddedConv2d, lf.Conv3d: ZeroPaddedConv3d}
"""The convolutions of lifted maps, by those of maps."""


class Attention(nn.Module):
    """Scaled dot product attention with dropout in training alone. Shapes as in torch's function."""

    def __init__(self, dropout: float, is_causal: bool = False, scale: float | None = None, **options: Any) -> None:
        super().__init__()
        self.dropout, self.is_causal, self.scale, self.options = dropout, is_causal, scale, options

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout, self.is_causal, scale=self.scale, **self.options
        )

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class StochasticDepth(nn.Module):
    """`x / (1 - p) · floor(1 - p + u)` with a uniform `u` for each image, in training; `x` in evaluation.

    Shapes: any, unchanged.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        drawn = torch.rand([x.shape[0]] + [1] * (x.dim() - 1), dtype=x.dtype, device=x.device)
        return x / (1 - self.p) * (drawn + (1 - self.p)).floor()

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Modes(nn.Module):
    """Something that is done in training, and something else in evaluation: stochastic depth, traced in both modes.

    Shapes: of what it stands for.
    """

    def __init__(self, in_training: nn.Module, in_evaluation: nn.Module) -> None:
        super().__init__()
        self.in_training, self.in_evaluation = in_training, in_evaluation

    def forward(self, x: Tensor) -> Tensor:
        return self.in_training(x) if self.training else self.in_evaluation(x)
