"""The equivariant vocabulary with groups pooled at each pixel."""

from __future__ import annotations

from torch import Tensor, nn

from lightfast import nn as lfnn
from lightfast.functional import center
from lightfast.models._vocabulary.parts import CenteredSubsample, Scores, Unit, nearest_multiple


class PixelVocabulary:
    """Equivariant, groups pooled at each pixel: the ordinary layers, which follow light that varies over the image."""

    def __init__(self, offset_groups: int) -> None:
        self.offset_groups = offset_groups

    def width(self, features: int) -> int:
        return nearest_multiple(features, self.offset_groups)

    def enter(self, keep_offset: bool = False) -> nn.Module:
        return nn.Identity() if keep_offset else _Center(self.offset_groups)

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        conv = lfnn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias, offset_groups=self.offset_groups)
        norm = lfnn.BatchNorm2d(outputs, offset_groups=self.offset_groups, scope="pixel")
        act = lfnn.ReLU(offset_groups=self.offset_groups, scope="pixel") if relu else nn.Identity()
        return Unit(conv, norm, act, self.offset_groups)

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        return CenteredSubsample(inputs, outputs, stride, self.offset_groups, "pixel")

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        return nn.MaxPool2d(kernel, stride, padding)

    def classify(self, features: int, classes: int, per_pixel: bool = False) -> nn.Module:
        linear = lfnn.Linear(features, classes * self.offset_groups, offset_groups=self.offset_groups)
        return Scores(linear, self.offset_groups, per_pixel)


class _Center(nn.Module):
    """`x - G φ(x)` over the whole image, so that low precision keeps its digits; the scores do not see it."""

    def __init__(self, offset_groups: int) -> None:
        super().__init__()
        self.offset_groups = offset_groups

    def forward(self, x: Tensor) -> Tensor:
        return center(x, self.offset_groups)
