"""The projection of weights on a GPU: one pass also rounds them, adds idle channels to them, and lays them out.

The projection `P(W) = W - M W + S` is affine, and `I - M` is symmetric. With `E` for the idle channels, `E P(W)` has
the gradient `(I - M) Eᵀ` of its own, and that has `E (I - M)`: the same pass without `S`, back and forth.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lightfast.functional import project_weight
from lightfast.nn._native import observed
from lightfast.nn._triton import available, power_of_two

__all__ = ["fit_padded", "layout_of", "project_padded", "suits_weight"]

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_MOST_TAPS = 128
_PROGRAMS = 264  # Two for each processor of a large GPU.
_AT_ONCE = 16384  # The most numbers that a program holds in registers.
# If there are more it reads them twice, so many at a time: two such programs fit a processor. More programs at a time
# would read more before they read it again than the cache holds.
_AT_A_TIME = 8192
_TILE = 4096  # The numbers of a tile where none depends on another.
_NUMBERS_A_WARP = 1024


@cache
def _kernel() -> Any:
    from lightfast.nn import _projection_kernels

    return _projection_kernels.project_kernel


@cache
def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def suits_weight(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel can take a weight from its precision to `dtype`: on a GPU, and unobserved.

    A compiler fuses the plain version by itself, and transforms of `torch.func` go through the plain version alone.
    """
    if observed(weight) or not (weight.is_cuda or _interpreted()) or not available():
        return False
    small = 0 < weight.numel() < 2**31 and weight.shape[2:].numel() <= _MOST_TAPS
    return small and weight.dtype in _PRECISIONS and dtype in _PRECISIONS


def layout_of(weight: Tensor) -> torch.memory_format:
    """The memory format of a weight; of one that lies both ways or neither, contiguous."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    if last is None or weight.is_contiguous() or not weight.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def project_padded(
    weight: Tensor,
    groups: int,
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    *,
    transposed: bool = False,
    stride: int = 1,
) -> Tensor:
    """The projected weight with idle outputs and inputs, which are zero.

    Args:
        weight: (n, m, *kernel), or (m, n, k, k) where `transposed`; it suits.
        groups: g equal contiguous runs of the `n` outputs and of the `m` inputs.
        outputs: at least n.
        inputs: at least m.
        dtype: the precision of the result.
        memory_format: of the result.
        transposed: whether the weight belongs to a transposed convolution, in which each phase of taps meets the
            constraint by itself.
        stride: of the transposed convolution; `k` is a multiple of it.

    Returns:
        (outputs, inputs, *kernel), or (inputs, outputs, k, k) where `transposed`.
    """
    channels = (inputs, outputs) if transposed else (outputs, inputs)
    return _fitted(weight, channels, dtype, memory_format, _How(groups, transposed, stride))


def fit_padded(
    weight: Tensor, channels: tuple[int, int], dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """As :func:`project_padded` without the projection: (a, b, *kernel) to (*channels, *kernel).

    Where there is nothing to do, this is `weight` itself.
    """
    if weight.shape[:2] == channels and weight.dtype == dtype and weight.is_contiguous(memory_format=memory_format):
        return weight
    return _fitted(weight, channels, dtype, memory_format, _How(0, False, 1))


class _Form(NamedTuple):
    """What a weight is like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    memory_format: torch.memory_format


