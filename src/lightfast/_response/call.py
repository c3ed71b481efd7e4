"""One operation on values: its arguments by name, and the two ways of carrying responses that most rules share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lightfast._response.value import Constant, NoResponse, Response, Space, Value, collapse, equal, full, settle

CENTER = "center it first, with lightfast.functional.center or lightfast.nn.Adapter"


@dataclass(frozen=True)
class Call:
    """An ATen operation, its arguments by the names of its schema, and the shapes of its outputs.

    Args:
        op: the operation.
        arguments: those given, with tensors replaced by values.
        shapes: the output's shape, or a list with one for each output, None for an output that is not a tensor.
        space: the offsets that are asked about.
    """

    op: OpOverload
    arguments: dict[str, Any]
    shapes: Any
    space: Space

    @classmethod
    def of(cls, op: OpOverload, args: Iterable[Any], kwargs: dict[str, Any], shapes: Any, space: Space) -> Call:
        names = (argument.name for argument in op._schema.arguments)
        return cls(op, dict(zip(names, args, strict=False)) | kwargs, shapes, space)

    def __getitem__(self, name: str) -> Any:
        """The argument of that name, or the schema's default."""
        if name in self.arguments:
            return self.arguments[name]
        return next(a.default_value for a in self.op._schema.arguments if a.name == name)

    def response(self, name: str) -> Response:
        """The argument of that name, which must be the only one that moves."""
        value = self[name]
        others = [leaf for key, argument in self.arguments.items() if key != name for leaf in leaves(argument)]
        if not moves(value) or any(map(moves, others)):
            raise NoResponse(f"{self.name} whose parameters follow the offset", CENTER)
        return value

    @property
    def name(self) -> str:
        return self.op._schema.name.removeprefix("aten::")

    @property
    def positions(self) -> int:
        """How many axes of positions the operation is for, as its name says: 2 of `conv2d`."""
        return int(re.findall(r"(\d)d", self.name)[0])

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name, where some overloads of the operation do not have it."""
        return self[name] if any(a.name == name for a in self.op._schema.arguments) else default

    def run(self, replace: Callable[[str, Value], Tensor], **overrides: Any) -> Any:
        """The operation itself, in float64, with each value replaced by a tensor."""
        arguments = {
            name: map_leaves(argument, lambda leaf, name=name: replace(name, leaf) if _is_value(leaf) else leaf)
            for name, argument in self.arguments.items()
        }
        return self.op(**{name: in_double(argument) for name, argument in (arguments | overrides).items()})

    def first(self, exact: Tensor) -> Any:
        """A response with this `R` as the only output, or the first of several, of which the others do not move."""
        if not isinstance(self.shapes, list):
            return self.wrap(exact)
        return [self.wrap(exact, self.shapes[0]), *map(Response, self.shapes[1:])]

    def wrap(self, exact: Tensor, shape: tuple[int, ...] | None = None) -> Response:
        """A response with this `R`, written as compactly as it can be."""
        return Response(self.shapes if shape is None else shape, collapse(exact, self.space))


def in_double(argument: Any) -> Any:
    """An argument for computing in float64 on the CPU: other real types and devices are replaced."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return torch.float64
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return leaf

    return map_leaves(argument, convert)


def map_leaves(argument: Any, function: Callable[[Any], Any]) -> Any:
    """An argument with `function` applied to all that is no list, tuple, dict or slice."""
    if isinstance(argument, tuple | list):
        return type(argument)(map_leaves(part, function) for part in argument)
    if isinstance(argument, dict):
        return {key: map_leaves(part, function) for key, part in argument.items()}
    if isinstance(argument, slice):
        return slice(*(map_leaves(part, function) for part in (argument.start, argument.stop, argument.step)))
    return function(argument)


def leaves(argument: Any) -> list[Value]:
    """All values in an argument."""
    values: list[Value] = []
    map_leaves(argument, lambda leaf: values.append(leaf) if _is_value(leaf) else None)
    return values


def moves(value: Any) -> bool:
    """Whether a value has a response other than zero."""
    return isinstance(value, Response) and value.map is not None


