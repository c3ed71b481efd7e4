"""Trained networks for use alone: constraints folded into ordinary weights, batch norm into convolutions."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lightfast.functional import add_offset, group_pool
from lightfast.groups import GroupSpec
from lightfast.nn._constrained import Constrained
from lightfast.nn._conv import Conv1d, Conv2d, Conv3d
from lightfast.nn._lifted import ConvNormAct2d, Lifted
from lightfast.nn._linear import Linear
from lightfast.nn._norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from lightfast.nn._norm_act import group_mean, over, spread
from lightfast.nn._transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, reach

__all__ = ["fuse"]

_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    Conv1d: nn.Conv1d,
    Conv2d: nn.Conv2d,
    Conv3d: nn.Conv3d,
    ConvTranspose1d: nn.ConvTranspose1d,
    ConvTranspose2d: nn.ConvTranspose2d,
    ConvTranspose3d: nn.ConvTranspose3d,
}
_REPLICATION = {1: nn.ReplicationPad1d, 2: nn.ReplicationPad2d, 3: nn.ReplicationPad3d}


@torch.no_grad()
def fuse(model: nn.Module) -> nn.Module:
    """The same function in evaluation mode, in plain torch layers: for inference, export, or another framework.

    - A constrained linear layer or convolution becomes torch's own, with the projected weight.
    - Batch norm after a convolution goes into its weight as far as the algebra allows: `γ/σ` is folded in, and what is
      left is a number for each feature of each image, which follows from the convolution's means over the image:
      `BN(v) = a v + (1 - a) G φ(v) + k`.
    - Layers without a constraint stay: they are a few torch operations each.

    Args:
        model: left as it is.

    Returns:
        A copy, in evaluation mode. It can be exported but not trained on: nothing keeps its weights constrained.

    >>> from lightfast import nn as lfnn
    >>> fuse(nn.Sequential(lfnn.Conv2d(3, 6, 3), lfnn.ReLU()))
    Sequential(
      (0): Conv2d(3, 6, kernel_size=(3, 3), stride=(1, 1))
      (1): ReLU(offset_groups=3)
    )
    """
    return _fused(deepcopy(model).eval())


def _fused(module: nn.Module) -> nn.Module:
    if isinstance(module, ConvNormAct2d):
        return _FusedUnit(module)
    if isinstance(module, Linear):
        return _plain_linear(module)
    if type(module) in _PLAIN:
        return _plain_convolution(module)
    if isinstance(module, nn.Sequential):
        _fold_norms(module)
    for name, child in list(module.named_children()):
        setattr(module, name, _fused(child))
    return module


def _fold_norms(sequence: nn.Sequential) -> None:
    """Join each convolution of a sequence with the batch norm after it."""
    for first, second in pairwise(list(sequence._modules)):
        conv, norm = sequence._modules[first], sequence._modules[second]
        if isinstance(conv, Conv1d | Conv2d | Conv3d) and isinstance(norm, _NORMS) and _can_fold(norm):
            sequence._modules[first], sequence._modules[second] = _NormedConvolution(conv, norm), nn.Identity()


def _can_fold(norm: nn.Module) -> bool:
    even = isinstance(norm.offset_groups, int) or norm.offset_groups.is_even  # pyright: ignore
    return norm.pool == "mean" and norm.scope == "image" and norm.running_mean is not None and even  # pyright: ignore


def _plain_linear(layer: Linear) -> nn.Linear:
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    return _with_weight(plain, layer, layer.projected_weight())


def _plain_convolution(layer: Any) -> nn.Module:
    """Torch's convolution; what it cannot do at the border by itself, a module around it does."""
    if type(layer) is nn.Conv2d:
        return deepcopy(layer)
    transposed = type(layer) in (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
    arguments = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
    if transposed:
        arguments["output_padding"] = layer.output_padding
    elif layer._pads() and layer.padding_mode != "mean":
        arguments["padding_mode"] = layer.padding_mode
    beyond = reach(layer, layer.output_padding) if transposed else []
    repeats = transposed and layer.padding_mode == "replicate" and any(beyond)
    if repeats:
        cut = zip(layer.padding, beyond, layer.stride, strict=True)
        arguments["padding"] = tuple(padding + r * stride for padding, r, stride in cut)
    plain = _PLAIN[type(layer)](layer.in_channels, layer.out_channels, bias=layer.bias is not None, **arguments)
    plain = _with_weight(plain, layer, layer.projected_weight())
    if repeats:
        amounts = [amount for r in reversed(beyond) for amount in (r, r)]
        return nn.Sequential(_REPLICATION[len(beyond)](amounts), plain).eval()
    padded = any(beyond) if transposed else layer._pads()
    if layer.padding_mode == "mean" and padded:
        return _Centred(plain, layer.in_groups, layer.out_groups).eval()
    return plain


def _with_weight(plain: Any, layer: Constrained, weight: Tensor) -> Any:
    plain = plain.to(weight.device, weight.dtype).eval()
    plain.weight.copy_(weight)
    if plain.bias is not None:
        plain.bias.copy_(layer.bias)
    return plain


class _Centred(nn.Module):
    """`f(x - G φ(x)) + G φ(x)` around a layer that pads with zeros."""

    def __init__(self, layer: nn.Module, in_groups: GroupSpec, out_groups: GroupSpec) -> None:
        super().__init__()
        self.layer, self.in_groups, self.out_groups = layer, in_groups, out_groups

    def forward(self, x: Tensor) -> Tensor:
        offset = group_pool(x, self.in_groups)
        return add_offset(self.layer(add_offset(x, -offset, self.in_groups)), offset, self.out_groups)


class _Folded(nn.Module):
    """A convolution `v` with `a = γ/σ` in its weight, so that it gives `a v`; and what the rest needs.

    `φ(v)` is read off the means of `a v`. Features with `a = 0` would hide theirs, and a convolution around which the
    mean is added back cannot take the scale in: it is then left outside.
    """

    scale: Tensor
    undo: Tensor
    shift: Tensor

    def __init__(self, layer: Any, norm: Any) -> None:
        super().__init__()
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        self.groups = norm.offset_groups if isinstance(norm.offset_groups, int) else norm.offset_groups.count
        self.conv = _plain_convolution(layer)
        self.folds = bool((scale != 0).all()) and not isinstance(self.conv, _Centred)
        self.register_buffer("scale", scale)
        self.register_buffer("undo", 1 / scale if self.folds else torch.ones_like(scale))
        self.register_buffer("shift", norm.bias - scale * norm.running_mean)
        if self.folds:
            plain: Any = self.conv
            plain.weight.mul_(scale.reshape(-1, *[1] * (plain.weight.dim() - 1)))
            if plain.bias is not None:
                plain.bias.mul_(scale)

    def scaled(self, v: Tensor) -> Tensor:
        return v if self.folds else v * over(self.scale, v)


class _NormedConvolution(_Folded):
    """`a v + (1 - a) G φ(v) + k`: a convolution and the equivariant batch norm after it."""

    def forward(self, x: Tensor) -> Tensor:
        v = self.conv(x)
        level = group_mean(v.flatten(2).mean(2) * self.undo, self.groups)
        return self.scaled(v) + over((1 - self.scale) * spread(level, len(self.scale)) + self.shift, v)


class _FusedUnit(_Folded):
    """:class:`ConvNormAct2d` in evaluation mode: `act(a v + s + (ā - a) G φ(v) - G p + k - G φ(s))`.

    `v` is the convolution, `ā` the mean of `a` over a group, `p = φ(a v)`, and `k` the centred shift.
    """

    def __init__(self, unit: ConvNormAct2d) -> None:
        super().__init__(_zero_padded(unit.conv), unit.norm)
        self.slope = unit.slope

    def forward(self, x: Lifted, shortcut: Lifted | None = None) -> Lifted:
        features = len(self.scale)
        v = self.conv(x.map)
        u = self.scaled(v)
        level = group_mean(v.mean((2, 3)) * self.undo, self.groups)
        mean_scale = group_mean(self.scale[None], self.groups)
        after = group_mean(u.mean((2, 3)), self.groups) - mean_scale * level + group_mean(self.shift[None], self.groups)
        floor = after if shortcut is None else after + group_mean(shortcut.map.mean((2, 3)), self.groups)
        q = u + over(self.shift - self.scale * spread(level, features) - spread(floor, features), u)
        q = q if shortcut is None else q + shortcut.map
        z = torch.relu(q) if self.slope == 0 else q if self.slope == 1 else torch.where(q > 0, q, self.slope * q)
        return Lifted(z, None if x.offset is None else x.offset + level + after)


def _zero_padded(conv: Conv2d) -> Conv2d:
    """The convolution of a lifted map, which may be padded with zeros."""
    conv = deepcopy(conv)
    conv.padding_mode = "zeros"
    return conv
