"""Writes into tensors, as operations that give new ones.

The graph is walked through in order. What shares memory is known from the storages of the values that torch.export has
recorded. A write makes a new tensor, which is put back into the whole that it is a part of; whoever reads another view
of that memory later reads a view of the new whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lightfast._convert.nodes import operation, stack_of
from lightfast._response.interpreter import concrete

_PARTS = {"slice": "slice_scatter", "select": "select_scatter"}
"""Views of a part of a tensor, and what puts a part into the whole."""

_EXCHANGES = ("transpose", "swapaxes", "swapdims", "t", "mT")
"""Views that are undone by doing them once more."""

_RESHAPED = ("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze")
"""Views of the same elements in the same order."""

_COPIES = ("lift_fresh_copy", "channel_shuffle")
"""Operations that always copy, although the values recorded may share memory."""


class SharedWrite(ValueError):
    """An operation writes into a part of a tensor that others share, in a way that is not known here."""


def make_pure(graph: fx.Graph, training: bool) -> None:
    """Replace operations that write into a tensor by those that give a new one, and drop checks and counters."""
    memory = _Memory(graph)
    _drop_counters(graph, memory, training)
    for node in list(graph.nodes):
        memory.read(node)
        target = node.target
        if not isinstance(target, OpOverload):
            continue
        if torch.Tag.inplace_view in target.tags:
            memory.reshape_in_place(node)
        elif _writes(node):
            memory.write(node)
        elif not target._schema.returns:
            # Checks of shapes.
            graph.erase_node(node)
        elif operation(node) in ("reshape_as", "view_as"):
            _write_shape(graph, node, torch.ops.aten.reshape.default)


def _writes(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and target._schema.is_mutable and torch.Tag.inplace_view not in target.tags


def _drop_counters(graph: fx.Graph, memory: _Memory, training: bool) -> None:
    """Take out writes into buffers that nothing else reads, such as counters of batches, which layers keep themselves.

    Raises:
        ValueError: a buffer is read and written, or holds statistics that the graph would not keep in training.
    """
    writes = {node: held for node in graph.nodes if _writes(node) and (held := memory.held(_written(node)))}
    for node, held in writes.items():
        if _comes_to_output(memory, held):
            raise ValueError(f"the network reads {held[0].target}, and writes into it with {operation(node)}")
        if training and _written(node).meta["val"].is_floating_point():
            raise ValueError(f"the network keeps {held[0].target} by itself in training, with {operation(node)}")
    for node in writes:
        node.replace_all_uses_with(_written(node))
        graph.erase_node(node)


def _comes_to_output(memory: _Memory, sources: Iterable[fx.Node]) -> bool:
    """Whether anything but what is written back into the same memory is made of the sources."""
    pending = [*sources]
    seen = set(pending)
    while pending:
        node = pending.pop()
        reached = {*node.users, *(memory.views(_written(node)) if _writes(node) else ())}
        if any(other.op == "output" for other in reached):
            return True
        pending += reached - seen
        seen |= reached
    return False


def _written(node: fx.Node) -> fx.Node:
    """The one tensor that an operation writes into, its first argument."""
    assert isinstance(node.target, OpOverload)
    aliases = [argument.alias_info for argument in node.target._schema.arguments]
    into = [place for place, alias in enumerate(aliases) if alias is not None and alias.is_write]
    written = node.args[0] if node.args else None
    if into != [0] or not isinstance(written, fx.Node) or not _values(written):
        raise _refusal(node)
    return written


class _Memory:
    """What stands for each view of memory that has been written into, while a graph is walked through in order.

    Args:
        graph: with values recorded, as torch.export gives it.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._memories: dict[fx.Node, set[fx.Node]] = {}
        self._views: dict[fx.Node, list[fx.Node]] = {}
        recorded: dict[fx.Node, set[int]] = {}
        first: dict[int, fx.Node] = {}
        for node in graph.nodes:
            recorded[node] = {value.untyped_storage()._cdata for value in _values(node)}
            sources = [source for source in node.all_input_nodes if recorded[source] & recorded[node]]
            if _is_off(node):
                # It gives what it is given, which is not recorded.
                sources = node.all_input_nodes
            if operation(node) in _COPIES:
                memories = {node}
            elif sources:
                memories = {memory for source in sources for memory in self._memories[source]}
            else:
                memories = {first.setdefault(storage, node) for storage in recorded[node]}
            self._memories[node] = memories
            for memory in memories:
                self._views.setdefault(memory, []).append(node)
        self._writes = dict.fromkeys(self._views, 0)
        self._origins: dict[fx.Node, fx.Node] = {}
        self._latest: dict[fx.Node, tuple[int, fx.Node]] = {}

    def views(self, node: fx.Node) -> list[fx.Node]:
        """All nodes that share memory with a node, which is one of them."""
        return [view for memory in self._memories[node] for view in self._views[memory]]

    def held(self, node: fx.Node) -> list[fx.Node]:
        """The parameters and buffers that share memory with a node."""
        return [view for view in self.views(node) if view.op == "get_attr"]

    def read(self, node: fx.Node) -> None:
        """Let a node take what all writes before it have made of its inputs."""
        node.args, node.kwargs = (self._mapped(part, node) for part in (node.args, node.kwargs))
        self._latest[node] = (self._age(node), node)

    def _mapped(self, arguments: Any, before: fx.Node) -> Any:
        return fx.map_arg(arguments, lambda input: self.latest(input, before))

    def latest(self, view: fx.Node, before: fx.Node) -> fx.Node:
        """What stands for a view after all writes so far; made in front of the node that wants it, if need be."""
        view = self._origins.get(view, view)
        age, stands = self._latest[view]
        if age != self._age(view):
            if not self._sources(view) or not _is_repeatable(view):
                raise _refusal(view)
            # Arguments that only give a size stay as they were.
            inputs = {source: self.latest(source, before) for source in self._sources(view)}
            with self.graph.inserting_before(before):
                stands = self.graph.node_copy(view, lambda input: inputs.get(input, input))
            self._stand_for(view, stands)
        return stands

    def write(self, node: fx.Node) -> None:
        """Let an operation give a new tensor instead of writing into its first argument."""
        written = self._original(_written(node))
        way = [written]
        while sources := self._sources(way[-1]):
            way.append(self._original(sources[0]))
        # Otherwise whoever reads the whole, or another view of it, is refused.
        known = all(_can_be_undone(view) for view in way[:-1]) and self._latest[way[-1]][0] == self._age(way[-1])
        wholes = [self.latest(view, node) for view in way[1:]] if known else []
        part = _give_new(self.graph, node)
        for memory in self._memories[written]:
            self._writes[memory] += 1
        self._origins[node] = written
        self._stand_for(written, part)
        for view, source, whole in zip(way, way[1:], wholes, strict=False):
            part = _put_back(self.graph, view, whole, part)
            self._stand_for(source, part)

    def reshape_in_place(self, node: fx.Node) -> None:
        """Let an operation that changes the shape of a tensor itself give a view, which is what later readers take."""
        assert isinstance(node.target, OpOverload)
        twin = _pure_twin(node.target)
        if twin is None or not any(argument.alias_info for argument in twin._schema.returns):
            raise _refusal(node)
        node.target = twin

    def _original(self, node: fx.Node) -> fx.Node:
        return self._origins.get(node, node)

    def _stand_for(self, view: fx.Node, stands: fx.Node) -> None:
        self._latest[view] = (self._age(view), stands)
        if stands is not view:
            self._origins[stands] = view

    def _sources(self, view: fx.Node) -> list[fx.Node]:
        """The inputs whose memory a node shares."""
        inputs = ((node, self._memories.get(self._original(node), set())) for node in view.all_input_nodes)
        return [node for node, memories in inputs if memories & self._memories[view]]

    def _age(self, node: fx.Node) -> int:
        """How many writes there were so far into a node's memory."""
        return sum(self._writes[memory] for memory in self._memories[node])


