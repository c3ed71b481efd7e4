"""Writes into tensors, as operations that give new ones."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from lightfast._convert.nodes import operation, stack_of

_VIEWS = (
    *("view", "select", "slice", "transpose", "permute", "expand", "squeeze", "unsqueeze", "narrow", "t", "detach"),
    *("reshape", "flatten", "unflatten", "contiguous", "to", "split", "split_with_sizes", "chunk", "unbind", "alias"),
    *("view_as", "reshape_as", "expand_as", "movedim", "swapaxes", "diagonal", "unfold", "real", "imag"),
)
"""Operations whose output may share memory with what they are given."""

_PARTS = {"slice": "slice_scatter", "select": "select_scatter"}
"""Views of a part of a tensor, and what puts a part into the whole."""

_TURNED = ("transpose", "t", "permute", "view", "squeeze", "unsqueeze", "detach", "alias")
"""Views of the whole of a tensor, which surely share its memory."""

_SEVERAL = ("split", "split_with_sizes", "chunk", "unbind")
"""Operations that give several views at once."""


class SharedWrite(ValueError):
    """An operation writes into a part of a tensor that others share, in a way that is not known here."""


def make_pure(graph: fx.Graph) -> None:
    """Replace operations that write into a tensor by those that give a new one, and drop checks and counters."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload):
            continue
        counts = target._schema.is_mutable and node.args[0].op == "get_attr"
        if counts and _is_read(graph, node):
            raise ValueError(f"the network reads {node.args[0].target}, and writes into it with {operation(node)}")
        if counts or not target._schema.returns:
            # Checks of shapes, and counters of batches, which the layers keep themselves.
            node.replace_all_uses_with(node.args[0]) if node.users else None
            graph.erase_node(node)
        elif target._schema.is_mutable:
            _replace_in_place(graph, node, order)
        elif operation(node) in ("reshape_as", "view_as"):
            _write_shape(graph, node, torch.ops.aten.reshape.default)


def _is_read(graph: fx.Graph, write: fx.Node) -> bool:
    """Whether something has a use for the buffer that is written into, or for what the write gives."""
    buffer = next(iter(write.all_input_nodes)).target
    same = [node for node in graph.nodes if node.op == "get_attr" and node.target == buffer]
    return bool(write.users) or any(user is not write for node in same for user in node.users)


def _write_shape(graph: fx.Graph, node: fx.Node, target: OpOverload) -> None:
    """Reshaping or expanding with the sizes themselves, in place of a tensor that has them."""
    value, like = node.args
    assert isinstance(like, fx.Node)
    sizes: list[Any] = list(like.meta["val"].shape)
    with graph.inserting_before(node):
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt):
                sizes[axis] = graph.call_function(torch.ops.aten.sym_size.int, (like, axis))
                sizes[axis].meta["val"] = size
    node.target, node.args = target, (value, sizes)


def _replace_in_place(graph: fx.Graph, node: fx.Node, order: dict[fx.Node, int]) -> None:
    """Let the operation give a new tensor, which all that come later use, and views of what it is a part of."""
    written, place = node.args[0], order[node]
    assert isinstance(written, fx.Node)

    def is_later(user: fx.Node) -> bool:
        return order.get(user, -1) > place

    others = _sharing(written) - {written}
    if any(other.op == "get_attr" for other in others):
        raise _refusal(node)
    renewed = {written: node}
    shared = any(map(is_later, (user for other in others for user in other.users)))
    way = _way_to_whole(written) if shared else []
    _give_new(graph, node)
    for view in way:
        whole = view.all_input_nodes[0]
        renewed[whole] = _put_back(graph, view, whole, renewed[view])
    if shared:
        after = renewed[way[-1].all_input_nodes[0]] if way else node
        for view in [view for view in graph.nodes if view in others and view not in renewed and not is_later(view)]:
            if operation(view) not in (*_PARTS, *_TURNED, *_SEVERAL) and view.target is not getitem:
                if any(map(is_later, _users_of_views(view))):
                    raise _refusal(node)
                continue
            source = view.all_input_nodes[0]
            if source in renewed:
                with graph.inserting_after(after):
                    after = graph.node_copy(view, lambda n: renewed.get(n, n))
                renewed[view] = after
    for old, new in renewed.items():
        old.replace_all_uses_with(new, delete_user_cb=is_later)


def _refusal(node: fx.Node) -> SharedWrite:
    where = stack_of(node)[-1][1] if stack_of(node) else "the network"
    return SharedWrite(
        f"{where} writes with {operation(node)} into a part of a tensor, which others may share: write it without side "
        "effects"
    )


