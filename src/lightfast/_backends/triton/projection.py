"""The projection of weights on a GPU: one pass also rounds them, adds idle channels to them, and lays them out."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.plans import Plans
from lightfast._backends.triton.launch import Launch, power_of_two

__all__ = ["fit_weight", "launch_for", "takes"]

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
_MOST_TAPS = 128
_PROGRAMS = 264  # Two for each processor of a large GPU.
_AT_ONCE = 16384  # The most numbers that a program holds in registers.
# If there are more it reads them twice, so many at a time: two such programs fit a processor. More programs at a time
# would read more before they read it again than the cache holds.
_AT_A_TIME = 8192
_TILE = 4096  # The numbers of a tile where none depends on another.
_NUMBERS_A_WARP = 1024

_plans = Plans()


@cache
def _kernel() -> Any:
    from lightfast._backends.triton import projection_kernels

    return projection_kernels.project_kernel


def takes(weight: Tensor, constraint: Constraint | None, form: Form) -> bool:
    """Whether the kernel knows such weights: blocks of all taps, or of equal phases of square kernels."""
    if weight.dtype not in _PRECISIONS or form.dtype not in _PRECISIONS:
        return False
    if not 0 < weight.numel() < 2**31 or weight.shape[2:].numel() > _MOST_TAPS:
        return False
    if constraint is None:
        return True
    if constraint.transposed:
        return constraint.phases_of(weight) is not None
    return constraint.is_even and (constraint.taps == "sum" or weight.shape[2:].numel() == 1)


def fit_weight(weight: Tensor, constraint: Constraint | None, form: Form, wanted: bool) -> Tensor:
    """As `Reference.fit_weight`."""
    out = torch.empty(form.shape, dtype=form.dtype, device=weight.device, memory_format=form.layout)
    if _tap_step(weight) is None:
        weight = weight.contiguous()
    _launch_for(weight, out, _Blocks.of(weight, constraint), wanted)(weight, out)
    return out


def launch_for(weight: Tensor, out: Tensor, constraint: Constraint | None, wanted: bool) -> Launch | None:
    """The launch of :func:`fit_weight` for weights like these, or None if it takes a copy before."""
    return None if _tap_step(weight) is None else _launch_for(weight, out, _Blocks.of(weight, constraint), wanted)


def _launch_for(weight: Tensor, out: Tensor, blocks: _Blocks, wanted: bool) -> Launch:
    key = (weight.shape, weight.stride(), out.shape, out.stride(), blocks, wanted)
    return _plans.get(key, lambda: _launch(weight, out, blocks, wanted))


class _Blocks(NamedTuple):
    """Which weights move together: of `groups`, or none if there are none, and of a phase of each `stride`."""

    groups: int
    transposed: bool
    stride: int

    @classmethod
    def of(cls, weight: Tensor, constraint: Constraint | None) -> _Blocks:
        if constraint is None:
            return cls(0, False, 1)
        stride = constraint.phases_of(weight) if constraint.transposed else 1
        assert stride is not None
        return cls(constraint.in_groups.count, constraint.transposed, stride)

    def features(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Outputs and inputs."""
        return (shape[1], shape[0]) if self.transposed else (shape[0], shape[1])


class _Axes(NamedTuple):
    """Strides of outputs, inputs and taps."""

    outputs: int
    inputs: int
    taps: int


def _launch(weight: Tensor, out: Tensor, blocks: _Blocks, with_share: bool) -> Launch:
    """The launch of the kernel: `out` may have more channels than `weight`, or fewer."""
    source, target = _axes(weight, blocks), _axes(out, blocks)
    (outputs, inputs), (out_outputs, out_inputs) = blocks.features(weight.shape), blocks.features(out.shape)
    # What is idle is not read: it is more in the one or in the other.
    outputs, inputs = min(outputs, out_outputs), min(inputs, out_inputs)
    side, taps = weight.shape[-1] if weight.dim() > 2 else 1, weight.shape[2:].numel()
    if blocks.stride == 1 and all(axes.inputs == taps * axes.taps for axes in (source, target)):
        # The taps of all inputs lie in a row.
        source, target = (_Axes(axes.outputs, axes.taps, 0) for axes in (source, target))
        inputs, out_inputs, side, taps = inputs * taps, out_inputs * taps, 1, 1
    block_t = 1 if blocks.stride**2 == taps and min(source.taps, target.taps) > 1 else power_of_two(taps)
    if blocks.groups:
        run = inputs // blocks.groups
        extent = run + out_inputs - inputs
        block_o = _outputs_of_a_tile(source, target, out_outputs, extent * block_t, blocks.groups * -(-taps // block_t))
        block_i = _inputs_of_a_tile(extent, block_o * block_t)
    else:
        block_o = 1
        run = extent = block_i = min(power_of_two(out_inputs), _TILE // block_t)
    grid = (-(-out_outputs // block_o), blocks.groups or -(-out_inputs // run), -(-taps // block_t))
    tile = block_o * block_i * block_t
    again = extent > block_i
    return Launch(
        _kernel(), grid,
        OUTPUTS=outputs, INPUTS=inputs, TAPS=taps, SIDE=side, STRIDE=blocks.stride,
        OUT_OUTPUTS=out_outputs, OUT_INPUTS=out_inputs, GROUPS=blocks.groups, RUN=run, EXTENT=extent,
        W_O=source.outputs, W_I=source.inputs, W_T=source.taps,
        O_O=target.outputs, O_I=target.inputs, O_T=target.taps,
        PROJECT=blocks.groups > 0, HAS_SHARE=with_share, AGAIN=again,
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


def _axes(x: Tensor, blocks: _Blocks) -> _Axes:
    step = _tap_step(x)
    assert step is not None
    return _Axes(*blocks.features(x.stride()), step)


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