def _values(node: fx.Node) -> list[Tensor]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout == torch.strided]


def _is_off(node: fx.Node) -> bool:
    """Whether a node is dropout that gives its input itself."""
    return operation(node) == "dropout" and not (node.args[1] and node.args[2])


def _is_repeatable(view: fx.Node) -> bool:
    """Whether an operation gives the same view of a tensor that was made otherwise."""
    if view.op != "call_function" or operation(view) == "as_strided":
        return False
    return _is_off(view) or torch.Tag.nondeterministic_seeded not in getattr(view.target, "tags", ())


def _refusal(node: fx.Node) -> SharedWrite:
    where = stack_of(node)[-1][1] if stack_of(node) else ""
    return SharedWrite(
        f"{where or 'the network'} writes into memory that {operation(node) or node.name} shares: write it without "
        "side effects"
    )


def _give_new(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """What another operation writes, as a new tensor of the same type."""
    name, written = operation(node), node.args[0]
    assert isinstance(written, fx.Node) and isinstance(node.target, OpOverload)
    recorded: Tensor = written.meta["val"]
    if name == "copy_":
        source: Any = node.args[1]
        if source.meta["val"].dtype != recorded.dtype:
            source = _as_type(graph, node, source, recorded.dtype)
        node.args, node.kwargs = (source, written), {}
        _write_shape(graph, node, torch.ops.aten.expand.default)
        return node
    if name == "zero_":
        node.target, node.args = torch.ops.aten.fill.Scalar, (written, 0)
        return node
    twin = _pure_twin(node.target)
    if twin is None:
        raise _refusal(node)
    node.target = twin
    if (given := _type_given(node)) == recorded.dtype:
        return node
    with graph.inserting_after(node):
        cast = graph.call_function(torch.ops.aten.to.dtype, (node, recorded.dtype))
    cast.meta, node.meta = dict(node.meta), {**node.meta, "val": recorded.to(given)}
    return cast


def _type_given(node: fx.Node) -> torch.dtype:
    """The type of what an operation gives, which one that writes in place brings to the type of what it writes into."""

    def without_values(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return torch.empty([concrete(size) for size in leaf.shape], dtype=leaf.dtype, device="meta")
        return leaf.node.hint if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) else leaf

    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: pytree.tree_map(without_values, n.meta.get("val")))
    operator: Any = node.target
    try:
        return operator(*args, **kwargs).dtype
    except Exception as error:
        raise _refusal(node) from error


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