def _give_new(graph: fx.Graph, node: fx.Node) -> None:
    """The operation that gives what another writes."""
    name, written = operation(node), node.args[0]
    assert isinstance(written, fx.Node) and isinstance(node.target, OpOverload)
    if name == "zero_":
        node.target, node.args = torch.ops.aten.fill.Scalar, (written, 0)
    elif name != "copy_":
        twin = _pure_twin(node.target)
        if twin is None:
            raise _refusal(node)
        _keep_type(graph, node, written.meta["val"].dtype)
        node.target = twin
    else:
        source: Any = node.args[1]
        here, there = written.meta["val"], source.meta["val"]
        if here.dtype != there.dtype:
            source = _as_type(graph, node, source, here.dtype)
        node.args, node.kwargs = (source, written), {}
        _write_shape(graph, node, torch.ops.aten.expand.default)


def _keep_type(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    """Bring what is written to the type of what it is written into, which a new tensor would not keep."""
    for source in node.all_input_nodes:
        there = source.meta.get("val")
        if isinstance(there, torch.Tensor) and there.is_floating_point() and there.dtype != dtype:
            node.replace_input_with(source, _as_type(graph, node, source, dtype))


def _as_type(graph: fx.Graph, before: fx.Node, source: fx.Node, dtype: torch.dtype) -> fx.Node:
    with graph.inserting_before(before):
        cast = graph.call_function(torch.ops.aten.to.dtype, (source, dtype))
    cast.meta = {**before.meta, "val": source.meta["val"].to(dtype)}
    return cast


def _pure_twin(writes: OpOverload) -> OpOverload | None:
    """The operation that takes the same and writes nothing; names tell little, `pow.Scalar` is of a scalar base."""
    packet = getattr(torch.ops.aten, writes._opname.removesuffix("_"), None)
    twins = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    return next((twin for twin in twins if _takes(twin) == _takes(writes)), None)


def _takes(function: OpOverload) -> list[str]:
    return [str(argument.type) for argument in function._schema.arguments]


def _way_to_whole(view: fx.Node) -> list[fx.Node]:
    """The views on the way from one to the tensor that it is a part of, the last first."""
    way: list[fx.Node] = []
    while operation(view) in _VIEWS or view.target is getitem:
        way.append(view)
        view = view.all_input_nodes[0]
    return way


def _put_back(graph: fx.Graph, view: fx.Node, whole: fx.Node, part: fx.Node) -> fx.Node:
    """A whole of which a view has become `part`, which the nodes after that may use."""
    name = operation(view)
    new: Any
    with graph.inserting_after(part):
        if name in _PARTS:
            target = getattr(torch.ops.aten, _PARTS[name]).default
            new = graph.call_function(target, (whole, part, *view.args[1:]), view.kwargs)
        elif name in ("detach", "alias"):
            new = graph.call_function(torch.ops.aten.alias.default, (part,))
        elif name in ("transpose", "t"):
            new = graph.call_function(view.target, (part, *view.args[1:]))  # pyright: ignore[reportArgumentType]
        elif name == "permute":
            order: Any = view.args[1]
            rank = len(order)
            back = sorted(range(rank), key=lambda axis: order[axis] % rank)
            new = graph.call_function(torch.ops.aten.permute.default, (part, back))
        elif name in _TURNED:
            new = graph.call_function(torch.ops.aten.reshape.default, (part, whole))
        else:
            raise _refusal(part)
    new.meta = dict(whole.meta)
    if name in ("view", "squeeze", "unsqueeze"):
        _write_shape(graph, new, torch.ops.aten.reshape.default)
    return new


def _users_of_views(node: fx.Node) -> set[fx.Node]:
    """Whatever uses a node, or views of it."""
    found, pending = set(node.users), [node]
    while pending:
        for user in pending.pop().users:
            if operation(user) in _VIEWS or user.target is getitem:
                pending.append(user)
                found.update(user.users)
    return found


def _sharing(node: fx.Node) -> set[fx.Node]:
    """The nodes that may share memory with a node: what it is a view of, and all views of that."""
    while operation(node) in _VIEWS or node.target is getitem:
        node = node.all_input_nodes[0]
    found, pending = {node}, [node]
    while pending:
        views = [user for user in pending.pop().users if operation(user) in _VIEWS or user.target is getitem]
        pending += [view for view in views if view not in found]
        found.update(views)
    return found
