"""Rules of operations that move, copy or average elements: linear, so applied to each direction of the response."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from lightfast._response.call import CENTER, Call, joint, moves
from lightfast._response.registry import axes_of, rule, without_axes
from lightfast._response.value import Constant, NoResponse, Response, align, settle

_MOVING = (
    "chunk narrow select slice split split_with_sizes unbind index diagonal tril triu squeeze roll expand repeat "
    "repeat_interleave tile channel_shuffle pixel_shuffle pixel_unshuffle im2col col2im unfold"
)
rule(*_MOVING.split())(partial(joint, data=["self"]))
rule("stack")(partial(joint, data=["tensors"]))
rule("slice_scatter", "select_scatter")(partial(joint, data=["self", "src"]))
rule("index_add", "index_copy")(partial(joint, data=["self", "source"], sums=True))
rule("index_put")(partial(joint, data=["self", "values"], sums=True))
rule("scatter_add")(partial(joint, data=["self", "src"], sums=True))


@rule("movedim", "permute", "t", "transpose", "unsqueeze", "flip")
def _rearrange(call: Call) -> Response:
    """Operations that only exchange axes or turn them around: axes of size 1 can stay so."""
    rows = call.response("self").moving
    return Response(call.shapes, torch.stack([call.run(lambda _, __, row=row: row) for row in rows]))


@rule("cat")
def _join(call: Call) -> Response:
    """Values one after the other along an axis: the other axes can stay of size 1 where they are so in all of them."""
    parts, rank = call["tensors"], len(call.shapes)
    if any(len(part.shape) != rank for part in parts):
        return joint(call, ["tensors"])
    dim = call["dim"] % rank
    maps = [align(part, rank, call.space) for part in parts]
    sizes = [max(map.shape[axis] for map in maps) for axis in range(rank + 1)]
    if sizes[dim + 1] == 1 and all(torch.equal(map, maps[0]) for map in maps):
        return Response(call.shapes, maps[0] if maps[0].any() else None)
    rows = []
    for part, map in zip(parts, maps, strict=True):
        sizes[dim + 1] = part.shape[dim]
        rows.append(map.expand(sizes))
    return call.wrap(torch.cat(rows, dim + 1))


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _adaptive_average(call: Call) -> Response:
    value = call.response("self")
    return Response(call.shapes, value.map) if value.is_flat(call.positions) else joint(call, ["self"], sums=True)


@rule("view", "_unsafe_view", "reshape", "flatten", "unflatten")
def _reshape(call: Call) -> Response:
    value = call.response("self")
    if "dtype" in call.arguments:
        raise NoResponse("reading of {value} as numbers of another type", CENTER)
    # Runs of axes that are taken apart or together by themselves; those along which nothing varies can stay of size 1.
    sizes, shape = [1] * len(value.shape), [1] * len(call.shapes)
    for before, after in _runs(value.shape, call.shapes):
        if any(value.moving.shape[axis + 1] > 1 for axis in before):
            for axis in before:
                sizes[axis] = value.shape[axis]
            for axis in after:
                shape[axis] = call.shapes[axis]
    return call.wrap(value.moving.expand(-1, *sizes).reshape(-1, *shape))


def _runs(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[range, range]]:
    """Axes of two shapes of one tensor, in runs that have the same number of elements.

    >>> _runs((2, 6, 5), (2, 2, 3, 5))
    [(range(0, 1), range(0, 1)), (range(1, 2), range(1, 3)), (range(2, 3), range(3, 4))]
    """
    runs, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second = i, j
        here, there = 1, 1
        while here != there or first == i or second == j:
            if (here <= there and first < len(before)) or second == len(after):
                if first == len(before):
                    break
                here, first = here * before[first], first + 1
            else:
                there, second = there * after[second], second + 1
        runs.append((range(i, first), range(j, second)))
        i, j = first, second
    return runs


@rule("alias", "clone", "contiguous", "detach", "lift_fresh_copy")
def _same(call: Call) -> Response:
    return Response(call.shapes, call.response("self").map)


@rule("_to_copy", "to", "copy", "expand_as")
def _copy(call: Call) -> Response:
    value = call["src"] if call.name == "copy" else call["self"]
    return call.wrap(align(value, len(call.shapes), call.space)) if moves(value) else Response(call.shapes)


@rule("fill")
def _fill(call: Call) -> Response:
    return call.wrap(align(call["value"], len(call.shapes), call.space))


@rule("index_select", "gather")
def _pick(call: Call) -> Response:
    """Any index will do along an axis on which the response does not vary."""
    value = call.response("self")
    axis = call["dim"] % max(len(value.shape), 1)
    if not value.shape or value.moving.shape[axis + 1] != 1:
        if isinstance(call["index"], Constant):
            return joint(call, ["self"])
        raise NoResponse(
            f"{call.name} at places that depend on the input, of a value whose response differs there", CENTER
        )
    if call.name == "index_select":
        return Response(call.shapes, value.map)
    # An index may be shorter than the value on the other axes, and then reads their beginning.
    return Response(call.shapes, value.moving[(slice(None), *(slice(size) for size in call.shapes))])


@rule("constant_pad_nd", "pad")
def _pad(call: Call) -> Response:
    value, amounts = call.response("self"), call["pad"]
    axes = [len(value.shape) - 1 - i // 2 for i, amount in enumerate(amounts) if amount]
    flat = [axis for axis in axes if value.moving.shape[axis + 1] == 1]
    if not axes:
        return Response(call.shapes, value.map)
    if call.name == "pad" and call["mode"] != "constant":
        return Response(call.shapes, value.map) if flat == axes else joint(call, ["self"])
    if any(amounts[2 * (len(value.shape) - 1 - axis)] >= 0 for axis in flat):
        raise NoResponse("zero padding of a map with response", "pad with mode='replicate', 'reflect' or 'circular'")
    return joint(call, ["self"], value=0.0)


@rule("mean", "sum")
def _average(call: Call) -> Response:
    value = call.response("self")
    exact, axes = value.moving, axes_of(call.get("dim"), len(value.shape))
    varying = [axis for axis in axes if exact.shape[axis + 1] > 1]
    times = 1 if call.name == "mean" else prod(value.shape[axis] for axis in axes if axis not in varying)
    along = [axis + 1 for axis in varying]
    if along:
        reduce = Tensor.mean if call.name == "mean" else Tensor.sum
        exact = settle(reduce(exact, along, keepdim=True), reduce(exact.abs(), along, keepdim=True), call.space)
    return call.wrap(without_axes(call, exact * times, axes))


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pooling(call: Call) -> Response:
    value = call.response("self")
    padded = call["padding"] if isinstance(call["padding"], list | tuple) else [call["padding"]]
    flat = value.is_flat(call.positions)
    # Where each window is divided by the number of values in it, it averages equals.
    counts = not call.get("count_include_pad", True) or not (any(padded) or call["ceil_mode"])
    if flat and counts and call.get("divisor_override") is None:
        return Response(call.shapes, value.map)
    pooled = joint(call, ["self"], sums=True)
    if flat and (pooled.map is None or not pooled.is_flat(call.positions)):
        raise NoResponse(
            "average pooling that counts padded zeros, of a map with response",
            "use count_include_pad=False, as lightfast.nn's average pooling does",
        )
    return pooled


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
@rule("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def _interpolate(call: Call) -> Any:
    name = "input" if "input" in call.arguments else "self"
    value = call.response(name)
    return Response(call.shapes, value.map) if value.is_flat(call.positions) else joint(call, [name], sums=True)