def _can_be_undone(view: fx.Node) -> bool:
    """Whether it is known how to make a whole of what a view of it has become."""
    source = view.all_input_nodes[0].meta["val"]
    if not isinstance(source, Tensor) or source.dtype != view.meta["val"].dtype:
        return False
    return operation(view) in (*_PARTS, *_EXCHANGES, *_RESHAPED, "permute") or _is_the_same(view)


def _is_the_same(view: fx.Node) -> bool:
    """Whether a view is its source, as `contiguous` or `to` give it where there is nothing to do."""

    def window(tensor: Tensor) -> Any:
        bits = (tensor.is_conj(), tensor.is_neg())
        return [tensor.dtype, bits, tensor.storage_offset(), *tensor.shape, *tensor.stride()]

    return _is_off(view) or window(view.meta["val"]) == window(view.all_input_nodes[0].meta["val"])


def _put_back(graph: fx.Graph, view: fx.Node, whole: fx.Node, part: fx.Node) -> fx.Node:
    """A whole of which a view has become `part`, which the nodes after that may use."""
    name = operation(view)
    if _is_the_same(view):
        return part
    new: Any
    with graph.inserting_after(part):
        if name in _PARTS:
            target = getattr(torch.ops.aten, _PARTS[name]).default
            new = graph.call_function(target, (whole, part, *view.args[1:]), view.kwargs)
        elif name in _EXCHANGES:
            new = graph.call_function(view.target, (part, *view.args[1:]))  # pyright: ignore[reportArgumentType]
        elif name == "permute":
            order: Any = view.args[1]
            rank = len(order)
            back = sorted(range(rank), key=lambda axis: order[axis] % rank)
            new = graph.call_function(torch.ops.aten.permute.default, (part, back))
        else:
            new = graph.call_function(torch.ops.aten.reshape.default, (part, whole))
    new.meta = dict(whole.meta)
    if name in _RESHAPED:
        _write_shape(graph, new, torch.ops.aten.reshape.default)
    return new


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
