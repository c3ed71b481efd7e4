"""Modules that several vocabularies share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends import center_subsample, exact_linear
from lightfast.functional import Scope, center, statistics_dtype


def nearest_multiple(features: int, groups: int) -> int:
    """The multiple of `groups` nearest to `features`, and not 0."""
    return max(1, round(features / groups)) * groups


def dropout(rate: float, whole: bool) -> nn.Module:
    """Dropout of single numbers, or of whole features; none at a rate of 0."""
    if not rate:
        return nn.Identity()
    return nn.Dropout2d(rate) if whole else nn.Dropout(rate)


class Unit(nn.Module):
    """Convolution, norm, an optional shortcut (centered where the sum would add two offsets), activation."""

    in_order = ("conv", "norm")

    def __init__(self, conv: nn.Module, norm: nn.Module, act: nn.Module, offset_groups: int | None = None) -> None:
        super().__init__()
        self.conv, self.norm, self.act, self.offset_groups = conv, norm, act, offset_groups

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        y = self.norm(self.conv(x))
        if shortcut is not None:
            y = y + (shortcut if self.offset_groups is None else center(shortcut, self.offset_groups, scope="pixel"))
        return self.act(y)


class CenteredSubsample(nn.Module):
    """Every `stride`-th pixel of `x - G φ(x)`, with `φ` of the full map, and zeros for missing features in each group.

    Zeros at the end would be as exact, since the map is centered; within each group they keep the features of a color
    with those of the same color.
    """

    scope: Scope

    def __init__(self, inputs: int, outputs: int, stride: int, offset_groups: int, scope: Scope) -> None:
        super().__init__()
        self.missing, self.stride = (outputs - inputs) // offset_groups, stride
        self.offset_groups, self.scope = offset_groups, scope

    def forward(self, x: Tensor) -> Tensor:
        if self.scope == "image":
            return center_subsample(x, self.offset_groups, self.stride, self.missing)
        runs = x[:, :, :: self.stride, :: self.stride].unflatten(1, (self.offset_groups, -1))
        runs = runs - runs.mean(2, keepdim=True, dtype=statistics_dtype(x))
        return F.pad(runs.to(x.dtype), (0, 0, 0, 0, 0, self.missing)).flatten(1, 2)


class Scores(nn.Module):
    """Average over pixels and a linear layer; with groups, scores averaged over them, less their mean over classes.

    Shapes: (N, C, H, W) to (N, k), or `per_pixel`, without the average over pixels, to (N, k, H, W).

    k x g scores, averaged over the groups, all move by the mean of the offset. Without their mean over the classes they
    do not move at all, and the probabilities are the same.
    """

    def __init__(self, linear: nn.Module, offset_groups: int | None = None, per_pixel: bool = False) -> None:
        super().__init__()
        self.linear, self.offset_groups, self.per_pixel = linear, offset_groups, per_pixel

    def forward(self, x: Tensor) -> Tensor:
        if self.per_pixel:
            scores = self._scores(x.movedim(1, -1).flatten(0, -2).to(statistics_dtype(x)), x.dtype)
            return scores.unflatten(0, (x.shape[0], *x.shape[2:])).movedim(-1, 1)
        return self._scores(x.mean((2, 3), dtype=statistics_dtype(x)), x.dtype)

    def _scores(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        scores = exact_linear(rows, self.linear, dtype)
        if self.offset_groups is None:
            return scores
        scores = scores.unflatten(1, (self.offset_groups, -1)).mean(1)
        return scores - scores.mean(1, keepdim=True)
