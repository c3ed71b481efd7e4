"""Convolutions of lifted maps: zero-padded, by weights in the form that the device is fastest with.

Of a lifted map `x = z + G o` a convolution sees `z` alone. Outside the map it sees zeros, which is `x = o`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends.choose import backend_of
from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.projection import fit_weight
from lightfast._backends.tensors import (
    fit_channels,
    is_last,
    layout_of,
    observed,
    over,
    wants_gradient,
    without_autocast,
    without_idle,
    working_dtype,
)
from lightfast._backends.weights import WeightCache, is_captured
from lightfast.functional import add_offset, group_pool

_HALF = (torch.bfloat16, torch.float16)


class Convolved(NamedTuple):
    """A map after a convolution, perhaps with idle channels, and what is still to be added to it.

    Args:
        map: `u` (N, channels, *positions).
        bias: (C,), or None if there is none, or it is in the map already.
        level: (N, g), or None: what was taken from the map before the convolution, to be added to its offset.
    """

    map: Tensor
    bias: Tensor | None
    level: Tensor | None = None


def convolve(z: Tensor, conv: Any, groups: int, with_bias: bool = False, cache: WeightCache | None = None) -> Convolved:
    """A convolution, transposed or not, of a lifted map (N, channels, H, W).

    One of a whole map to a single pixel, or from one, is computed as the linear layer that it is.

    Args:
        z: the map, perhaps with idle channels.
        conv: `nn.Conv2d` or `nn.ConvTranspose2d`, or a constrained one, whose weight is projected.
        groups: g.
        with_bias: whether the bias should be in the map, if it costs nothing to add it there.
        cache: keeps the weight in its form, if the layer does not.
    """
    backend, raw, dtype = backend_of(z), conv.weight, working_dtype(z)
    pixel, level = _is_linear(conv, z), None
    centered = pixel and _centers(conv, z)
    if centered:
        z = without_idle(z, conv.in_channels)
        level = group_pool(z, groups)
        z, level = add_offset(z, -level, groups), level.flatten(1)
    if not backend.fills_channels:
        weight = raw if centered else _rounded_weight(conv, cache)
        with without_saving(conv, weight):
            return _convolve(without_idle(z, conv.in_channels), conv, weight, with_bias, level)
    inputs, outputs = (backend.channels(features, dtype) for features in (conv.in_channels, conv.out_channels))
    if pixel:
        layout = layout_of(raw)
    elif conv.transposed:
        layout = torch.channels_last if dtype in _HALF else layout_of(raw)
        # A map of 3 colors is the end: nothing follows that would want more.
        outputs = outputs if conv.out_channels > 3 else conv.out_channels
    else:
        last = dtype != torch.float32 or (not observed(z) and is_last(z))
        layout = torch.channels_last if last else torch.contiguous_format
    channels = (inputs, outputs) if conv.transposed else (outputs, inputs)
    form = Form((*channels, *raw.shape[2:]), dtype, layout)
    weight = fit_weight(raw, None, form) if centered else _formed_weight(conv, form, cache)
    z = fit_channels(z.to(dtype), inputs)
    if not pixel and not (conv.transposed and dtype not in _HALF):
        z = z.contiguous(memory_format=layout)
    return _convolve(z, conv, weight, False, level)


def linear(rows: Tensor, layer: Any, last: bool = False) -> tuple[Tensor, Tensor | None]:
    """A linear layer of the rows of a lifted map (N, features), perhaps with idle ones; and the bias that is left.

    Args:
        rows: invariant rows.
        layer: `nn.Linear`, or a constrained one.
        last: whether nothing follows, so that the result is to have no idle features, and the bias in it.
    """
    backend, dtype = backend_of(rows), working_dtype(rows)
    if observed(rows) or not backend.fills_channels:
        return F.linear(rows, _rounded_weight(layer, None), layer.bias), None
    outputs = layer.out_features if last else backend.channels(layer.out_features, dtype)
    weight = _formed_weight(layer, Form((outputs, rows.shape[1]), dtype, torch.contiguous_format), None)
    bias = layer.bias if last else None
    return F.linear(rows.to(dtype), weight, bias), None if last else layer.bias


def exact_linear(rows: Tensor, layer: nn.Module, dtype: torch.dtype) -> Tensor:
    """A linear layer of a few numbers that decide: in this precision, but under autocast as they are, in float32.

    Args:
        rows: (N, features), in at least float32.
        layer: the linear layer.
        dtype: of the map that the rows are of.
    """
    if working_dtype(rows) == rows.dtype:
        return layer(rows.to(dtype))
    with without_autocast(rows):
        return layer(rows)


def to_pixel(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The convolution of a whole map (N, C, k, k) by a weight (n, C, k, k), as a linear layer: (N, n, 1, 1)."""
    return F.linear(_as_rows(x, weight), _as_rows(weight, weight), bias)[..., None, None]


