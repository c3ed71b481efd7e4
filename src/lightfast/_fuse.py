"""Trained networks for use alone: constraints folded into ordinary weights, batch norm into convolutions."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from lightfast._backends import Folded, UnitPlans, conv_norm_act, over
from lightfast._groups import resolve
from lightfast.functional import group_pool, spread, statistics_dtype
from lightfast.nn import (
    Adapter,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvNormAct2d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    LiftedMap,
    Linear,
)

_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
_TORCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    Conv1d: nn.Conv1d,
    Conv2d: nn.Conv2d,
    Conv3d: nn.Conv3d,
    ConvTranspose1d: nn.ConvTranspose1d,
    ConvTranspose2d: nn.ConvTranspose2d,
    ConvTranspose3d: nn.ConvTranspose3d,
}


@torch.no_grad()
def fuse(model: nn.Module) -> nn.Module:
    """The same function in evaluation mode, in plain torch layers: for inference, export, or another framework.

    - A constrained linear layer or convolution becomes torch's own, with the projected weight.
    - Batch norm after a convolution goes into its weight as far as the algebra allows. It is, with `a = γ/σ`,
      `BN(v) = a v + (1 - a) G φ(v) + k`. Where groups are pooled at each pixel that is a matrix, and all of it goes in.
      Where they are pooled over the image `a` does, and what is left is a number for each feature of each image, which
      follows from the convolution's means over the image. Torch's own norms go into torch's own convolutions, too.
    - Layers without a constraint stay: they are a few torch operations each.

    Args:
        model: left as it is.

    Returns:
        A copy, in evaluation mode, whose parameters want no gradient. It can be exported but not trained on: nothing
        keeps its weights constrained.

    >>> from lightfast import nn as lfnn
    >>> fuse(nn.Sequential(lfnn.Conv2d(3, 6, 3), lfnn.ReLU()))
    Sequential(
      (0): Conv2d(3, 6, kernel_size=(3, 3), stride=(1, 1))
      (1): ReLU(offset_groups=3)
    )
    """
    return _fused(deepcopy(model).eval()).requires_grad_(False)


def _fused(module: Any, lifted: bool = False) -> nn.Module:
    """The module in plain layers.

    A module says by `on_lifted_maps` that the convolutions in it act on lifted maps, which zeros may pad; `lifted` is
    then true for them.
    """
    if isinstance(module, ConvNormAct2d):
        return _FusedUnit(module)
    if isinstance(module, Linear):
        return _plain_linear(module)
    if type(module) in _PLAIN:
        return _plain_convolution(module, zeros=lifted)
    _fold_norms(module)
    lifted = lifted or getattr(module, "on_lifted_maps", False)
    for name, child in list(module.named_children()):
        setattr(module, name, _fused(child, lifted))
    return module


def _fold_norms(module: nn.Module) -> None:
    """Join each convolution with the batch norm after it, in a sequence or where a module says what follows what."""
    names = list(module._modules) if isinstance(module, nn.Sequential) else getattr(module, "in_order", ())
    for first, second in pairwise(names):
        joined = _joined(module._modules[first], module._modules[second])
        if joined is not None:
            module._modules[first], module._modules[second] = joined, nn.Identity()


def _joined(conv: Any, norm: Any) -> nn.Module | None:
    """Convolution and norm in one, or None where they are something else."""
    if type(conv) in _PLAIN.values() and type(norm) in _TORCH_NORMS and norm.running_mean is not None:
        return fuse_conv_bn_eval(conv, norm, transpose=conv.transposed)
    known = type(conv) in (Conv1d, Conv2d, Conv3d) and type(norm) in _NORMS and norm.pool == "mean"
    if not known or norm.running_mean is None or norm.weight is None:
        return None
    groups = resolve(norm.offset_groups, conv.out_channels)
    if norm.scope == "pixel":
        return _with_norm_inside(conv, norm) if groups == conv.out_groups else None
    return _NormedConvolution(conv, norm) if groups.is_even else None


def _with_norm_inside(conv: Any, norm: Any) -> nn.Module:
    """The convolution after which `A v + k` is taken, `A = a (I - G P) + G P` for groups pooled at each pixel by `P`.

    `A G = G`, so padding with the mean needs nothing more.
    """
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    unit = torch.eye(len(scale), device=scale.device, dtype=scale.dtype)
    means = spread(group_pool(unit, conv.out_groups), conv.out_groups, len(scale)).to(scale.dtype)
    # Rows of `unit` are features, pooled along axis 1: this is the transpose of `G P`.
    matrix = scale[:, None] * (unit - means.T) + means.T
    layer = deepcopy(conv)
    layer.bias = nn.Parameter(torch.zeros_like(scale) if conv.bias is None else matrix @ conv.bias)
    layer.bias += norm.bias - scale * norm.running_mean
    return _plain_convolution(layer, torch.einsum("oc,c...->o...", matrix, conv.projected_weight()))


def _plain_linear(layer: Linear) -> nn.Linear:
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    return _with_weight(plain, layer, layer.projected_weight())


def _plain_convolution(layer: Any, weight: Tensor | None = None, zeros: bool = False) -> nn.Module:
    """Torch's convolution with the projected weight, or this one; at the border, a module around it may help.

    With `zeros`, it is the convolution of a lifted map: zeros pad it, and it may have a free weight.
    """
    arguments = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
    border = "zeros" if zeros else layer.padding_mode
    if layer.transposed:
        arguments["output_padding"] = layer.output_padding
    elif border != "mean" and any(layer._reversed_padding_repeated_twice):
        arguments["padding_mode"] = border
    beyond = layer.reach(layer.output_padding) if layer.transposed and border != "zeros" else []
    repeats = border == "replicate" and any(beyond)
    if repeats:
        cut = zip(layer.padding, beyond, layer.stride, strict=True)
        arguments["padding"] = tuple(padding + r * stride for padding, r, stride in cut)
    plain = _torch_kind(layer)(layer.in_channels, layer.out_channels, bias=layer.bias is not None, **arguments)
    applied: Tensor = layer.projected_weight() if hasattr(layer, "projected_weight") else layer.weight
    plain = _with_weight(plain, layer, applied if weight is None else weight)
    if repeats:
        amounts = [amount for r in reversed(beyond) for amount in (r, r)]
        return nn.Sequential(getattr(nn, f"ReplicationPad{len(beyond)}d")(amounts), plain).eval()
    padded = any(beyond) if layer.transposed else any(layer._reversed_padding_repeated_twice)
    if border == "mean" and padded:
        return Adapter(plain, layer.in_groups, out_groups=layer.out_groups).eval()
    return plain


def _torch_kind(layer: nn.Module) -> type[nn.Module]:
    return next(plain for plain in _PLAIN.values() if isinstance(layer, plain))


def _with_weight(plain: Any, layer: Any, weight: Tensor) -> Any:
    plain = plain.to(weight.device, weight.dtype).eval()
    plain.weight.copy_(weight)
    if plain.bias is not None:
        plain.bias.copy_(layer.bias)
    return plain


class _FoldedNorm(nn.Module):
    """A convolution `v` with `a = γ/σ` in its weight, so that it gives `a v`; and what the rest of the norm needs.

    `φ(v)` is read off the means of `a v`. Features with `a = 0` would hide theirs, and a convolution around which the
    mean is added back cannot take `a` in: it is then left outside, as `factor`.
    """

    scale: Tensor
    shift: Tensor
    undo: Tensor
    factor: Tensor

    def __init__(self, layer: Any, norm: Any, lifted: bool = False) -> None:
        super().__init__()
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        self.conv = _plain_convolution(layer, zeros=lifted)
        folds = bool((scale != 0).all()) and not isinstance(self.conv, Adapter)
        if folds:
            plain: Any = self.conv
            outputs = 1 if plain.transposed else 0
            plain.weight.mul_(scale.reshape([-1 if axis == outputs else 1 for axis in range(plain.weight.dim())]))
            if plain.bias is not None:
                plain.bias.mul_(scale)
        ones = torch.ones_like(scale)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", norm.bias - scale * norm.running_mean)
        self.register_buffer("undo", 1 / scale if folds else ones)
        self.register_buffer("factor", ones if folds else scale)
        self.groups = resolve(norm.offset_groups, len(scale)).count


class _NormedConvolution(_FoldedNorm):
    """`a v + (1 - a) G φ(v) + k`: a convolution and the equivariant batch norm after it."""

    def forward(self, x: Tensor) -> Tensor:
        v = self.conv(x)
        mean = v.mean(tuple(range(2, v.dim())), dtype=statistics_dtype(v))
        scale, shift, undo, factor = (x.to(mean.dtype) for x in (self.scale, self.shift, self.undo, self.factor))
        level = spread(group_pool(undo * mean, self.groups), self.groups, len(scale))
        return (over(factor, v) * v + over((1 - scale) * level + shift, v)).to(v.dtype)


class _FusedUnit(_FoldedNorm):
    """:class:`ConvNormAct2d` and its like in evaluation mode: what is left of the norm goes into `conv_norm_act`."""

    def __init__(self, unit: Any) -> None:
        super().__init__(unit.conv, unit.norm, lifted=True)
        self.slope, self.groups = unit.slope, unit.offset_groups
        self._plans = UnitPlans(in_graphs=True)

    def forward(self, x: LiftedMap, shortcut: LiftedMap | None = None) -> LiftedMap:
        conv: Any = self.conv
        z, added = x.map_of(conv.in_channels), None if shortcut is None else shortcut.map_of(conv.out_channels)
        norm = Folded(self.scale, self.shift, self.undo, self.factor)
        z, offset = conv_norm_act(z, added, conv, norm, self.groups, self.slope, self._plans)
        return x.moved(z, offset, conv.out_channels)
