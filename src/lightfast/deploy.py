"""Trained networks for use alone: constraints folded into ordinary weights, batch norm into convolutions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import deepcopy
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import fuse_conv_bn_eval

from lightfast.functional import add_offset, group_pool, statistics_dtype
from lightfast.functional import spread as spread_groups
from lightfast.groups import GroupSpec, resolve
from lightfast.nn import _native
from lightfast.nn._constrained import Kept, applied_weight, may_be_kept
from lightfast.nn._conv import Conv1d, Conv2d, Conv3d
from lightfast.nn._lifted import ConvNormAct2d, Lifted, convolve_padded, fit_channels, map_of, moved, without_idle
from lightfast.nn._lifted_transposed import (
    ConvTransposeNormAct2d,
    SqueezeNormAct,
    as_row,
    from_pixel,
    from_row,
    squeeze_padded,
    transpose_padded,
)
from lightfast.nn._linear import Linear
from lightfast.nn._norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from lightfast.nn._norm_act import over
from lightfast.nn._norm_act_triton import Folded, can_infer, infer, suits
from lightfast.nn._transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, reach

__all__ = ["fuse"]

_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
_UNITS = (ConvNormAct2d, ConvTransposeNormAct2d, SqueezeNormAct)
_TORCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
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
    - Batch norm after a convolution goes into its weight as far as the algebra allows. It is, with `a = γ/σ`,
      `BN(v) = a v + (1 - a) G φ(v) + k`. Where groups are pooled at each pixel that is a matrix, and all of it goes in.
      Where they are pooled over the image `a` does, and what is left is a number for each feature of each image, which
      follows from the convolution's means over the image. Torch's own norms go into torch's own convolutions, too.
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


def _fused(module: Any, lifted: bool = False) -> nn.Module:
    """The module in plain layers.

    A module says by `on_lifted_maps` that the convolutions in it act on lifted maps, which zeros may pad; `lifted` is
    then true for them.
    """
    if isinstance(module, _UNITS):
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
    means = spread_groups(group_pool(unit, conv.out_groups), conv.out_groups, len(scale)).to(scale.dtype)
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
    beyond = reach(layer, layer.output_padding) if layer.transposed else []
    repeats = border == "replicate" and any(beyond)
    if repeats:
        cut = zip(layer.padding, beyond, layer.stride, strict=True)
        arguments["padding"] = tuple(padding + r * stride for padding, r, stride in cut)
    plain = _torch_kind(layer)(layer.in_channels, layer.out_channels, bias=layer.bias is not None, **arguments)
    plain = _with_weight(plain, layer, applied_weight(layer) if weight is None else weight)
    if repeats:
        amounts = [amount for r in reversed(beyond) for amount in (r, r)]
        return nn.Sequential(_REPLICATION[len(beyond)](amounts), plain).eval()
    padded = any(beyond) if layer.transposed else any(layer._reversed_padding_repeated_twice)
    if border == "mean" and padded:
        return _Centred(plain, layer.in_groups, layer.out_groups).eval()
    return plain


def _torch_kind(layer: nn.Module) -> type[nn.Module]:
    return next(plain for plain in _PLAIN.values() if isinstance(layer, plain))


def _with_weight(plain: Any, layer: Any, weight: Tensor) -> Any:
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

    What is left is a number for each feature of each image, which follows from the means of `a v` over the image by two
    small matrices, `inward` to the groups and `outward` from there. `φ(v)` is read off the means of `a v`. Features
    with `a = 0` would hide theirs, and a convolution around which the mean is added back cannot take `a` in: it is then
    left outside, as `factor`.
    """

    factor: Tensor
    inward: Tensor
    outward: Tensor
    base: Tensor

    def __init__(self, layer: Any, norm: Any, lifted: bool = False) -> None:
        super().__init__()
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        self.conv = _plain_convolution(layer, zeros=lifted)
        self.folds = bool((scale != 0).all()) and not isinstance(self.conv, _Centred)
        self.register_buffer("factor", torch.ones_like(scale) if self.folds else scale)
        if self.folds:
            plain: Any = self.conv
            outputs = 1 if plain.transposed else 0
            plain.weight.mul_(scale.reshape([-1 if axis == outputs else 1 for axis in range(plain.weight.dim())]))
            if plain.bias is not None:
                plain.bias.mul_(scale)
        groups = resolve(norm.offset_groups, len(scale))
        belongs = groups.matrix(scale.device, scale.dtype)
        means = belongs / belongs.sum(0)
        level = means / scale[:, None] if self.folds else means
        self._split(scale, norm.bias - scale * norm.running_mean, belongs, means, level)

    def _split(self, scale: Tensor, shift: Tensor, belongs: Tensor, means: Tensor, level: Tensor) -> None:
        """Make the matrices: from `a` and `k` (C,), `G`, the group means of features, and those of `v` from `a v`."""
        self.register_buffer("inward", level)
        self.register_buffer("outward", belongs.T * (1 - scale))
        self.register_buffer("base", shift)

    def _scaled(self, v: Tensor) -> Tensor:
        return v if self.folds else v * over(self.factor, v)