def joint(call: Call, data: Iterable[str], sums: bool = False, **overrides: Any) -> Any:
    """The rule of operations that are linear in the arguments `data` together: apply them to each direction of `R`.

    Args:
        call: all its other arguments must be constants.
        data: names of the arguments; constants among them count as 0.
        sums: whether terms of both signs are added, so that what they cancel to must be compared with their size.
        overrides: arguments to use instead of the call's.

    Raises:
        NoResponse: if another argument varies with the input.
    """
    data = set(data)
    for name, argument in call.arguments.items():
        if name not in data and name not in overrides and not all(isinstance(v, Constant) for v in leaves(argument)):
            raise NoResponse(f"{call.name} of {{value}}, where '{name}' depends on the input", CENTER)

    def direction(index: int, magnitude: bool) -> list[Tensor]:
        def replace(name: str, value: Value) -> Tensor:
            if name not in data:
                assert isinstance(value, Constant)
                return value.tensor.abs() if magnitude and value.tensor.is_floating_point() else value.tensor
            if isinstance(value, Response) and value.map is not None:
                moved = full(value)[index]
                # Where elements share memory, as along an axis that was expanded, some operations of torch go wrong.
                moved = moved if call.op.is_view else moved.contiguous()
                return moved.abs() if magnitude else moved
            return _zeros(value) if call.op.is_view else _zeros(value).contiguous()

        result = call.run(replace, **overrides)
        return list(result) if isinstance(result, tuple | list) else [result]

    def stacked(magnitude: bool) -> list[Tensor]:
        rows = [direction(index, magnitude) for index in range(call.space.directions)]
        return [_stack(column) for column in zip(*rows, strict=True)]

    exact = stacked(False)
    if sums:
        exact = [settle(e, size, call.space) for e, size in zip(exact, stacked(True), strict=True)]
    if isinstance(call.shapes, list):
        return [call.wrap(e, shape) for e, shape in zip(exact, call.shapes, strict=True)]
    return call.wrap(exact[0])


def keep_largest(call: Call, data: Iterable[str], why: str, instead: str) -> Any:
    """The rule of operations that choose among elements by size: they keep `R` where all candidates have the same.

    The largest of equal responses is the smallest, so the operation on `R` is compared with that on `-R`. Outputs after
    the first are positions, which do not move.
    """
    data = set(data)

    def chosen(sign: float, index: int) -> Tensor:
        def replace(name: str, value: Value) -> Tensor:
            if isinstance(value, Constant) and name not in data:
                return value.tensor
            if isinstance(value, Response) and value.map is not None and name in data:
                return sign * full(value)[index].contiguous()
            if name in data:
                return _zeros(value).contiguous()
            raise NoResponse(why, instead)

        result = call.run(replace)
        return sign * (result[0] if isinstance(result, tuple | list) else result)

    directions = range(call.space.directions)
    largest, smallest = (torch.stack([chosen(sign, index) for index in directions]) for sign in (1.0, -1.0))
    if not equal(largest, smallest, call.space):
        raise NoResponse(why, instead)
    return call.first(largest)


def _stack(rows: tuple[Tensor, ...]) -> Tensor:
    """`torch.stack`, as a view where all rows are views of one tensor: axes along which nothing varies stay unread."""
    first, second = rows[0], rows[min(1, len(rows) - 1)]
    step, storage = second.storage_offset() - first.storage_offset(), first.untyped_storage().data_ptr()
    alike = all(
        row.untyped_storage().data_ptr() == storage
        and row.stride() == first.stride()
        and row.storage_offset() == first.storage_offset() + index * step
        for index, row in enumerate(rows)
    )
    if not alike or step < 0:
        return torch.stack(rows)
    return first.as_strided((len(rows), *first.shape), (step, *first.stride()), first.storage_offset())


def _zeros(value: Value) -> Tensor:
    """What a constant or an invariant value adds to a response."""
    assert isinstance(value, Constant | Response)
    return torch.zeros((), dtype=torch.float64).expand(value.shape)


def _is_value(leaf: Any) -> bool:
    return not isinstance(leaf, torch.Tensor) and isinstance(leaf, Value)