class _How(NamedTuple):
    """How a weight is projected: on `groups`, or not at all if there are none."""

    groups: int
    transposed: bool
    stride: int

    def features(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Outputs and inputs."""
        return (shape[1], shape[0]) if self.transposed else (shape[0], shape[1])

    def project_linearly(self, weight: Tensor) -> Tensor:
        """The linear part `(I - M) W`, by torch."""
        if not self.groups:
            return weight
        how: Any = {"transposed": self.transposed, "stride": self.stride}
        exact = weight.to(torch.float32)
        flat = project_weight(torch.zeros_like(exact), self.groups, self.groups, **how)
        return project_weight(exact, self.groups, self.groups, **how) - flat


def _fitted(
    weight: Tensor, channels: tuple[int, int], dtype: torch.dtype, memory_format: torch.memory_format, how: _How
) -> Tensor:
    raw = _Form(tuple(weight.shape), weight.dtype, layout_of(weight))
    return _Fit.apply(weight, raw, _Form((*channels, *weight.shape[2:]), dtype, memory_format), how, True)


class _Fit(torch.autograd.Function):
    """From one form to the other, larger or smaller one, projected; without `wanted`, the linear part of that."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, form: _Form, onto: _Form, how: _How, wanted: bool) -> Tensor:
        ctx.forms, ctx.how = (form, onto), how
        out = torch.empty(onto.shape, dtype=onto.dtype, device=weight.device, memory_format=onto.memory_format)
        with torch.cuda.device_of(weight):
            _launch(weight, out, how, wanted)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (form, onto) = grads, ctx.forms
        if suits_weight(grad, form.dtype):
            return _Fit.apply(grad, onto, form, ctx.how, False), None, None, None, None
        return _linear_part(grad, form, ctx.how), None, None, None, None


def _linear_part(grad: Tensor, onto: _Form, how: _How) -> Tensor:
    """What the kernel does without a share, by torch."""
    first, second = (there - here for there, here in zip(onto.shape[:2], grad.shape[:2], strict=True))
    room = (0, 0) * (grad.dim() - 2)
    if first < 0 or second < 0:
        return how.project_linearly(F.pad(grad, (*room, 0, second, 0, first))).to(onto.dtype)
    return F.pad(how.project_linearly(grad), (*room, 0, second, 0, first)).to(onto.dtype)


class _Axes(NamedTuple):
    """Strides of outputs, inputs and taps."""

    outputs: int
    inputs: int
    taps: int


def _launch(weight: Tensor, out: Tensor, how: _How, with_share: bool) -> None:
    """Run the kernel: `out` may have more channels than `weight`, or fewer."""
    if _tap_step(weight) is None:
        weight = weight.contiguous()
    source, target = _axes(weight, how), _axes(out, how)
    (outputs, inputs), (out_outputs, out_inputs) = how.features(weight.shape), how.features(out.shape)
    # What is idle is not read: it is more in the one or in the other.
    outputs, inputs = min(outputs, out_outputs), min(inputs, out_inputs)
    side, taps = weight.shape[-1] if weight.dim() > 2 else 1, weight.shape[2:].numel()
    if how.stride == 1 and all(axes.inputs == taps * axes.taps for axes in (source, target)):
        # The taps of all inputs lie in a row.
        source, target = (_Axes(axes.outputs, axes.taps, 0) for axes in (source, target))
        inputs, out_inputs, side, taps = inputs * taps, out_inputs * taps, 1, 1
    block_t = 1 if how.stride**2 == taps and min(source.taps, target.taps) > 1 else power_of_two(taps)
    if how.groups:
        run = inputs // how.groups
        extent = run + out_inputs - inputs
        block_o = _outputs_of_a_tile(source, target, out_outputs, extent * block_t, how.groups * -(-taps // block_t))
        block_i = _inputs_of_a_tile(extent, block_o * block_t)
    else:
        block_o = 1
        run = extent = block_i = min(power_of_two(out_inputs), _TILE // block_t)
    grid = (-(-out_outputs // block_o), how.groups or -(-out_inputs // run), -(-taps // block_t))
    tile = block_o * block_i * block_t
    again = extent > block_i
    _kernel()[grid](
        weight, out,
        OUTPUTS=outputs, INPUTS=inputs, TAPS=taps, SIDE=side, STRIDE=how.stride,
        OUT_OUTPUTS=out_outputs, OUT_INPUTS=out_inputs, GROUPS=how.groups, RUN=run, EXTENT=extent,
        W_O=source.outputs, W_I=source.inputs, W_T=source.taps,
        O_O=target.outputs, O_I=target.inputs, O_T=target.taps,
        PROJECT=how.groups > 0, HAS_SHARE=with_share, AGAIN=again,
        BLOCK_O=block_o, BLOCK_I=block_i, BLOCK_T=block_t,
        num_warps=16 if again else min(8, max(1, tile // _NUMBERS_A_WARP)),
    )  # fmt: skip


def _tap_step(x: Tensor) -> int | None:
    """The one stride of all taps, or None if they do not follow one another."""
    step, follows = 1, None
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size == 1:
            continue
        if follows is None:
            step = stride
        elif stride != follows:
            return None
        follows = stride * size
    return step


def _axes(x: Tensor, how: _How) -> _Axes:
    step = _tap_step(x)
    assert step is not None
    return _Axes(*how.features(x.stride()), step)


def _outputs_of_a_tile(source: _Axes, target: _Axes, outputs: int, length: int, pieces: int) -> int:
    """How many outputs a program takes, if each is `length` numbers in each of so many pieces.

    Where they lie side by side they are as many as fill a sector of memory, or fewer if that leaves processors idle.
    """
    most, least = max(1, _NUMBERS_A_WARP // (2 * length)), 1
    nearest = min(source.outputs, target.outputs)
    if nearest < min(source.inputs, target.inputs):
        most = max(most, 16 // max(1, nearest))
    if nearest == 1:
        least = 4
    most = min(power_of_two(most), power_of_two(outputs))
    while most > least and -(-outputs // most) * pieces < _PROGRAMS:
        most //= 2
    return most


def _inputs_of_a_tile(extent: int, columns: int) -> int:
    """All of them, if so many for each of some columns fit into registers."""
    block = power_of_two(extent)
    return block if block * columns <= _AT_ONCE else max(1, _AT_A_TIME // columns)
