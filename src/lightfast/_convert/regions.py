"""Which operations stay plain: what feeds a product of two values, such as the scores of attention or a gate."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from math import prod
from operator import getitem
from typing import Any

from torch import Tensor, fx

from lightfast._convert.nodes import operation, stack_of

_GATED = ("mul", "div", "addcmul")
_PRODUCTS = ("matmul", "bmm", "mm", "baddbmm", "einsum", "scaled_dot_product_attention")
_BOUNDED = ("sigmoid", "hardsigmoid", "softmax", "tanh", "hardtanh", "clamp", "relu6")
_SHAPE = {"view", "reshape", "unflatten", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "clone"}
_SPLIT = {"split", "split_with_sizes", "chunk", "unbind", "select"}
_LAYERS = ("linear", "conv1d", "conv2d", "conv3d")
_FAR = 32
"""How many operations before a product are looked at for a softmax."""


def varying_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The tensors that depend on an input of the network."""
    varying: set[fx.Node] = set()
    for node in graph.nodes:
        depends = any(argument in varying for argument in node.all_input_nodes) and operation(node) != "sym_size"
        if node.op == "placeholder" or depends:
            varying.add(node)
    return varying


def split_layers(graph: fx.Graph) -> set[fx.Node]:
    """The layers whose features are split later on, into parts that should all have features of every group."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if operation(node) not in (_SPLIT | {"slice", "narrow"}) - {"select"}:
            continue
        source = node.all_input_nodes[0]
        dim = node.args[1] if operation(node) in ("slice", "narrow", "unbind") and len(node.args) > 1 else None
        if dim is None:
            dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        size = source.meta["val"].shape[dim]
        pending, seen = [source], set()
        while pending:
            current = pending.pop()
            if current in seen or not isinstance(current.meta.get("val"), Tensor) or current.op == "get_attr":
                continue
            seen.add(current)
            if operation(current) not in _LAYERS:
                pending += current.all_input_nodes
            elif current.meta["val"].shape[-1 if operation(current) == "linear" else 1] == size:
                found.add(current)
    return found


def head_widths(graph: fx.Graph) -> dict[fx.Node, int]:
    """Layers whose features are viewed as heads of some features each, with that number.

    If all heads have their groups in the same order, the view keeps them apart: they are along one of its axes.
    """
    widths: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if operation(node) not in ("view", "reshape", "unflatten"):
            continue
        source = layer = node.all_input_nodes[0]
        while operation(layer) in ("batch_norm", "layer_norm", "contiguous", "clone"):
            layer = layer.all_input_nodes[0]
        if operation(layer) not in _LAYERS:
            continue
        before, after = source.meta["val"].shape, node.meta["val"].shape
        axis = len(before) - 1 if operation(layer) == "linear" else 1
        ends = [end for end in range(axis + 2, len(after) + 1) if prod(after[axis:end]) == before[axis]]
        if before[:axis] == after[:axis] and ends:
            widths[layer] = after[ends[-1] - 1]
    return widths


def plain_nodes(graph: fx.Graph, keep: Iterable[str]) -> set[fx.Node]:
    """The nodes to leave as they are, on centered inputs.

    Where two values that both depend on the input are multiplied, neither can carry a response: a product of two
    values that move does not move by a constant. So what serves the product alone (queries, keys and values; a gate) is
    computed from the centered map, in plain layers: from the last of them on, or from the last value that both share.
    """
    varying = varying_nodes(graph)
    parents = _dominators(graph, varying)
    carriers = _carriers(graph, varying)
    plain: set[fx.Node] = set()
    for node in graph.nodes:
        if any(fnmatchcase(path, pattern) for _, path in stack_of(node) for pattern in keep):
            plain.add(node)
        operands = list(dict.fromkeys(a for a in node.all_input_nodes if a in varying))
        name = operation(node)
        if len(operands) < 2 or name not in _GATED + _PRODUCTS:
            continue
        stop = _common(operands, parents)
        averaged = _averaged(node, name, operands)
        if averaged is not None:
            # Weights that sum to 1 average the values, so that these can carry the offset; the weights cannot.
            plain |= _serving([operand for operand in operands if operand is not averaged], node, stop)
        elif name in _PRODUCTS:
            joint = _joint_layer(stop)
            joint = [] if joint and joint[-1] in carriers else joint
            stop = joint[-1].all_input_nodes[0] if joint else stop
            plain |= _serving(operands, node, stop) | {node, *joint}
        else:
            plain |= _serving([_gate(operands)], node, stop)
    return plain


def _averaged(product: fx.Node, name: str, operands: list[fx.Node]) -> fx.Node | None:
    """The values of attention: what a product averages, with weights that come from a softmax; None if it does not."""
    if name == "scaled_dot_product_attention":
        value = product.args[2]
    elif name in ("matmul", "bmm") and len(operands) == 2 and _is_softmax(product.args[0]):
        value = product.args[1]
    else:
        return None
    return value if isinstance(value, fx.Node) and value in operands and _own_layer(value) is not None else None


def _carriers(graph: fx.Graph, varying: set[fx.Node]) -> set[fx.Node]:
    """Layers that make queries, keys and values at once, of which the values pass another layer: MViT pools them."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = _averaged(node, operation(node), [a for a in node.all_input_nodes if a in varying])
        own = None if value is None else _own_layer(value)
        source = None if own is None else own.all_input_nodes[0]
        while source is not None and (operation(source) in _SHAPE | _SPLIT | {"slice"} or source.target is getitem):
            source = source.all_input_nodes[0]
        if source is not None and operation(source) in _LAYERS:
            found.add(source)
    return found


