"""The small modules that a converted network needs besides the layers of `lightfast.nn`."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._groups import Groups, GroupSpec
from lightfast.functional import Scope, add_offset, center, group_pool, project_weight

__all__ = ["Attention", "Center", "GroupScores", "Pool", "ProjectedWeight", "Shift"]


class Pool(nn.Module):
    """`φ(x)`: the mean of each group over all features and positions of an image, with images on axis `images`.

    Shapes: (N, m, *positions) to (N, g, 1, ...), for images on axis 0 and features on axis 1.
    """

    def __init__(self, groups: GroupSpec, images: int = 0, dim: int = 1) -> None:
        super().__init__()
        self.groups, self.images, self.dim = groups, images, dim

    def forward(self, x: Tensor) -> Tensor:
        return group_pool(_to_front(x, self.images), self.groups, dim=_moved(self.dim, self.images))

    def extra_repr(self) -> str:
        return f"{self.groups}, images={self.images}, dim={self.dim}"


class Shift(nn.Module):
    """`x + sign · G φ`: takes a map's group means away (sign -1) or gives them back (sign 1).

    Shapes: a map (N, m, *positions) and what :class:`Pool` gave, of that map or of one with other positions; the map's
    shape.
    """

    def __init__(self, groups: GroupSpec, sign: int, images: int = 0, dim: int = 1) -> None:
        super().__init__()
        self.groups, self.sign, self.images, self.dim = groups, sign, images, dim

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        if offset.dim() != x.dim():
            # Positions are of size 1 in the group means, so what is left is (N, g).
            offset = offset.flatten(1)
        moved = _to_front(x, self.images)
        return _to_place(add_offset(moved, self.sign * offset, self.groups, _moved(self.dim, self.images)), self.images)

    def extra_repr(self) -> str:
        return f"{'+' if self.sign > 0 else '-'}, {self.groups}, images={self.images}, dim={self.dim}"


class Center(nn.Module):
    """`x - G φ(x)`, for the shortcut of a residual sum. Shapes: any map, unchanged."""

    scope: Scope

    def __init__(self, groups: GroupSpec, scope: Scope = "image", images: int = 0, dim: int = 1) -> None:
        super().__init__()
        self.groups, self.scope, self.images, self.dim = groups, scope, images, dim

    def forward(self, x: Tensor) -> Tensor:
        moved = _to_front(x, self.images)
        return _to_place(center(moved, self.groups, "mean", self.scope, _moved(self.dim, self.images)), self.images)

    def extra_repr(self) -> str:
        return f"{self.groups}, scope={self.scope!r}, images={self.images}, dim={self.dim}"


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


def _to_front(x: Tensor, images: int) -> Tensor:
    return x.movedim(images, 0) if images else x


def _to_place(x: Tensor, images: int) -> Tensor:
    return x.movedim(0, images) if images else x


def _moved(dim: int, images: int) -> int:
    """Where axis `dim` is once the axis of images is moved to the front."""
    return dim + 1 if dim < images else dim
