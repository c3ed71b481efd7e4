"""Rules of products of two tensors, one of them constant: linear maps and convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from lightfast._response.call import CENTER, Call, joint, moves
from lightfast._response.registry import rule
from lightfast._response.value import Constant, NoResponse, Response, full, settle


@rule("linear")
def _linear_layer(call: Call) -> Response:
    value, weight = call["input"], call["weight"]
    if not (moves(value) and isinstance(weight, Constant)) or moves(call["bias"]):
        return _product(call, "input", "weight", "bias")
    exact = full(value, [len(value.shape) - 1])
    w = weight.tensor
    return call.wrap(settle(exact @ w.T, exact.abs() @ w.T.abs(), call.space))


@rule("matmul", "mm", "mv", "dot", "bmm")
def _matmul(call: Call) -> Response:
    first, second = (argument.name for argument in call.op._schema.arguments[:2])
    return _product(call, first, second)


@rule("addmm", "baddbmm")
def _add_matmul(call: Call) -> Response:
    bias, first, second = (argument.name for argument in call.op._schema.arguments[:3])
    return _product(call, first, second, bias)


@rule("einsum")
def _einsum(call: Call) -> Response:
    tensors = call["tensors"]
    moving = [index for index, value in enumerate(tensors) if moves(value)]
    if len(moving) > 1 or any(isinstance(v, Response) and not moves(v) for v in tensors):
        raise NoResponse("product of {value} and one that varies", CENTER)
    position, value = moving[0], tensors[moving[0]]
    constants = [v.tensor if isinstance(v, Constant) else None for v in tensors]

    def contract(magnitude: bool) -> Tensor:
        rows = []
        for row in full(value):
            factors = [c if c is None or not magnitude else c.abs() for c in constants]
            factors[position] = row.abs() if magnitude else row
            rows.append(torch.einsum(call["equation"], *factors))
        return torch.stack(rows)

    return call.wrap(settle(contract(False), contract(True), call.space))


def _product(call: Call, first: str, second: str, bias: str | None = None) -> Response:
    """A bilinear operation: linear in one argument (and the bias) where the other is constant."""
    extra = [bias] if bias is not None and isinstance(call[bias], Response | Constant) else []
    for data, other in ((first, second), (second, first)):
        if isinstance(call[other], Constant):
            return joint(call, [data, *extra], sums=True)
    if not moves(call[first]) and not moves(call[second]):
        both_vary = "sum of {value} and a product, which depends on the input"
        raise NoResponse(both_vary, "add it separately, so that the two terms can be told apart")
    raise NoResponse("product of {value} and one that varies", CENTER)


@rule("conv1d", "conv2d", "conv3d")
def _convolution(call: Call) -> Response:
    value, weight = call["input"], call["weight"]
    if not isinstance(weight, Constant) or not moves(value) or moves(call["bias"]):
        raise NoResponse("convolution whose weight or bias depends on the input", CENTER)
    if _pads(call, weight.tensor):
        raise NoResponse(
            "zero padding of a map with response",
            "use lightfast.nn's convolution, with padding_mode='replicate', 'reflect', 'circular' or 'mean'",
        )
    positions, split = call.positions, call["groups"]
    if not value.is_flat(positions):
        return joint(call, ["input", "bias"], sums=True)
    exact = full(value, [len(value.shape) - positions - 1])
    rows = exact.reshape(-1, split, weight.shape[1])
    taps = weight.tensor.flatten(2)
    taps, sizes = (t.reshape(split, -1, weight.shape[1]).mT for t in (taps.sum(2), taps.abs().sum(2)))
    # Without positions a convolution is a matrix for each of its groups: (group, row, input) (group, input, output).
    moved = settle(rows.transpose(0, 1) @ taps, rows.abs().transpose(0, 1) @ sizes, call.space)
    return call.wrap(moved.transpose(0, 1).reshape(*exact.shape[: -positions - 1], -1, *[1] * positions))


def _pads(call: Call, weight: Tensor) -> bool:
    padding = call["padding"]
    if padding == "same":
        return any(size > 1 for size in weight.shape[2:])
    return padding != "valid" and any(padding)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(call: Call) -> Response:
    value = call["input"]
    if not isinstance(call["weight"], Constant) or not moves(value) or moves(call["bias"]):
        raise NoResponse("transposed convolution whose weight or bias depends on the input", CENTER)
    moved = joint(call, ["input", "bias"], sums=True)
    if value.is_flat(call.positions) and moved.map is not None and not moved.is_flat(call.positions):
        raise NoResponse(
            "transposed convolution whose outputs see different taps, of a map with response",
            "use lightfast.nn's transposed convolution, which is exact up to the border",
        )
    return moved