def _is_softmax(weights: Any) -> bool:
    """Whether a value was made of a softmax by sums and products: gated, normalized again, or dropped out."""
    pending, steps = [weights], 0
    while pending and steps < _FAR:
        node, steps = pending.pop(0), steps + 1
        if not isinstance(node, fx.Node):
            continue
        if operation(node) in ("softmax", "_softmax"):
            return True
        if operation(node) in _SHAPE | {"dropout", "to", "expand", "add", "sub", "mul", "div", "sum"}:
            pending += node.all_input_nodes
    return False


def _own_layer(value: fx.Node) -> fx.Node | None:
    """The layer that a value comes from, if that makes nothing else, such as queries and keys."""
    while operation(value) in _SHAPE | {"batch_norm", "layer_norm", "cat"}:
        # Of tokens that are joined, the last are those of positions.
        value = value.all_input_nodes[-1 if operation(value) == "cat" else 0]
    return value if operation(value) in _LAYERS else None


def _gate(operands: list[fx.Node]) -> fx.Node:
    """Of the factors of a product, the gate: the smaller, else the one that is bounded, else the later."""
    sizes = [_size(operand) for operand in operands]
    if len(set(sizes)) > 1:
        return operands[sizes.index(min(sizes))]
    return next((operand for operand in operands if operation(operand) in _BOUNDED), operands[-1])


def _joint_layer(node: fx.Node | None) -> list[fx.Node]:
    """The way back from a value to the one layer that makes queries, keys and values at once, if it comes from one."""
    chain: list[fx.Node] = []
    splits = False
    while node is not None and (operation(node) in _SHAPE | _SPLIT or node.target is getitem):
        chain.append(node)
        source = node.all_input_nodes[0]
        widens = _rank(node) > _rank(source) and operation(node) in ("view", "reshape", "unflatten")
        splits = splits or widens or operation(node) in _SPLIT
        node = source
    if node is None or not splits or operation(node) not in _LAYERS:
        return []
    return [*chain, node]


def _rank(node: fx.Node) -> int:
    recorded = node.meta.get("val")
    return recorded.dim() if isinstance(recorded, Tensor) else 0


def _size(node: fx.Node) -> int:
    recorded = node.meta.get("val")
    return recorded.numel() if isinstance(recorded, Tensor) else 0


def _serving(starts: list[fx.Node], product: fx.Node, stop: fx.Node | None) -> set[fx.Node]:
    """What leads to `starts` and nowhere but to the product, not going back beyond `stop`.

    Nor beyond the layers that make queries, keys and gates: those before them work on maps.
    """
    serving: set[fx.Node] = set()
    pending = list(starts)
    while pending:
        node = pending.pop(0)
        if node is stop or node in serving or node.op not in ("call_function", "call_module"):
            continue
        if all(user is product or user in serving for user in node.users):
            serving.add(node)
            pending += [] if operation(node) in _LAYERS else node.all_input_nodes
    return serving


def _dominators(graph: fx.Graph, varying: set[fx.Node]) -> dict[fx.Node, fx.Node | None]:
    """The immediate dominator of each varying node: the last value that every path from the inputs passes."""
    parents: dict[fx.Node, fx.Node | None] = {}
    for node in graph.nodes:
        if node in varying:
            operands = [argument for argument in node.all_input_nodes if argument in varying]
            parents[node] = _common(operands, parents) if operands else None
    return parents


def _common(nodes: list[fx.Node], parents: dict[fx.Node, fx.Node | None]) -> fx.Node | None:
    """The last value that all paths from the inputs to any of the nodes pass."""
    chains = []
    for node in nodes:
        chain, current = [], node
        while current is not None:
            chain.append(current)
            current = parents[current]
        chains.append(chain)
    shared = set(chains[0]).intersection(*map(set, chains[1:]))
    return next((node for node in chains[0] if node in shared), None)
