"""The state of the walk that converts a network: what each value does, and group means taken away and given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, fx
from torch._ops import OpOverload

from lightfast._convert.blocks import Pool, Shift
from lightfast._convert.layers import ACTIVATIONS
from lightfast._convert.modules import Modules
from lightfast._convert.nodes import operation, stack_of, tensor_at
from lightfast._convert.outputs import Decision
from lightfast._convert.regions import head_widths, split_layers, varying_nodes
from lightfast._convert.report import Change, Conversion
from lightfast._groups import Groups
from lightfast._response import NoResponse, Response, Space, apply
from lightfast._response.call import map_leaves
from lightfast._response.interpreter import shapes_of
from lightfast._response.layout import Layout, layout_of
from lightfast.functional import Scope


@dataclass(frozen=True)
class Options:
    """How to convert: see :func:`~lightfast.convert`."""

    weights: Literal["project", "init"]
    padding_mode: str
    scope: Scope


@dataclass(frozen=True)
class Reference:
    """Group means that were taken away from a value, to be given back later."""

    pool: fx.Node
    layout: Layout
    shape: tuple[int, ...]
    order: int

    def fits(self, shape: tuple[int, ...]) -> Layout | None:
        """How a value of this shape is laid out once it has the group means back; None if it has no place for them."""
        images, features = self.layout.images, self.layout.features
        if len(shape) == len(self.shape):
            same = shape[images] == self.shape[images] and shape[features] == self.shape[features]
            return self.layout if same else None
        if len(shape) == 2 and images == 0 and shape == (self.shape[0], self.shape[features]):
            return replace(self.layout, features=1)
        for axis in range(1, len(self.shape)):
            if images == 0 and axis != features and shape == (*self.shape[:axis], *self.shape[axis + 1 :]):
                # An axis of branches or positions was summed over.
                return replace(self.layout, features=features - (axis < features))
        return None

    def resized(self, shape: tuple[int, ...]) -> Layout | None:
        """How a value with the same positions and another number of features can be laid out; None for other values."""
        features = self.layout.features
        if len(shape) != len(self.shape):
            return None
        same = (*shape[:features], *shape[features + 1 :]) == (*self.shape[:features], *self.shape[features + 1 :])
        return self.widened(shape, features) if same else None

    def widened(self, shape: tuple[int, ...], features: int) -> Layout | None:
        """How a value with another number of features can be laid out once it has the group means; None if it cannot.

        It does not move, so that any assignment of its features will do.
        """
        groups = self.layout.groups.count
        if self.layout.images != 0 or shape[0] != self.shape[0] or shape[features] < groups:
            return None
        return replace(self.layout, features=features, groups=Groups.runs(shape[features], groups))


class Walk:
    """Builds the equivariant graph from the plain one, node by node.

    Every value is *equivariant*, or *invariant* and then remembers which group means were taken away on its way, so
    that they can be given back as soon as it has the shape for it.
    """

    def __init__(
        self,
        network: fx.GraphModule,
        lit: Mapping[str, Layout],
        space: Space,
        plain: set[fx.Node],
        decision: Decision,
        leaves: set[str],
        options: Options,
        report: Conversion,
    ) -> None:
        self.network, self.lit, self.space = network, lit, space
        self.plain, self.decision, self.leaves, self.options, self.report = plain, decision, leaves, options, report
        self.modules, self.graph = Modules(options.weights == "project"), fx.Graph()
        self.new: dict[fx.Node, Any] = {}
        self.values: dict[fx.Node, Any] = {}
        self.references: dict[fx.Node, tuple[Reference, ...]] = {}
        self.centered: dict[fx.Node, tuple[fx.Node, Reference]] = {}
        self.varying, self.split = varying_nodes(network.graph), split_layers(network.graph)
        self.heads = head_widths(network.graph)
        self.order = {node: index for index, node in enumerate(network.graph.nodes)}

    # --- group means

    def _still(self, operand: fx.Node, user: fx.Node) -> tuple[Any, tuple[Reference, ...]]:
        """An operand that does not move: itself, or centered; and the group means that were taken away."""
        value = self.values.get(operand)
        if not isinstance(value, Response) or value.map is None:
            return self._node(operand), self.references.get(operand, ())
        centered, reference = self._center(operand, user)
        return centered, (reference,)

    def _center(self, operand: fx.Node, user: fx.Node) -> tuple[fx.Node, Reference]:
        if operand not in self.centered:
            layout = self._layout(operand)
            if layout is None:
                raise ValueError(
                    f"{self._where(user, operation(user))} takes a value that is neither equivariant nor invariant, "
                    "which cannot be centered: name the module that makes it in keep="
                )
            paths = {name: self._path(operand, name) for name in ("pool", "center")}
            if operand.op == "placeholder":
                paths = {name: name for name in paths}
            place = self.modules.place(paths["pool"], Pool(layout.groups, layout.images, layout.features))
            pool = self.graph.call_module(place, (self._node(operand),))
            place = self.modules.place(paths["center"], Shift(layout.groups, -1, layout.images, layout.features))
            centered = self.graph.call_module(place, (self._node(operand), pool))
            centered.meta["val"] = operand.meta["val"]
            reference = Reference(pool, layout, self._shape(operand), len(self.centered))
            self.centered[operand] = (centered, reference)
        return self.centered[operand]

    def _finish(
        self, node: fx.Node, new: fx.Node, references: tuple[Reference, ...], features: int | None = None
    ) -> None:
        """Record an invariant value, after giving back group means if it has the shape for it.

        `features` is the axis of features that are all new, so that any assignment of them will do.
        """
        recorded = node.meta.get("val")
        new.meta.setdefault("val", recorded)
        if not isinstance(recorded, Tensor):
            shapes = shapes_of(recorded)
            self.new[node], self.references[node] = new, references
            self.values[node] = [Response(shape) for shape in shapes] if isinstance(shapes, list) else recorded
            return
        shape = self._shape(node)
        fitting = [(r, layout) for r in references if (layout := r.fits(shape)) is not None]
        if not fitting and node not in self.decision.heads:
            fitting = [(r, layout) for r in references if (layout := r.resized(shape)) is not None]
        if not fitting and features is not None and node not in self.decision.heads:
            fitting = [(r, layout) for r in references if (layout := r.widened(shape, features)) is not None]
        if node in self.plain or not fitting or not recorded.is_floating_point():
            self._set(node, new, Response(shape), references)
            return
        # Those that were taken away last: of attention, the values' own.
        reference, layout = max(fitting, key=lambda fit: fit[0].order)
        place = self.modules.place(self._path(node, "restore"), Shift(layout.groups, 1, layout.images, layout.features))
        shifted = self.graph.call_module(place, (new, reference.pool))
        self._set(node, shifted, layout.response(shape, self.space))

    # --- bookkeeping

    def _derived(self, node: fx.Node, replaced: dict[fx.Node, Response]) -> Any:
        """The response of a node as it is, or None if it has none or one that is neither equivariant nor invariant."""
        assert isinstance(node.target, OpOverload)

        def look_up(leaf: Any) -> Any:
            if not isinstance(leaf, fx.Node):
                return leaf
            return replaced[leaf] if leaf in replaced else self.values[leaf]

        try:
            args, kwargs = map_leaves(node.args, look_up), map_leaves(node.kwargs, look_up)
            value = apply(node.target, args, kwargs, shapes_of(node.meta["val"]), self.space)
        except NoResponse:
            return None
        parts = value if isinstance(value, list) else [value]
        good = all(part.map is None or layout_of(part, self.space) is not None for part in parts)
        return value if good else None

    def _set(self, node: fx.Node, new: fx.Node, value: Response, references: tuple[Reference, ...] = ()) -> None:
        new.meta.setdefault("val", node.meta["val"])
        self.new[node], self.values[node], self.references[node] = new, value, references

    def _node(self, node: fx.Node) -> Any:
        """The new node of an old one; parameters are taken over when they are first used."""
        if node not in self.new:
            path = str(node.target)
            self.modules.take_over(path, self._attribute(path))
            self.new[node] = self.graph.get_attr(path)
        return self.new[node]

    def _layout(self, node: Any) -> Layout | None:
        return layout_of(self.values.get(node), self.space) if isinstance(node, fx.Node) else None

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return shapes_of(node.meta["val"])

    def _attribute(self, path: Any) -> Tensor:
        return tensor_at(self.network, str(path))

    def _parameter(self, node: Any) -> Tensor | None:
        return self._attribute(node.target) if self._is_parameter(node) else None

    def _is_parameter(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and node.op == "get_attr"

    def _path(self, node: fx.Node, name: str) -> str:
        """A readable place for what belongs to a node: inside the module that it comes from."""
        stack = stack_of(node)
        path = stack[-1][1] if stack else ""
        if path in self.leaves:
            return path if name in ACTIVATIONS else f"{path}_{name}"
        return f"{path}.{name}" if path else name

    def _where(self, node: fx.Node, name: str) -> str:
        stack = stack_of(node)
        return (stack[-1][1] if stack else "") or name or "the network"

    def _note(self, path: str, before: str, after: str, why: str) -> None:
        self.report.changes.append(Change(path, before, after, why))

    def _note_kept(self, node: fx.Node, path: str, before: str, why: str) -> None:
        after = "plain, on the centered input" if self._layout(node) is None else "plain, in an adapter"
        self.report.changes.append(Change(path, before, after, why, kept=True))
