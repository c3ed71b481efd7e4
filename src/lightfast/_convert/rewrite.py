"""The conversion itself: a walk over the plain graph that carries responses, and repairs where one would be lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lightfast._convert.blocks import Center, GroupScores, Pool, ProjectedWeight, Shift
from lightfast._convert.graph import operation, stack_of, tensor_at
from lightfast._convert.layers import (
    ACTIVATIONS,
    LINEAR,
    NORMS,
    arguments,
    assign,
    linear_layer,
    plain_layer,
    unary_layer,
)
from lightfast._convert.modules import Modules
from lightfast._convert.outputs import Decision
from lightfast._convert.regions import split_layers, varying_nodes
from lightfast._convert.report import Change, Conversion
from lightfast._groups import Groups
from lightfast._response import NoResponse, Response, Space, apply
from lightfast._response.call import map_leaves
from lightfast._response.interpreter import constant, shapes_of
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
        return None

    def widened(self, shape: tuple[int, ...], features: int) -> Layout | None:
        """How a value with another number of features can be laid out once it has the group means; None if it cannot.

        It does not move, so that any assignment of its features will do.
        """
        groups = self.layout.groups.count
        if self.layout.images != 0 or shape[0] != self.shape[0] or shape[features] < groups:
            return None
        return replace(self.layout, features=features, groups=Groups.runs(shape[features], groups))


class Rewriter:
    """Builds the equivariant graph from the plain one, node by node.

    Every value is *equivariant*, or *invariant* and then remembers which group means were taken away on its way, so
    that they can be given back as soon as it has the shape for it.
    """

    def __init__(
        self,
        network: fx.GraphModule,
        first: fx.Node,
        layout: Layout,
        space: Space,
        plain: set[fx.Node],
        decision: Decision,
        leaves: set[str],
        options: Options,
        report: Conversion,
    ) -> None:
        self.network, self.first, self.layout, self.space = network, first, layout, space
        self.plain, self.decision, self.leaves, self.options, self.report = plain, decision, leaves, options, report
        self.modules, self.graph = Modules(options.weights == "project"), fx.Graph()
        self.new: dict[fx.Node, Any] = {}
        self.values: dict[fx.Node, Any] = {}
        self.references: dict[fx.Node, tuple[Reference, ...]] = {}
        self.centered: dict[fx.Node, tuple[fx.Node, Reference]] = {}
        self.varying, self.split = varying_nodes(network.graph), split_layers(network.graph)
        self.order = {node: index for index, node in enumerate(network.graph.nodes)}

    def run(self, name: str) -> fx.GraphModule:
        for node in self.network.graph.nodes:
            self.references[node] = ()
            if node.op == "placeholder":
                self.new[node] = self.graph.node_copy(node, lambda n: self.new[n])
                recorded = node.meta.get("val")
                self.values[node] = Response(shapes_of(recorded)) if isinstance(recorded, Tensor) else recorded
                if node is self.first:
                    self.values[node] = self.layout.response(self._shape(node), self.space)
            elif node.op == "get_attr":
                tensor = self._attribute(str(node.target))
                fixed = not isinstance(tensor, nn.Parameter) and not tensor.is_floating_point()
                self.values[node] = constant(tensor) if fixed else Response(tuple(tensor.shape))
            elif node.op == "output":
                self._output(node)
            else:
                self._visit(node)
        self.graph.lint()
        return fx.GraphModule(self.modules.root, self.graph, name)

    def _output(self, node: fx.Node) -> None:
        """Return what the model returned; as plain Python where its inputs and outputs are built-in containers."""
        results = map_leaves(node.args[0], lambda leaf: self._result(leaf) if isinstance(leaf, fx.Node) else leaf)
        info = getattr(self.network.graph._codegen, "pytree_info", None)
        if info is not None:
            placeholders = [other for other in self.network.graph.nodes if other.op == "placeholder"]
            args, kwargs = pytree.tree_unflatten(placeholders, info.in_spec)
            returned = pytree.tree_unflatten(results, info.out_spec)
            if all(isinstance(leaf, fx.Node) for leaf in (*args, *kwargs.values())) and _is_builtin(returned):
                self.graph.output(returned)
                return
        self.graph.output(results)
        self.graph.set_codegen(self.network.graph._codegen)

    def _result(self, node: fx.Node) -> Any:
        """An output; centered where it still moves, though it is scores: what made it is not known for a head."""
        layout = self._layout(node)
        if node not in self.decision.scores or layout is None:
            return self._node(node)
        place = self.modules.place("scores", Center(layout.groups, "image", layout.images, layout.features))
        self._note(place, "scores", "Center", "less their group means, so that they do not move")
        new = self.graph.call_module(place, (self._node(node),))
        new.meta["val"] = node.meta["val"]
        return new

    # --- one node

    def _visit(self, node: fx.Node) -> None:
        name = operation(node)
        recorded = node.meta.get("val")
        if node.op == "call_function" and (not name or name == "sym_size"):
            self._copy_python(node, recorded)
        elif name in LINEAR and self._is_parameter(arguments(node)["weight"]):
            self._linear(node, name)
        elif name in LINEAR and self._computed_weight(node, name):
            return
        elif name in NORMS or name in ACTIVATIONS:
            self._unary(node, name)
        else:
            self._other(node, name)

    def _copy_python(self, node: fx.Node, recorded: Any) -> None:
        self.new[node] = self.graph.node_copy(node, self._node)
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        parts = self.values.get(source) if source is not None else None
        if isinstance(parts, list):
            self.values[node] = parts[node.args[1]]  # pyright: ignore[reportCallIssue, reportArgumentType]
            self.references[node] = self.references[source]  # pyright: ignore[reportArgumentType]
        else:
            self.values[node] = recorded

    def _linear(self, node: fx.Node, name: str) -> None:
        call = arguments(node)
        value = call["input"]
        weight, bias = self._attribute(call["weight"].target), self._parameter(call["bias"])
        axis = len(self._shape(value)) - 1 if name == "linear" else 1
        layout = None if node in self.plain else self._layout(value)
        transposed, path = "transpose" in name, _owner(str(call["weight"].target))
        outputs = weight.shape[1] * call["groups"] if transposed else weight.shape[0]
        scores = node in self.decision.heads and not transposed and layout is not None
        out_groups = None
        if layout is not None and layout.features == axis and (name == "linear" or layout.images == 0):
            if scores and call.get("groups", 1) == 1:
                # Parts of a split map may belong to some of the groups alone.
                seen = len(set(layout.groups.assignment))
                out_groups = assign(layout.groups, outputs * seen)
                weight = weight.repeat([seen] + [1] * (weight.dim() - 1))
                bias = None if bias is None else bias.repeat(seen)
            else:
                out_groups = assign(layout.groups, outputs, call.get("groups", 1))
                if node in self.split and call.get("groups", 1) == 1 and out_groups is not None:
                    # In turns, so that each part has features of all groups.
                    seen = sorted(set(layout.groups.assignment))
                    out_groups = Groups((seen[i % len(seen)] for i in range(outputs)), self.space.groups)
        mixes = layout is not None and _mixes_positions(name, call, weight, layout, axis)
        if layout is None or (out_groups is None and not mixes):
            self._plain_linear(node, name, call, path)
            return
        in_groups = layout.groups
        if mixes or out_groups is None:
            # Averages over positions, whose weights sum to 1: all positions of a feature move alike.
            in_groups, out_groups = (Groups([0] * count, 1) for count in (weight.shape[1], outputs))
        key = (path, in_groups, out_groups, tuple(weight.shape))
        layer = linear_layer(name, call, weight, bias, (in_groups, out_groups), self.options.padding_mode)
        place = self.modules.layer(key, path, layer, {"weight": weight, "bias": bias})
        module = self.modules.root.get_submodule(place)
        self._note(place, _plain_name(name), type(module).__name__, "its weights are kept on the constraint")
        new = self.graph.call_module(place, (self._node(value),))
        if mixes:
            self._set(node, new, layout.response(self._shape(node), self.space))
            return
        if scores:
            shape = list(self._shape(node))
            copies, shape[axis] = out_groups.features // shape[axis], out_groups.features
            new.meta["val"] = torch.empty(shape, dtype=node.meta["val"].dtype, device="meta")
            place = self.modules.place(f"{path}_scores" if path else "scores", GroupScores(copies, axis))
            self._note(place, "class scores", "GroupScores", "averaged over groups, less their mean over classes")
            self._set(node, self.graph.call_module(place, (new,)), Response(self._shape(node)))
            return
        after = replace(layout, features=axis, groups=out_groups)
        self._set(node, new, after.response(self._shape(node), self.space))

    def _computed_weight(self, node: fx.Node, name: str) -> bool:
        """Project a weight that is computed from parameters in `forward`; False where that cannot be done."""
        call = arguments(node)
        value, weight, rank = call["input"], call["weight"], len(self._shape(node))
        layout = None if node in self.plain else self._layout(value)
        axis = rank - 1 if name == "linear" else 1
        amounts = _padding(call, self._shape(weight)[2:])
        out_groups = None
        if layout is not None and layout.features == axis and "transpose" not in name and amounts is not None:
            out_groups = assign(layout.groups, self._shape(weight)[0], call.get("groups", 1))
        if layout is None or out_groups is None or amounts is None or weight in self.varying:
            return False
        if any(amounts) and (self.options.padding_mode == "mean" or layout.images != 0):
            return False
        projection = ProjectedWeight(layout.groups, out_groups, call.get("groups", 1))
        place = self.modules.place(self._path(node, "projected"), projection)
        self._note(place, _plain_name(name), "projected weight", "its weight is computed, and kept on the constraint")
        operand = self._node(value)
        if any(amounts):
            padded = torch.nn.functional.pad(value.meta["val"].to("meta"), amounts)
            operand = self.graph.call_function(
                torch.ops.aten.pad.default, (operand, amounts, self.options.padding_mode)
            )
            operand.meta["val"] = padded
        projected = self.graph.call_module(place, (self._node(weight),))
        bias = self._node(call["bias"]) if isinstance(call["bias"], fx.Node) else None
        rest = () if name == "linear" else (call["stride"], [0] * (rank - 2), call["dilation"], call["groups"])
        target = torch.ops.aten.linear.default if name == "linear" else getattr(torch.ops.aten, name).default
        new = self.graph.call_function(target, (operand, projected, bias, *rest))
        after = replace(layout, features=axis, groups=out_groups)
        self._set(node, new, after.response(self._shape(node), self.space))
        return True

    def _plain_linear(self, node: fx.Node, name: str, call: dict[str, Any], path: str) -> None:
        weight, bias = self._attribute(call["weight"].target), self._parameter(call["bias"])
        operand, references = self._still(call["input"], node)
        layer = linear_layer(name, call, weight, bias)
        place = self.modules.layer((path, tuple(weight.shape)), path, layer, {"weight": weight, "bias": bias})
        # After a layer the features are new ones, so the group means can be given back whatever their number was.
        features = len(self._shape(node)) - 1 if name == "linear" else 1
        self._finish(node, self.graph.call_module(place, (operand,)), references, features)
        if self._layout(call["input"]) is not None:
            self._note_kept(node, place, _plain_name(name), "it serves a product, was kept, or cannot be constrained")

    def _unary(self, node: fx.Node, name: str) -> None:
        call = arguments(node)
        value = call["input"] if "input" in call else call["self"]
        layout = None if node in self.plain else self._layout(value)
        shape = self._shape(value)
        first = len(shape) - len(call["normalized_shape"]) if name == "layer_norm" else 1
        fits = layout is not None and layout.images == 0 and (name not in NORMS or layout.features == first)
        if name == "feature_dropout" and len(shape) != 4:
            fits = False
        parameters = {key: call.get(key) for key in ("weight", "bias", "running_mean", "running_var")}
        if any(isinstance(p, fx.Node) and not self._is_parameter(p) for p in parameters.values()):
            self._other(node, name)
            return
        tensors = {key: self._parameter(p) for key, p in parameters.items()}
        groups = layout.groups if layout is not None and fits else None
        dim = layout.features if name in ACTIVATIONS and layout is not None else 1
        module = unary_layer(name, call, shape, tensors["weight"], groups, self.options.scope, dim)
        owner = next((str(p.target).rpartition(".")[0] for p in parameters.values() if isinstance(p, fx.Node)), None)
        path = owner or self._path(node, name)
        if tensors["weight"] is not None:
            module.to(tensors["weight"].device, tensors["weight"].dtype)
        # The same layer called twice is one layer, unless features are laid out differently.
        key = (path, type(module), groups, dim, module.extra_repr())
        place = self.modules.layer(key, path, module, tensors)
        if groups is not None:
            assert layout is not None
            self._note(place, _plain_name(name), type(module).__name__, "applied to the centered map")
            new = self.graph.call_module(place, (self._node(value),))
            self._set(node, new, layout.response(shape, self.space))
            return
        operand, references = self._still(value, node)
        self._finish(node, self.graph.call_module(place, (operand,)), references)

    def _other(self, node: fx.Node, name: str) -> None:
        operands = [a for a in node.all_input_nodes if a in self.values]
        moving = [a for a in operands if self._layout(a) is not None]
        if node in self.plain or not moving:
            self._repaired(node, name)
            return
        if name == "add" and len(moving) == 2:
            self._sum(node, moving)
            return
        if name == "cat":
            self._cat(node, moving)
            return
        if node.op == "call_function":
            value = self._derived(node, {})
            if value is not None:
                self.new[node] = self.graph.node_copy(node, self._node)
                self.values[node] = value
                if not isinstance(value, list) and value.map is None:
                    references = tuple(self._center(a, node)[1] for a in moving)
                    self._finish(node, self.new[node], references)
                return
        self._repaired(node, name)

    # --- repairs

    def _sum(self, node: fx.Node, moving: list[fx.Node]) -> None:
        """A sum of two equivariant values: the shortcut, which is the older of the two, is centered.

        Where one of them has features of fewer groups, it is that one, so that no group is lost.
        """

        def rank(part: fx.Node) -> tuple[int, int]:
            layout = self._layout(part)
            assert layout is not None
            return len(set(layout.groups.assignment)), self.order[part]

        older = min(moving, key=rank)
        layout = self._layout(older)
        assert layout is not None
        path = self._path(node, "shortcut")
        module = Center(layout.groups, self.options.scope, layout.images, layout.features)
        place = self.modules.place(path, module)
        value = self._derived(node, {older: Response(self._shape(older))})
        if value is None:
            self._repaired(node, "add")
            return
        self._note(place, "sum of two maps", "sum with a centered shortcut", "so that it moves by Δ and not by 2Δ")
        centered = self.graph.call_module(place, (self._node(older),))
        self.new[node] = self.graph.node_copy(node, lambda n: centered if n is older else self._node(n))
        self.values[node] = value

    def _cat(self, node: fx.Node, moving: list[fx.Node]) -> None:
        """Parts that do not move are given the group means of the first that does."""
        joined = arguments(node)["dim"] % len(self._shape(node))
        layout = self._layout(moving[0])
        assert layout is not None
        shifted: dict[fx.Node, tuple[fx.Node, Response]] = {}
        for part in node.all_input_nodes:
            if part in moving or part not in self.values:
                continue
            shape = self._shape(part)
            groups = layout.groups
            if joined == layout.features:
                groups = Groups((i % self.space.groups for i in range(shape[joined])), self.space.groups)
            fits = shape[layout.images] == len(layout.owners) and len(shape) == len(self._shape(moving[0]))
            if joined == layout.images or not fits:
                self._repaired(node, "cat")
                return
            own = replace(layout, groups=groups)
            reference = self._center(moving[0], node)[1]
            place = self.modules.place(self._path(node, "restore"), Shift(groups, 1, layout.images, layout.features))
            self._note(place, "joined part that does not move", "group means added", "so that all parts move alike")
            new = self.graph.call_module(place, (self._node(part), reference.pool))
            shifted[part] = (new, own.response(shape, self.space))
        value = self._derived(node, {part: response for part, (_, response) in shifted.items()})
        if value is None:
            self._repaired(node, "cat")
            return
        self.new[node] = self.graph.node_copy(node, lambda n: shifted[n][0] if n in shifted else self._node(n))
        self.values[node] = value

    def _repaired(self, node: fx.Node, name: str) -> None:
        """The operation on centered operands, with the group means given back where its output has the shape for it."""
        references: tuple[Reference, ...] = ()
        replaced: dict[fx.Node, Any] = {}
        centered = False
        for operand in node.all_input_nodes:
            if operand in self.values and isinstance(operand.meta.get("val"), Tensor) and operand.op != "get_attr":
                centered = centered or self._layout(operand) is not None
                replaced[operand], more = self._still(operand, node)
                references += tuple(reference for reference in more if reference not in references)
        call = arguments(node) if name else {}
        special = plain_layer(name, call) if name else None
        if special is not None:
            place = self.modules.place(self._path(node, "attention"), special)
            operands = [call[key] for key in ("query", "key", "value", "attn_mask") if call[key] is not None]
            new = self.graph.call_module(place, tuple(replaced.get(o) or self._node(o) for o in operands))
        elif node.op == "call_module":
            path = str(node.target)
            place = self.modules.layer((path,), path, self.network.get_submodule(path), {})
            new = self.graph.call_module(place, tuple(replaced.get(a) or self._node(a) for a in node.all_input_nodes))
        else:
            new = self.graph.node_copy(node, lambda n: replaced[n] if n in replaced else self._node(n))
        self._finish(node, new, references)
        if centered:
            before = name or type(self.network.get_submodule(str(node.target))).__name__
            self._note_kept(node, self._where(node, name), before, "it has no response by itself")

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


def _mixes_positions(name: str, call: dict[str, Any], weight: Tensor, layout: Layout, axis: int) -> bool:
    """Whether a layer is applied along an axis of positions, to each feature by itself, as an MLP-Mixer does."""
    if axis in (layout.features, layout.images) or "transpose" in name:
        return False
    padding = call.get("padding", 0)
    plain = padding == "valid" or not any(padding if isinstance(padding, list | tuple) else [padding])
    return name == "linear" or (weight[0, 0].numel() == 1 and call["groups"] == 1 and plain)


def _plain_name(name: str) -> str:
    return {"linear": "Linear", "conv2d": "Conv2d", "batch_norm": "BatchNorm", "layer_norm": "LayerNorm"}.get(
        name, name
    )


def _padding(call: dict[str, Any], kernel: tuple[int, ...]) -> list[int] | None:
    """How far a convolution pads, in the order of `torch.nn.functional.pad`; None where that takes no single amount."""
    padding = call.get("padding", 0)
    if padding == "same":
        if any(dilation * (size - 1) % 2 for dilation, size in zip(call["dilation"], kernel, strict=True)):
            return None
        padding = [dilation * (size - 1) // 2 for dilation, size in zip(call["dilation"], kernel, strict=True)]
    if padding in (0, "valid"):
        padding = [0] * len(kernel)
    return [amount for size in reversed(padding) for amount in (size, size)]


def _owner(path: str) -> str:
    """The name of the layer that a weight belongs to: `at.in_proj` for `at.in_proj_weight`."""
    owner, _, name = path.rpartition(".")
    own = name.removesuffix("weight").rstrip("_")
    return ".".join(filter(None, (owner, own)))


def _is_builtin(returned: Any) -> bool:
    """Whether an output is made of tensors in lists, tuples and dicts."""
    if type(returned) in (list, tuple):
        return all(map(_is_builtin, returned))
    if type(returned) is dict:
        return all(map(_is_builtin, returned.values()))
    return returned is None or isinstance(returned, fx.Node | int | float)
