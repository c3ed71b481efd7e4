"""The words in which networks are written once: conventional, equivariant with pooling over the image, or per pixel."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast import nn as lfnn
from lightfast.functional import Scope, add_offset, center, group_pool, statistics_dtype
from lightfast.nn._lifted import ConvNormAct2d, Lift, Lifted

__all__ = ["Conventional", "Lifting", "Local", "Vocabulary", "vocabulary"]


class Vocabulary(Protocol):
    """What a network is made of. `Any` stands for the maps that pass between the parts: plain or lifted."""

    def width(self, features: int) -> int:
        """The number of features nearest to `features` that divides into the groups."""
        ...

    def enter(self) -> nn.Module:
        """From the input image to the first map."""
        ...

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        """Same-padded convolution and batch norm, called with a map and an optional shortcut to add; then ReLU."""
        ...

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """The shortcut without weights: every `stride`-th pixel, and zeros for the features that `inputs` lacks."""
        ...

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        """Max pooling over pixels."""
        ...

    def classify(self, features: int, classes: int) -> nn.Module:
        """Average over pixels, a linear layer, and one score a class."""
        ...


class Conventional:
    """Plain `torch.nn`: zero padding, nothing equivariant."""

    def width(self, features: int) -> int:
        return features

    def enter(self) -> nn.Module:
        return nn.Identity()

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)
        return _Unit(conv, nn.BatchNorm2d(outputs), nn.ReLU() if relu else nn.Identity())

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        return _Subsample(inputs, outputs, stride)

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        return nn.MaxPool2d(kernel, stride, padding)

    def classify(self, features: int, classes: int) -> nn.Module:
        return _Scores(nn.Linear(features, classes))


class Lifting:
    """Equivariant, groups pooled over the image: maps are lifted, and padding is with the offset.

    Args:
        offset_groups: the number of groups.
        constrained: whether weights meet the paper's constraint, without which lifted maps follow offsets as well.
    """

    def __init__(self, offset_groups: int, constrained: bool = True) -> None:
        self.offset_groups, self.constrained = offset_groups, constrained

    def width(self, features: int) -> int:
        return _nearest_multiple(features, self.offset_groups)

    def enter(self) -> nn.Module:
        return Lift(self.offset_groups, keep_offset=False)

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        return ConvNormAct2d(
            inputs,
            outputs,
            kernel,
            stride,
            kernel // 2,
            bias,
            slope=0.0 if relu else 1.0,
            offset_groups=self.offset_groups,
            constrained=self.constrained,
        )

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        return _OnLifted(_CentredSubsample(inputs, outputs, stride, self.offset_groups, "image"), inputs)

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        return _OnLifted(nn.MaxPool2d(kernel, stride, padding))

    def classify(self, features: int, classes: int) -> nn.Module:
        scores = classes * self.offset_groups
        linear = (
            lfnn.Linear(features, scores, offset_groups=self.offset_groups)
            if self.constrained
            else nn.Linear(features, scores)
        )
        return _FromLifted(_Scores(linear, self.offset_groups), features)


class Local:
    """Equivariant, groups pooled at each pixel: the ordinary layers, which follow light that varies over the image."""

    def __init__(self, offset_groups: int) -> None:
        self.offset_groups = offset_groups

    def width(self, features: int) -> int:
        return _nearest_multiple(features, self.offset_groups)

    def enter(self) -> nn.Module:
        return _Centre(self.offset_groups)

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        conv = lfnn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias, offset_groups=self.offset_groups)
        norm = lfnn.BatchNorm2d(outputs, offset_groups=self.offset_groups, scope="pixel")
        act = lfnn.ReLU(offset_groups=self.offset_groups, scope="pixel") if relu else nn.Identity()
        return _Unit(conv, norm, act, self.offset_groups)

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        return _CentredSubsample(inputs, outputs, stride, self.offset_groups, "pixel")

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        return nn.MaxPool2d(kernel, stride, padding)

    def classify(self, features: int, classes: int) -> nn.Module:
        linear = lfnn.Linear(features, classes * self.offset_groups, offset_groups=self.offset_groups)
        return _Scores(linear, self.offset_groups)


def vocabulary(offset_groups: int | None, scope: Scope = "image", constrained: bool = True) -> Vocabulary:
    """The vocabulary for so many groups; None is the conventional one, to which nothing else matters.

    >>> vocabulary(3).width(16)
    15
    """
    if offset_groups is None:
        return Conventional()
    if scope == "image":
        return Lifting(offset_groups, constrained)
    if not constrained:
        raise ValueError("weights can be free where groups are pooled over the image, not where at each pixel")
    return Local(offset_groups)


def _nearest_multiple(features: int, groups: int) -> int:
    return max(1, round(features / groups)) * groups


class _Unit(nn.Module):
    """Convolution, norm, an optional shortcut (centred where the sum would add two offsets), activation."""

    in_order = ("conv", "norm")

    def __init__(self, conv: nn.Module, norm: nn.Module, act: nn.Module, offset_groups: int | None = None) -> None:
        super().__init__()
        self.conv, self.norm, self.act, self.offset_groups = conv, norm, act, offset_groups

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        y = self.norm(self.conv(x))
        if shortcut is not None:
            y = y + (shortcut if self.offset_groups is None else center(shortcut, self.offset_groups, scope="pixel"))
        return self.act(y)


class _Centre(nn.Module):
    """`x - G φ(x)` over the whole image, so that low precision keeps its digits; the scores do not see it."""

    def __init__(self, offset_groups: int) -> None:
        super().__init__()
        self.offset_groups = offset_groups

    def forward(self, x: Tensor) -> Tensor:
        return center(x, self.offset_groups)


class _Subsample(nn.Module):
    """Every `stride`-th pixel, and zeros after the features there are."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.missing, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))