def from_pixel(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The transposed convolution of a pixel (N, C, 1, 1) with kernel = stride, as a linear layer: (N, n, k, k)."""
    rows = x.flatten(1) @ _as_rows(weight, weight)
    channels, side = weight.shape[1:3]
    if weight.is_contiguous():
        y = rows.unflatten(1, (channels, side, side))
    else:
        y = rows.unflatten(1, (side, side, channels)).permute(0, 3, 1, 2)
    return y if bias is None else y + over(bias, y).to(y.dtype)


def applied_weight(layer: Any) -> Tensor:
    """The weight that a layer applies next: projected if it is constrained.

    Where weights have no idle channels it is projected and rounded to the precision of autocast in one pass.
    """
    weight = layer.weight
    if backend_of(weight).fills_channels:
        return _formed_weight(layer, Form.of(weight), None)
    return _rounded_weight(layer, None)


def without_saving(layer: Any, weight: Tensor) -> AbstractContextManager[Any]:
    """Around the application of a layer's weight: autograd does not keep it for the backward pass, but projects again.

    Projected weights are as large as the weights, which a network with small batches would notice; where a pass does
    it, the second projection costs next to nothing.
    """
    raw, constraint, form = layer.weight, _constraint(layer), Form.of(weight)
    if weight is raw or constraint is None or not weight.requires_grad or observed(raw):
        return nullcontext()
    backend = backend_of(raw)
    if backend.fills_channels or not backend.takes_weight(raw, constraint, form):
        return nullcontext()
    place, version = weight.data_ptr(), raw._version

    def pack(saved: Tensor) -> Any:
        # A linear layer keeps the weight as rows.
        return (saved.size(), saved.stride()) if saved.data_ptr() == place else saved

    def unpack(saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if raw._version != version:
            raise RuntimeError("a weight that the backward pass needs was changed in place after the forward pass")
        with torch.no_grad():
            return fit_weight(raw, constraint, form).as_strided(*saved)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _convolve(z: Tensor, conv: Any, weight: Tensor, with_bias: bool, level: Tensor | None) -> Convolved:
    bias = conv.bias if with_bias else None
    if _is_linear(conv, z):
        u = (from_pixel if conv.transposed else to_pixel)(z, weight, bias)
    elif conv.transposed:
        geometry = (conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation)
        u = F.conv_transpose2d(z, weight, bias, *geometry)
    else:
        u = F.conv2d(z, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
    return Convolved(u, None if with_bias else conv.bias, level)


def _as_rows(x: Tensor, like: Tensor) -> Tensor:
    """(N, C, k, k) as rows (N, C k k), with the positions in the order in which `like` (.., C, k, k) has them."""
    return x.flatten(1) if like.is_contiguous() else x.permute(0, 2, 3, 1).flatten(1)


def _is_linear(conv: Any, z: Tensor) -> bool:
    """Whether a convolution is one to or from a single pixel, and so a linear layer."""
    side = conv.kernel_size
    if side[0] == 1 or any(conv.padding) or conv.groups > 1:
        return False
    if conv.transposed:
        return z.shape[2] == z.shape[3] == 1 and conv.stride == side and not any(conv.output_padding)
    return tuple(z.shape[2:]) == side and tuple(conv.dilation) == (1, 1)


def _centers(conv: Any, z: Tensor) -> bool:
    """Whether a layer of a whole map does better to center the map than to project its weight, which is much larger.

    `P(W) z = W (z - G φ(z)) + G φ(z)`, and the gradient of the weight comes out projected. Not so where the projected
    weight is kept, which it is neither in training nor in a CUDA graph; nor in 16 bits where weights have no idle
    channels: the weight is rounded in any case there, and projected in the same pass.
    """
    if _constraint(conv) is None:
        return False
    if backend_of(z).fills_channels and not conv.transposed:
        return False
    if not (torch.is_grad_enabled() and conv.weight.requires_grad):
        return is_captured(z)
    if not backend_of(z).fills_channels and working_dtype(z) in _HALF:
        return False
    # The weight is about to change.
    conv.stop_keeping()
    return True


def _constraint(layer: Any) -> Constraint | None:
    return getattr(layer, "weight_constraint", None)


def _formed_weight(layer: Any, form: Form, cache: WeightCache | None) -> Tensor:
    """The weight in this form, projected if it is constrained; kept where it may be."""
    constraint = _constraint(layer)

    def make(raw: Tensor) -> Tensor:
        return fit_weight(raw, constraint, form)

    if constraint is not None:
        return layer.projection(form, make)
    return make(layer.weight) if cache is None else cache.get(layer.weight, form, make)


def _rounded_weight(layer: Any, cache: WeightCache | None) -> Tensor:
    """The weight as it lies, projected if it is constrained, and in the precision of autocast."""
    weight: nn.Parameter = layer.weight
    dtype = working_dtype(weight) if weight.dtype == torch.float32 else weight.dtype
    if _constraint(layer) is None and (cache is None or dtype == weight.dtype or wants_gradient(weight)):
        return weight
    return _formed_weight(layer, Form.of(weight, dtype), cache)