class _NormedConvolution(_Folded):
    """`a v + (1 - a) G φ(v) + k`: a convolution and the equivariant batch norm after it."""

    def forward(self, x: Tensor) -> Tensor:
        v = self.conv(x)
        added = _product(_product(_means(v), self.inward), self.outward, self.base)
        return (self._scaled(v) + over(added, v)).to(v.dtype)


class _FusedUnit(_Folded):
    """:class:`ConvNormAct2d` and its like in evaluation mode: `act(a v + s + (ā - a) G φ(v) - G p + k - G φ(s))`.

    `v` is the convolution, `ā` the mean of `a` over a group, `p = φ(a v)`, and `k` the centred shift. Inward go `φ(v)`
    and `p - ā φ(v)`, to which the shortcut adds its `φ(s)`.

    These are a few torch operations, which can be exported. Run as they are, the passes in C and in Triton do the same;
    on a GPU with idle channels, as :class:`ConvNormAct2d` has them.
    """

    shortcut_inward: Tensor
    mean_shift: Tensor
    parts: Tensor
    none: Tensor

    def __init__(self, unit: Any) -> None:
        super().__init__(unit.conv, unit.norm, lifted=True)
        self.slope, self.groups = unit.slope, unit.offset_groups
        self._copies: dict[tuple[torch.device, torch.dtype, Hashable], Kept] = {}

    def _split(self, scale: Tensor, shift: Tensor, belongs: Tensor, means: Tensor, level: Tensor) -> None:
        self.register_buffer("inward", torch.cat([level, means * self.factor[:, None] - level * (scale @ means)], 1))
        self.register_buffer("shortcut_inward", torch.cat([torch.zeros_like(means), means], 1))
        self.register_buffer("outward", -torch.cat([belongs.T * scale, belongs.T]))
        self.register_buffer("mean_shift", shift @ means)
        self.register_buffer("base", shift - belongs @ (shift @ means))
        # For the passes in C and in Triton, which know no matrices.
        self.register_buffer("parts", torch.stack([1 / scale if self.folds else torch.ones_like(scale), scale, shift]))
        self.register_buffer("none", torch.zeros_like(self.mean_shift))

    def forward(self, x: Lifted, shortcut: Lifted | None = None) -> Lifted:
        conv: Any = self.conv
        z, added = map_of(x, conv.in_channels), None if shortcut is None else map_of(shortcut, conv.out_channels)
        inferred = self._infer(z, added)
        if inferred is None:
            v = _convolved(conv, self._rounded_weight(z), without_idle(z, conv.in_channels))
            added = None if added is None else without_idle(added, conv.out_channels)
            inferred = self._infer_natively(v, added) or self._infer_plainly(v, added)
        z, offset = inferred
        return moved(x, offset, z, conv.out_channels)

    def _infer(self, z: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """By the kernels, from the map before the convolution; None where they do not suit."""
        conv: Any = self.conv
        if not suits(z, conv.out_channels, self.groups) or not can_infer(conv.out_channels, self.groups):
            return None
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (z, added, *conv.parameters())):
            return None
        if conv.transposed:
            convolve = from_pixel if _is_linear(conv, z) else transpose_padded
        else:
            convolve = squeeze_padded if _is_linear(conv, z) else convolve_padded
        u = convolve(z, conv, self.groups, self._kept)
        added = None if added is None else fit_channels(added.to(u.dtype), u.shape[1])
        undo, scale, shift = self.parts
        return infer(u, added, conv.bias, Folded(scale, shift, undo, self.factor), self.groups, self.slope)

    def _infer_natively(self, v: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """By the pass in C; None where it does not suit."""
        if torch.is_grad_enabled() or not _native.suits(v, added) or self.parts.dtype != torch.float32:
            return None
        undo, scale, shift = self.parts
        how = _native.Constants(undo, self.factor, scale, shift, self.none, self.mean_shift)
        return _native.infer(v, added, how, self.slope, self.groups)

    def _infer_plainly(self, v: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        found = _product(_means(v), self.inward)
        level, after = found.chunk(2, 1)
        if added is not None:
            found = found + _product(_means(added), self.shortcut_inward)
        q = self._scaled(v) + over(_product(found, self.outward, self.base), v)
        q = q if added is None else q + added
        z = torch.relu(q) if self.slope == 0 else q if self.slope == 1 else torch.where(q > 0, q, self.slope * q)
        return z if z.dtype == v.dtype else z.to(v.dtype), level + after + self.mean_shift

    def _rounded_weight(self, z: Tensor) -> Tensor:
        """The convolution's weight; on the CPU in the precision of autocast, which would round it each time."""
        weight: Any = self.conv.weight
        if (
            z.is_cuda
            or torch.compiler.is_compiling()
            or torch.is_grad_enabled()
            or not torch.is_autocast_enabled("cpu")
        ):
            return weight
        dtype = torch.get_autocast_dtype("cpu")
        return self._kept(dtype, lambda raw: raw.to(dtype)) if weight.dtype == torch.float32 else weight

    def _kept(self, kind: Hashable, make: Callable[[Tensor], Tensor]) -> Tensor:
        """`make(weight)`, kept until the weight changes, and then made anew in the same place: CUDA graphs read it."""
        weight: Any = self.conv.weight
        name = weight.device, weight.dtype, kind
        before = self._copies.get(name)
        if before is not None and not weight.is_inference() and before.holds_for(weight):
            return before.projections[name]
        if not may_be_kept(weight):
            return make(weight)
        with torch.inference_mode(False), torch.no_grad():
            copy = make(weight)
            if copy.data_ptr() == weight.data_ptr():
                return copy
            copy = copy if before is None else before.projections[name].copy_(copy)
            self._copies[name] = Kept(weight, weight._version, weight.detach(), {name: copy})
        return copy

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        weight: Any = self.conv.weight
        here = weight.device, weight.dtype
        self._copies = {kind: kept for kind, kept in self._copies.items() if kind[:2] == here}
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: everything but what can be made again."""
        return {**self.__dict__, "_copies": {}}


def _is_linear(conv: Any, z: Tensor) -> bool:
    """Whether a convolution is one to or from a single pixel, and so a linear layer."""
    side = conv.kernel_size
    if side[0] == 1 or any(conv.padding) or conv.groups > 1:
        return False
    if conv.transposed:
        return z.shape[2] == z.shape[3] == 1 and conv.stride == side and not any(conv.output_padding)
    return tuple(z.shape[2:]) == side


def _convolved(conv: Any, weight: Tensor, z: Tensor) -> Tensor:
    """The convolution with this weight; one to or from a single pixel as the linear layer that it is: it is faster."""
    if not _is_linear(conv, z):
        if not conv.transposed:
            return conv._conv_forward(z, weight, conv.bias)
        geometry = (conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation)
        return F.conv_transpose2d(z, weight, conv.bias, *geometry)
    if not conv.transposed:
        return F.linear(as_row(z, weight), as_row(weight, weight), conv.bias)[..., None, None]
    v = from_row(z.flatten(1) @ as_row(weight, weight), weight)
    return v if conv.bias is None else v + over(conv.bias, v).to(v.dtype)


def _means(v: Tensor) -> Tensor:
    """Over the positions of each feature of each image, (N, C), in at least float32."""
    return v.mean(tuple(range(2, v.dim())), dtype=statistics_dtype(v))


def _product(x: Tensor, matrix: Tensor, base: Tensor | None = None) -> Tensor:
    """`x matrix + base`, in the precision of `x` whatever autocast says: these are few numbers, and decide on all."""
    if matrix.dtype != x.dtype:
        matrix, base = matrix.to(x.dtype), None if base is None else base.to(x.dtype)
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return x @ matrix if base is None else torch.addmm(base, x, matrix)
    return x @ matrix if base is None else torch.addmm(base, x, matrix)