class _CentredSubsample(nn.Module):
    """Every `stride`-th pixel of `x - G φ(x)`, with `φ` of the full map, and zeros for missing features in each group.

    Zeros at the end would be as exact, since the map is centred; within each group they keep the features of a colour
    with those of the same colour.
    """

    scope: Scope

    def __init__(self, inputs: int, outputs: int, stride: int, offset_groups: int, scope: Scope) -> None:
        super().__init__()
        self.missing, self.stride = (outputs - inputs) // offset_groups, stride
        self.offset_groups, self.scope = offset_groups, scope

    def forward(self, x: Tensor) -> Tensor:
        kept = x[:, :, :: self.stride, :: self.stride]
        level = group_pool(x if self.scope == "image" else kept, self.offset_groups, scope=self.scope)
        kept = add_offset(kept, -level, self.offset_groups)
        runs = kept.unflatten(1, (self.offset_groups, -1))
        return F.pad(runs, (0, 0, 0, 0, 0, self.missing)).flatten(1, 2)


class _OnLifted(nn.Module):
    """A layer that leaves offsets alone, on the invariant part of a lifted map; on its `features`, if they matter."""

    def __init__(self, layer: nn.Module, features: int | None = None) -> None:
        super().__init__()
        self.layer, self.features = layer, features

    def forward(self, x: Lifted) -> Lifted:
        if self.features is None:
            return x._replace(map=self.layer(x.map))
        return Lifted(self.layer(x.map[:, : self.features]), x.offset)


class _FromLifted(nn.Module):
    """A layer whose output is invariant, so that the offset can be left behind."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.layer, self.features = layer, features

    def forward(self, x: Lifted) -> Tensor:
        return self.layer(x.map[:, : self.features])


class _Scores(nn.Module):
    """Average over pixels and a linear layer; with groups, scores averaged over them, less their mean over classes.

    k x g scores, averaged over the groups, all move by the mean of the offset. Without their mean over the classes they
    do not move at all, and the probabilities are the same.
    """

    def __init__(self, linear: nn.Module, offset_groups: int | None = None) -> None:
        super().__init__()
        self.linear, self.offset_groups = linear, offset_groups

    def forward(self, x: Tensor) -> Tensor:
        scores = self._score(x.mean((2, 3), dtype=statistics_dtype(x)), x.dtype)
        if self.offset_groups is None:
            return scores
        scores = scores.unflatten(1, (self.offset_groups, -1)).mean(1)
        return scores - scores.mean(1, keepdim=True)

    def _score(self, means: Tensor, dtype: torch.dtype) -> Tensor:
        """The linear layer; under autocast in float32, since these few numbers would lose what the maps have kept."""
        if not torch.is_autocast_enabled(means.device.type):
            return self.linear(means.to(dtype))
        with torch.autocast(means.device.type, enabled=False):
            return self.linear(means)
