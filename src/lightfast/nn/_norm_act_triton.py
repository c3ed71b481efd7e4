"""`norm_act` and the projection of weights on a GPU, by the Triton kernels."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from lightfast.nn._statistics import Statistics

__all__ = ["norm_act_kernels", "padded_width", "project_padded", "suits"]

_ROWS, _TILE = 64, 4096


@cache
def _kernels() -> Any:
    from lightfast.nn import _kernels as kernels

    return kernels


@cache
def _available() -> bool:
    return find_spec("triton") is not None


def suits(x: Tensor, features: int, groups: int) -> bool:
    """Whether the kernels can take maps like `x`: on a GPU, in a precision they know, and not under a compiler.

    A compiler fuses the plain version by itself, and transforms of `torch.func` go through the plain version alone.
    """
    if not x.is_cuda or torch.compiler.is_compiling() or not _available():
        return False
    if peek_interpreter_stack() is not None:
        return False
    known = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return known and x.dim() == 4 and features // groups <= 2048


def padded_width(features: int, dtype: torch.dtype) -> int:
    """How many channels a map of `features` features gets: 16-bit convolutions want a multiple of 8.

    >>> padded_width(33, torch.bfloat16), padded_width(33, torch.float32)
    (40, 33)
    """
    return -(-features // 8) * 8 if dtype in (torch.bfloat16, torch.float16) else features


def norm_act_kernels(
    u: Tensor,
    shortcut: Tensor | None,
    pre_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    tracked: Tensor | None,
    groups: int,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """As `norm_act`, for `u` with idle channels after its features; `tracked` counts batches."""
    return _NormActKernels.apply(u, shortcut, pre_bias, weight, bias, statistics, tracked, groups, slope)


def project_padded(
    weight: Tensor, groups: int, outputs: int, inputs: int, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """The projected weight with idle outputs and inputs, which are zero: (n, m, k, k) to (outputs, inputs, k, k)."""
    return _ProjectPadded.apply(weight, groups, outputs, inputs, dtype, memory_format)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _strides(x: Tensor) -> tuple[int, int, int]:
    """Of images, channels, positions."""
    return x.stride(0), x.stride(1), x.stride(3)


def _merges(x: Tensor) -> bool:
    """Whether rows follow one another, so that pixels have one stride."""
    return x.stride(2) == x.shape[3] * x.stride(3)


def _tile(x: Tensor, positions: int) -> tuple[int, int]:
    """(positions, channels) of a tile: wide in the direction in which the map lies in memory."""
    channels = min(64, _power_of_two(x.shape[1])) if x.stride(1) == 1 else 1
    return min(_power_of_two(positions), _TILE // channels), channels


def _rows(images: int, block_s: int) -> int:
    return max(1, min(_power_of_two(images), 8192 // block_s, 128))


class _NormActKernels(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        shortcut: Tensor | None,
        pre_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        statistics: Statistics,
        tracked: Tensor | None,
        groups: int,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        kernels = _kernels()
        if not _merges(u):
            u = u.contiguous()
        if shortcut is not None and (shortcut.shape != u.shape or not _merges(shortcut)):
            raise ValueError(f"a shortcut of shape {tuple(shortcut.shape)} does not fit a map of {tuple(u.shape)}")
        images, channels, positions = u.shape[0], u.shape[1], u.shape[2] * u.shape[3]
        features = weight.shape[0]
        training = statistics.training or statistics.running_mean is None
        mean, var, shift, deviation = u.new_empty(4, images, features, dtype=torch.float32)
        s_mean = torch.empty_like(mean) if shortcut is not None else mean
        scale, inverse = u.new_empty(2, features, dtype=torch.float32)
        offset = u.new_empty(images, groups, dtype=torch.float32)
        z = torch.empty_like(u)
        s = u if shortcut is None else shortcut
        strides = (*_strides(u), *_strides(s))
        block_p, block_c = _tile(u, positions)
        columns = -(-features // block_c)
        kernels.moments_kernel[(images, columns)](
            u, s, mean, var, s_mean, positions, features, *strides,
            HAS_SHORTCUT=shortcut is not None, BLOCK_P=block_p, BLOCK_C=block_c,
        )  # fmt: skip
        size = features // groups
        block_s = _power_of_two(size)
        count = images * positions
        running = statistics.running_mean is not None
        kernels.coefficients_kernel[(groups,)](
            mean, var, s_mean, weight if pre_bias is None else pre_bias, weight, bias,
            statistics.running_mean if running else scale, statistics.running_var if running else scale,
            scale if tracked is None else tracked,
            scale, inverse, shift, deviation, offset,
            images, features, size, groups, count / max(count - 1, 1), statistics.momentum, statistics.eps,
            TRAINING=training, HAS_RUNNING=running, HAS_SHORTCUT=shortcut is not None,
            HAS_PRE_BIAS=pre_bias is not None, HAS_TRACKED=training and tracked is not None,
            BLOCK_N=_rows(images, block_s), BLOCK_S=block_s,
        )  # fmt: skip
        kernels.apply_kernel[(images, -(-channels // block_c), -(-positions // block_p))](
            u, s, scale, shift, z, positions, features, channels, slope, *strides,
            HAS_SHORTCUT=shortcut is not None, BLOCK_P=block_p, BLOCK_C=block_c,
        )  # fmt: skip
        ctx.save_for_backward(u, z, mean, deviation, scale, inverse, weight, bias, pre_bias)
        ctx.training, ctx.has_shortcut, ctx.groups, ctx.slope = training, shortcut is not None, groups, slope
        ctx.set_materialize_grads(False)
        return z, offset

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kernels = _kernels()
        u, z, mean, deviation, scale, inverse, weight, bias, pre_bias = ctx.saved_tensors
        dz, d_offset = grads
        dz = torch.zeros_like(z) if dz is None else dz
        if not _merges(dz):
            dz = dz.contiguous(memory_format=torch.channels_last if u.stride(1) == 1 else torch.contiguous_format)
        images, channels, positions = u.shape[0], u.shape[1], u.shape[2] * u.shape[3]
        features, groups = weight.shape[0], ctx.groups
        first, second, constant, centring = u.new_empty(4, images, features, dtype=torch.float32)
        slant = torch.empty_like(scale)
        d_weight, d_bias = torch.empty_like(weight), torch.empty_like(bias)
        d_pre_bias = None if pre_bias is None else torch.empty_like(pre_bias)
        block_p, block_c = _tile(u, positions)
        strides = (*_strides(u), *_strides(dz))
        kernels.backward_moments_kernel[(images, -(-features // block_c))](
            dz, z, u, mean, first, second, positions, features, ctx.slope, *strides, BLOCK_P=block_p, BLOCK_C=block_c
        )
        size = features // groups
        block_s = _power_of_two(size)
        kernels.backward_coefficients_kernel[(groups,)](
            first, second, mean, deviation, scale, inverse, scale if d_offset is None else d_offset.contiguous(),
            d_weight, d_bias, d_bias if d_pre_bias is None else d_pre_bias, slant, constant, centring,
            images, features, size, groups, positions,
            TRAINING=ctx.training, HAS_OFFSET=d_offset is not None, HAS_PRE_BIAS=d_pre_bias is not None,
            BLOCK_N=_rows(images, block_s), BLOCK_S=block_s,
        )  # fmt: skip
        du = torch.empty_like(u)
        ds = torch.empty_like(u) if ctx.has_shortcut else None
        kernels.backward_apply_kernel[(images, -(-channels // block_c), -(-positions // block_p))](
            dz, z, u, scale, slant, constant, centring, du, du if ds is None else ds,
            positions, features, channels, ctx.slope, *strides,
            HAS_SHORTCUT=ds is not None, BLOCK_P=block_p, BLOCK_C=block_c,
        )  # fmt: skip
        return du, ds, d_pre_bias, d_weight, d_bias, None, None, None, None


class _ProjectPadded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        groups: int,
        outputs: int,
        inputs: int,
        dtype: torch.dtype,
        memory_format: torch.memory_format,
    ) -> Tensor:
        ctx.groups = groups
        ctx.shape, ctx.dtype = weight.shape, weight.dtype
        out = torch.empty(
            (outputs, inputs, *weight.shape[2:]), dtype=dtype, device=weight.device, memory_format=memory_format
        )
        _project(weight, out, groups, weight.shape[0], weight.shape[1], with_share=True)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_weight = torch.empty(ctx.shape, dtype=ctx.dtype, device=grads[0].device)
        _project(grads[0], d_weight, ctx.groups, ctx.shape[0], ctx.shape[1], with_share=False)
        return d_weight, None, None, None, None, None


def _project(weight: Tensor, out: Tensor, groups: int, outputs: int, inputs: int, with_share: bool) -> None:
    kernels = _kernels()
    taps = weight.shape[2] * weight.shape[3]
    in_size = inputs // groups
    block_t = _power_of_two(taps)
    block_i = min(_power_of_two(in_size), max(1, 1024 // block_t))
    if not _merges(weight):
        weight = weight.contiguous()
    kernels.project_kernel[(out.shape[0], groups)](
        weight, out, outputs, inputs, taps, outputs // groups, in_size, 1.0 / (in_size * taps),
        *_strides(weight), *_strides(out), out.shape[1],
        HAS_SHARE=with_share, FILL=out.shape[1] > inputs, BLOCK_I=block_i, BLOCK_T=block_t,
    )  # fmt: skip
