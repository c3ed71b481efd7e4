"""The table of rules, and what rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightfast._response.call import CENTER, Call
from lightfast._response.value import NoResponse, Response, Space, Value, align, equal

Rule = Callable[[Call], Any]

RULES: dict[str, Rule] = {}
"""The rule of each operation, by its name without overload."""

_LAYERS = {
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "prelu": "PReLU",
    "_prelu_kernel": "PReLU",
    "elu": "ELU",
    "gelu": "GELU",
    "silu": "SiLU",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "hardswish": "Hardswish",
    "dropout": "Dropout",
    "native_dropout": "Dropout",
    "feature_dropout": "Dropout2d",
    "scaled_dot_product_attention": "MultiheadAttention",
}
"""The layer of `lightfast.nn` that does what an operation does, and keeps the response."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def words(name: str) -> str:
    """An operation's name as people write it."""
    return _LAYERS[name] if name in ("relu", "gelu", "silu", "elu", "hardswish") else name.strip("_")


def remedy(name: str) -> str:
    """What to use instead of an operation that loses the response."""
    return f"use lightfast.nn.{_LAYERS[name]}" if name in _LAYERS else CENTER


def axes_of(dim: Any, rank: int) -> list[int]:
    """Axes counted from the front; all of them where none is given."""
    if dim is None or dim == []:
        return list(range(rank))
    return [axis % max(rank, 1) for axis in (dim if isinstance(dim, list | tuple) else [dim])]


def require_equal(call: Call, value: Response, axes: list[int], why: str, instead: str = CENTER) -> None:
    """Raise unless the response is the same all along the axes."""
    for axis in axes:
        if not equal(value.moving, value.moving.narrow(axis + 1, 0, 1), call.space):
            raise NoResponse(why, instead)


def without_axes(call: Call, exact: Tensor, axes: list[int]) -> Tensor:
    """`R` of what is left after a reduction over axes, where it has size 1, unless the operation keeps them."""
    return exact if call.get("keepdim", False) else exact.squeeze([axis + 1 for axis in axes])


def agree(a: Value, b: Value, rank: int, space: Space) -> Tensor | None:
    """The response that two values have in common, broadcast to `rank` axes; None if they differ."""
    first, second = torch.broadcast_tensors(align(a, rank, space), align(b, rank, space))
    return first if equal(first, second, space) else None
