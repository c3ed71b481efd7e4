"""The equivariant vocabulary with groups pooled over the image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lightfast import _backends as backends
from lightfast import nn as lfnn
from lightfast.fields import FieldSpec, field_map
from lightfast.functional import statistics_dtype
from lightfast.models._vocabulary.parts import CenteredSubsample, Scores, dropout, nearest_multiple
from lightfast.nn import ConvNormAct2d, ConvTransposeNormAct2d, Lift, LiftedMap, SqueezeNormAct


class LiftedVocabulary:
    """Equivariant, groups pooled over the image: maps are lifted, and padding is with the offset.

    Args:
        offset_groups: the number of groups.
        constrained: whether weights meet the paper's constraint, without which lifted maps follow offsets as well.
        field: offsets that are followed; see :class:`lightfast.nn.Lift`.
    """

    def __init__(self, offset_groups: int, constrained: bool = True, field: FieldSpec = 0) -> None:
        self.offset_groups, self.constrained, self.field = offset_groups, constrained, field
        self._options: dict[str, Any] = {"offset_groups": offset_groups, "constrained": constrained}

    def width(self, features: int) -> int:
        return nearest_multiple(features, self.offset_groups)

    def enter(self, keep_offset: bool = False) -> nn.Module:
        return Lift(self.offset_groups, keep_offset, self.field)

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        slope = 0.0 if relu else 1.0
        return ConvNormAct2d(inputs, outputs, kernel, stride, kernel // 2, bias, slope, **self._options)

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        return _OnLifted(CenteredSubsample(inputs, outputs, stride, self.offset_groups, "image"), inputs)

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        return _OnLifted(nn.MaxPool2d(kernel, stride, padding))

    def classify(self, features: int, classes: int, per_pixel: bool = False) -> nn.Module:
        linear = self.linear(features, classes * self.offset_groups)
        return _FromLifted(Scores(linear, self.offset_groups, per_pixel), features)

    def chain(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, slope: float = 0.0, norm: bool = True
    ) -> nn.Module:
        geometry = (inputs, outputs, kernel, stride, (kernel - 1) // 2)
        if norm:
            return ConvNormAct2d(*geometry, slope=slope, **self._options)
        return _ConvAct(self._layer("Conv2d", *geometry), slope, self.offset_groups)

    def squeeze(self, inputs: int, outputs: int, side: int, slope: float = 0.0) -> nn.Module:
        return SqueezeNormAct(inputs, outputs, side, slope, **self._options)

    def expand(self, inputs: int, outputs: int, side: int) -> nn.Module:
        return ConvTransposeNormAct2d(inputs, outputs, side, side, **self._options)

    def up(self, inputs: int, outputs: int) -> nn.Module:
        return ConvTransposeNormAct2d(inputs, outputs, 4, 2, 1, **self._options)

    def last_up(self, inputs: int, outputs: int) -> nn.Module:
        return _LastUp(self._layer("ConvTranspose2d", inputs, outputs, 4, 2, 1), self.offset_groups)

    def dropout(self, rate: float, whole: bool = False) -> nn.Module:
        return _OnLifted(dropout(rate, whole)) if rate else nn.Identity()

    def conv(self, inputs: int, outputs: int, kernel: int) -> Any:
        return self._layer("Conv2d", inputs, outputs, kernel, 1, kernel // 2)

    def _layer(self, kind: str, *geometry: int) -> Any:
        if self.constrained:
            return getattr(lfnn, kind)(*geometry, padding_mode="mean", offset_groups=self.offset_groups)
        return getattr(nn, kind)(*geometry)

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        if self.constrained:
            return lfnn.Linear(inputs, outputs, offset_groups=self.offset_groups)
        return nn.Linear(inputs, outputs)

    def join_average(self, images: Tensor) -> LiftedMap:
        """In log RGB, above the log of the image's mean color: the map is `x - o`, `o = -log mean exp(-x)`."""
        return LiftedMap.of(*backends.join_average(images), 6)

    def conv_relu(self, conv: Any, x: LiftedMap, halve: bool = False, flat: bool = False) -> LiftedMap:
        """`max(x, G φ(x))` of the convolved map, which is `relu(z - G φ(z))` above the offset `o + φ(z)`."""
        return _conv_act(conv, x, self.offset_groups, halve=halve, flat=flat)

    def linear_relu(self, linear: Any, x: LiftedMap) -> LiftedMap:
        u, bias = backends.linear(x.map, linear)
        z, offset = backends.center_act(u, self.offset_groups, bias=bias, offset=x.offset)
        return LiftedMap.of(z, offset if x.offset is not None else None, linear.out_features)

    def convolve(self, conv: Any, x: LiftedMap) -> Tensor:
        u, bias, _ = backends.convolve(x.map, conv, self.offset_groups, with_bias=True)
        return u if bias is None else u[:, : conv.out_channels] + backends.over(bias, u)

    def colors(self, linear: Any, x: LiftedMap) -> Tensor:
        # The outputs are runs of a color; what is wanted are triples of colors.
        rows, _ = backends.linear(x.map, linear, last=True)
        assert x.offset is not None
        return rows.unflatten(1, (self.offset_groups, -1)).transpose(1, 2) + x.offset[:, None]

    def without_offset(self, x: LiftedMap, carry: bool = False) -> LiftedMap:
        assert x.offset is not None
        return LiftedMap(x.map, x.offset.new_zeros(x.offset.shape[:2]) if carry else None, x.features)

    def with_offset(self, answer: Tensor, x: LiftedMap) -> Tensor:
        assert x.offset is not None
        if x.field == 0:
            return answer + backends.over(x.offset, answer)
        fields = field_map(x.offset, x.field, x.map.shape[2:])
        top, left = ((whole - own) // 2 for whole, own in zip(fields.shape[2:], answer.shape[2:], strict=True))
        return answer + fields[:, :, top : top + answer.shape[2], left : left + answer.shape[3]]


def _conv_act(
    conv: Any, x: LiftedMap, groups: int, slope: float = 0.0, halve: bool = False, flat: bool = False
) -> LiftedMap:
    u, bias, _ = backends.convolve(x.map, conv, groups, with_bias=True)
    if halve:
        z, offset = backends.center_relu_halve(u, groups, bias, x.offset)
    else:
        z, offset = backends.center_act(u, groups, slope, bias, x.offset, cut=flat)
    offset = offset if x.offset is not None else None
    return LiftedMap(z.flatten(1), offset) if flat else LiftedMap.of(z, offset, conv.out_channels)


class _ConvAct(nn.Module):
    """Convolution and (leaky) ReLU about the group's mean, without a norm."""

    on_lifted_maps = True

    def __init__(self, conv: nn.Module, slope: float, offset_groups: int) -> None:
        super().__init__()
        self.conv, self.slope, self.offset_groups = conv, slope, offset_groups

    def forward(self, x: LiftedMap) -> LiftedMap:
        return _conv_act(self.conv, x, self.offset_groups, self.slope)


class _LastUp(nn.Module):
    """A transposed convolution with its bias, and the offset if there is one."""

    on_lifted_maps = True

    def __init__(self, conv: nn.Module, offset_groups: int) -> None:
        super().__init__()
        self.conv, self.offset_groups = conv, offset_groups

    def forward(self, x: LiftedMap) -> Tensor:
        u, bias, _ = backends.convolve(x.map, self.conv, self.offset_groups)
        assert bias is not None
        answer = u.to(statistics_dtype(u)) + backends.over(bias, u)
        return answer if x.offset is None else answer + backends.over(x.offset, u)


class _OnLifted(nn.Module):
    """A layer that leaves offsets alone, on the invariant part of a lifted map; on its `features`, if they matter."""

    def __init__(self, layer: nn.Module, features: int | None = None) -> None:
        super().__init__()
        self.layer, self.features = layer, features

    def forward(self, x: LiftedMap) -> LiftedMap:
        if self.features is None:
            return x._replace(map=self.layer(x.map))
        return x._replace(map=self.layer(x.map[:, : self.features]), features=None)


class _FromLifted(nn.Module):
    """A layer whose output is invariant, so that the offset can be left behind."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.layer, self.features = layer, features

    def forward(self, x: LiftedMap) -> Tensor:
        return self.layer(x.map[:, : self.features])
