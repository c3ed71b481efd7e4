"""The conversion itself: a walk over the plain graph that carries responses, and repairs where one would be lost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from lightfast._convert.blocks import Center, Shift
from lightfast._convert.layers import ACTIVATIONS, LINEAR, NORMS, arguments, plain_layer, unary_layer
from lightfast._convert.linear import LinearLayers, plain_name
from lightfast._convert.nodes import operation
from lightfast._convert.walk import Reference
from lightfast._groups import Groups
from lightfast._response import Response
from lightfast._response.call import map_leaves
from lightfast._response.interpreter import DRAWS_BY_SHAPE, constant, shapes_of


class Rewriter(LinearLayers):
    """Visits every node: copies it where the response survives, replaces it where there is a layer, repairs it else."""

    def run(self, name: str) -> fx.GraphModule:
        for node in self.network.graph.nodes:
            self.references[node] = ()
            if node.op == "placeholder":
                self.new[node] = self.graph.node_copy(node, lambda n: self.new[n])
                recorded = node.meta.get("val")
                self.values[node] = Response(shapes_of(recorded)) if isinstance(recorded, Tensor) else recorded
                if node.name in self.lit:
                    self.values[node] = self.lit[node.name].response(self._shape(node), self.space)
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
        if layout is None and node in self.decision.reasons and node not in self.decision.scores:
            said = self.decision.reasons[node].partition(":")[0]
            self.decision.reasons[node] = f"{said}: does not move, since it has no place for the group means"
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
            if math.isnan(call.get("momentum", 0.0)):
                raise ValueError(
                    f"{self._path(node, name)} averages statistics over all batches, with weights that are computed: "
                    "give it a momentum instead of None"
                )
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
            self._note(place, plain_name(name), type(module).__name__, "applied to the centered map")
            new = self.graph.call_module(place, (self._node(value),))
            self._set(node, new, layout.response(shape, self.space))
            return
        operand, references = self._still(value, node)
        self._finish(node, self.graph.call_module(place, (operand,)), references)

    def _other(self, node: fx.Node, name: str) -> None:
        operands = [a for a in node.all_input_nodes if a in self.values]
        moving = [a for a in operands if self._layout(a) is not None]
        if name in DRAWS_BY_SHAPE:
            self._set(node, self.graph.node_copy(node, self._node), Response(self._shape(node)))
            return
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
        centered.meta["val"] = older.meta["val"]
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
            new.meta["val"] = part.meta["val"]
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


def _is_builtin(returned: Any) -> bool:
    """Whether an output is made of tensors in lists, tuples and dicts."""
    if type(returned) in (list, tuple):
        return all(map(_is_builtin, returned))
    if type(returned) is dict:
        return all(map(_is_builtin, returned.values()))
    return returned is None or isinstance(returned, fx.Node | int | float)
