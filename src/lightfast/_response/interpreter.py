"""Carrying responses through a graph of ATen operations."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator, OpOverload

from lightfast._response.call import in_double, leaves, map_leaves, moves
from lightfast._response.rules import apply
from lightfast._response.value import Constant, Lost, NoResponse, Response, Space

_SHAPE_ALONE = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
"""Operations that read the shape of their argument, and not its value."""

DRAWS_BY_SHAPE = ("rand_like", "randn_like", "randint_like")
"""Operations that read the shape of their argument, and draw at random."""


@dataclass(frozen=True)
class Step:
    """An operation of the graph: what it computed, and why it has no response if it lost one."""

    node: fx.Node
    value: Any
    reason: NoResponse | None = None


def interpret(graph: fx.Graph, inputs: Mapping[str, Any], space: Space, modules: Any = None) -> tuple[list[Step], Any]:
    """The value of each node of a functional ATen graph, and that of the output.

    Operations on constants are computed in float64. Where an operation loses the response, its output and all that
    depends on it is :class:`Lost`.

    Args:
        graph: as `torch.export` gives it, after `run_decompositions`.
        inputs: the values of the placeholders, by name.
        space: the offsets that are asked about.
        modules: the module that holds subgraphs.
    """
    known: dict[fx.Node, Any] = {}
    steps: list[Step] = []
    uses = Counter(argument for node in graph.nodes for argument in node.all_input_nodes)
    result = None
    for node in graph.nodes:
        if node.op == "output":
            result = map_leaves(node.args[0], lambda leaf: known[leaf] if isinstance(leaf, fx.Node) else leaf)
            break
        if node.op == "placeholder":
            known[node] = inputs[node.name]
            continue
        if node.op == "get_attr":
            known[node] = _attribute(modules, node.target)
            continue
        step = evaluate(node, known, space)
        steps.append(step)
        known[node] = step.value
        for argument in node.all_input_nodes:
            uses[argument] -= 1
            if not uses[argument] and isinstance(known[argument], Constant):
                del known[argument]
    return steps, result


def constant(tensor: Tensor) -> Constant:
    """A parameter, buffer or constant tensor, for computing with in float64."""
    tensor = tensor.detach().cpu()
    return Constant(tensor.double() if tensor.is_floating_point() else tensor)


def shapes_of(result: Any) -> Any:
    """The shape of an output that export recorded, or a list of those of several."""
    if isinstance(result, tuple | list):
        return [shapes_of(part) for part in result]
    return tuple(map(concrete, result.shape)) if isinstance(result, Tensor) else None


def concrete(size: Any) -> int:
    """A size as a number, where export may have left a symbol for it."""
    return size.node.hint if isinstance(size, torch.SymInt) else int(size)


def evaluate(node: fx.Node, known: dict[fx.Node, Any], space: Space) -> Step:
    def look_up(leaf: Any) -> Any:
        return known[leaf] if isinstance(leaf, fx.Node) else leaf

    args, kwargs = map_leaves(node.args, look_up), map_leaves(node.kwargs, look_up)
    target = node.target
    if target is operator.getitem:
        return Step(node, args[0] if isinstance(args[0], Lost) else args[0][args[1]])
    if isinstance(target, HigherOrderOperator):
        return _region(node, args, space)
    values = leaves([args, kwargs])
    if not isinstance(target, OpOverload):
        if values:
            raise TypeError(f"expected an ATen operation, but the graph holds {target}")
        assert callable(target)
        return Step(node, target(*args, **kwargs))
    name = target._schema.name.removeprefix("aten::")
    if name == "detach_":
        return Step(node, args[0])
    if target._schema.is_mutable and not node.users:
        # Nothing reads the result, so it can only have been written for the next call: a counter of batches.
        return Step(node, None)
    if target._schema.is_mutable:
        reason = NoResponse(
            f"{name}, which writes into a tensor that others may share", "write it without side effects"
        )
        return Step(node, Lost((node.name,)), reason)
    if not target._schema.returns:
        return Step(node, None)
    shapes = shapes_of(node.meta["val"])
    if name in DRAWS_BY_SHAPE:
        return Step(node, Response(shapes))
    if name in _SHAPE_ALONE:
        return Step(node, _compute(target, (_blank(node.args[0]), *args[1:]), kwargs))
    if causes := _causes(values):
        return Step(node, Lost(causes))
    random = torch.Tag.nondeterministic_seeded in target.tags
    if not random and all(isinstance(value, Constant) for value in values):
        return Step(node, _compute(target, *_tensors(args, kwargs)))
    try:
        value = apply(target, args, kwargs, shapes, space)
        _require_real(node, value)
    except NoResponse as reason:
        return Step(node, Lost((node.name,)), reason)
    return Step(node, value)


def _region(node: fx.Node, args: tuple[Any, ...], space: Space) -> Step:
    """A block of the graph, such as `torch.no_grad` makes; any other higher-order operation needs invariant inputs."""
    bodies = [index for index, argument in enumerate(args) if isinstance(argument, fx.GraphModule)]
    values = leaves([argument for argument in args if not isinstance(argument, fx.GraphModule)])
    if causes := _causes(values):
        return Step(node, Lost(causes))
    pure = not any(_writes(inner) for index in bodies for inner in args[index].graph.nodes)
    if str(node.target).startswith("wrap_") and len(bodies) == 1 and pure:
        body, rest = args[bodies[0]], args[bodies[0] + 1 :]
        names = [inner.name for inner in body.graph.nodes if inner.op == "placeholder"]
        steps, result = interpret(body.graph, dict(zip(names, rest, strict=True)), space, body)
        reasons = [step.reason for step in steps if step.reason is not None]
        return Step(node, Lost((node.name,)), reasons[0]) if reasons else Step(node, result)
    if any(map(moves, values)) or not pure:
        reason = NoResponse(f"{node.target} of {{value}}", "write it without control flow")
        return Step(node, Lost((node.name,)), reason)
    shapes = shapes_of(node.meta["val"])
    return Step(node, [*map(Response, shapes)] if isinstance(shapes, list) else Response(shapes))


def _causes(values: Iterable[Any]) -> tuple[str, ...]:
    """The operations that lost the response of any of these values, each once."""
    return tuple(dict.fromkeys(cause for value in values if isinstance(value, Lost) for cause in value.causes))


def _writes(node: fx.Node) -> bool:
    """Whether an operation writes into a tensor, or may, since it holds operations of its own."""
    if isinstance(node.target, HigherOrderOperator):
        return True
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _require_real(node: fx.Node, value: Any) -> None:
    """Raise if a value with response is held in numbers that cannot follow an offset."""
    recorded = node.meta["val"]
    pairs = zip(value, recorded, strict=True) if isinstance(value, list) else [(value, recorded)]
    for part, tensor in pairs:
        if moves(part) and not tensor.dtype.is_floating_point:
            raise NoResponse(f"{{value}} turned into {tensor.dtype}", "keep it in floating point")


def _compute(target: OpOverload, args: Any, kwargs: Any) -> Any:
    """The operation on real tensors, in float64."""
    result = target(*in_double(args), **in_double(kwargs))
    if isinstance(result, Tensor):
        return constant(result)
    return [constant(part) for part in result] if isinstance(result, tuple | list) else result


def _tensors(*arguments: Any) -> Iterable[Any]:
    return map_leaves(arguments, lambda leaf: leaf.tensor if isinstance(leaf, Constant) else leaf)


def _blank(node: Any) -> Tensor:
    """A tensor of the shape and type that export recorded."""
    recorded = node.meta["val"]
    return torch.zeros((), dtype=recorded.dtype).expand(shapes_of(recorded))


def _attribute(module: Any, path: Any) -> Any:
    for name in str(path).split("."):
        module = getattr(module, name)
    return constant(module) if isinstance(module, Tensor) else module
