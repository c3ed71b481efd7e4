"""A converted network on lifted maps: what the light adds is carried beside the map, and mostly never computed.

Where groups are pooled over the image, an equivariant map is `x = z + G o`: an invariant map, and a number per group.
Whatever follows offsets acts on `z` alone, since `f(z + G o) = f(z) + G o`. The group means are taken out of the input,
once; norms and activations act on `z` as they do in the conventional network, instead of centering it once more, and
convolutions pad it with zeros. What nobody asks for at the end, such as the offsets of a classifier, is not computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from lightfast._convert.blocks import ZERO_PADDED, Center, Pool, Shift
from lightfast._convert.modules import Modules
from lightfast._convert.proof import response_of
from lightfast._response import Response, Space
from lightfast._response.layout import Layout, layout_of
from lightfast.nn._adapter import Adapted

__all__ = ["lift"]


class _Lifted(NamedTuple):
    """`z + G (o_1 + o_2 + ...)`."""

    z: fx.Node
    offsets: tuple[fx.Node, ...]


def lift(network: fx.GraphModule, lit: Mapping[str, Layout], space: Space) -> fx.GraphModule:
    """The network on lifted maps, with the same parameters under the same names.

    Args:
        network: as the rewriting left it, each node with its shape in `meta["val"]`.
        lit: how the inputs that carry the offset are laid out, by their names.
        space: the offsets.
    """
    return _Lifting(network, lit, space).run()


class _Lifting:
    def __init__(self, network: fx.GraphModule, lit: Mapping[str, Layout], space: Space) -> None:
        self.network, self.lit, self.space = network, lit, space
        self.graph, self.modules = fx.Graph(), Modules(load=False)
        self.modules.root = _copied(network)
        self.values: dict[fx.Node, Any] = {}
        self.new: dict[fx.Node, fx.Node] = {}
        self.lifted: dict[fx.Node, _Lifted] = {}
        self.pools: dict[fx.Node, tuple[fx.Node, ...]] = {}

    def run(self) -> fx.GraphModule:
        for node in self.network.graph.nodes:
            if node.op != "output":
                self.values[node] = response_of(self.network, node, self.values, self.lit, self.space)
            if not self._visit(node):
                self._copy(node, {})
        self.graph.set_codegen(self.network.graph._codegen)
        self.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        self.graph.lint()
        lifted = fx.GraphModule(self.modules.root, self.graph, type(self.network).__name__)
        lifted.delete_all_unused_submodules()
        return lifted.train(self.network.training)

    def _visit(self, node: fx.Node) -> bool:
        """Whether the node has been taken care of."""
        if node.op == "placeholder" and node.name in self.lit:
            layout = self.lit[node.name]
            self.lifted[node] = self._centered(node, self._copy(node, {}), "input", layout)
            del self.new[node]
            return True
        module = self.network.get_submodule(str(node.target)) if node.op == "call_module" else None
        operand = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if operand is not None and isinstance(module, Adapted) and self._moves(operand):
            return self._adapted(node, operand, module)
        if isinstance(module, Center) and operand in self.lifted:
            self.new[node] = self.lifted[operand].z
            return True
        if isinstance(module, Pool) and operand in self.lifted:
            self.pools[node] = self.lifted[operand].offsets
            return True
        if operand is not None and isinstance(module, Shift):
            return self._shift(node, operand, module)
        return node.op in ("call_module", "call_function") and self._follows(node)

    def _centered(self, node: fx.Node, x: fx.Node, path: str, layout: Layout) -> _Lifted:
        """A map without its group means, and these."""
        place = layout.groups, layout.images, layout.features
        pool = self._call(self.modules.place(f"{path}_pool", Pool(*place)), (x,), None)
        take = Shift(place[0], -1, *place[1:])
        return _Lifted(self._call(self.modules.place(f"{path}_center", take), (x, pool), node), (pool,))

    def _adapted(self, node: fx.Node, operand: fx.Node, module: Any) -> bool:
        if module.scope != "image" or module.pool != "mean":
            return False
        path = str(node.target)
        if operand not in self.lifted:
            layout = layout_of(self.values[operand], self.space)
            assert layout is not None
            self.lifted[operand] = self._centered(operand, self._node(operand), path, layout)
        z, offsets = self.lifted[operand]
        self.modules.root.set_submodule(path, _plain(module))
        self.lifted[node] = _Lifted(self._call(path, (z,), node), offsets)
        return True

    def _shift(self, node: fx.Node, operand: fx.Node, module: Shift) -> bool:
        pool = node.args[1]
        assert isinstance(pool, fx.Node)
        if module.sign < 0 and pool in self.pools and pool.args[0] is operand:
            self.new[node] = self.lifted[operand].z
            return True
        if module.sign > 0 and operand not in self.lifted and not self._moves(operand):
            offsets = self.pools[pool] if pool in self.pools else (self._node(pool),)
            self.lifted[node] = _Lifted(self._node(operand), offsets)
            return True
        return False

    def _follows(self, node: fx.Node) -> bool:
        """Whatever has a response follows a common offset of its inputs."""
        moving = [operand for operand in node.all_input_nodes if self._moves(operand)]
        lifted = [self.lifted[operand] for operand in moving if operand in self.lifted]
        one_offset = {each.offsets for each in lifted}
        if not lifted or len(lifted) < len(moving) or len(one_offset) > 1 or isinstance(self.values[node], list):
            return False
        if node.op == "call_module":
            self._pad_with_zeros(str(node.target))
        new = self._copy(node, {operand: self.lifted[operand].z for operand in moving})
        if self._moves(node):
            del self.new[node]
            self.lifted[node] = _Lifted(new, lifted[0].offsets)
        return True

    def _pad_with_zeros(self, path: str) -> None:
        layer: Any = self.modules.root.get_submodule(path)
        kind = ZERO_PADDED.get(type(layer))
        if kind is None or not layer._pads():
            return
        groups = layer.in_groups, layer.out_groups
        options = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "groups")}
        made: Any = kind(layer.in_channels, layer.out_channels, padding_mode="zeros", offset_groups=groups, **options)
        made.weight, made.bias = layer.weight, layer.bias
        self.modules.root.set_submodule(path, made.train(layer.training))

    def _copy(self, node: fx.Node, replaced: dict[fx.Node, fx.Node]) -> fx.Node:
        new = self.graph.node_copy(node, lambda operand: replaced.get(operand) or self._node(operand))
        self.new[node] = new
        return new

    def _node(self, node: fx.Node) -> fx.Node:
        """The new node of an old one, with its offset added where it was carried beside it."""
        if node in self.new:
            return self.new[node]
        if node in self.pools:
            self.new[node] = self._total(self.pools[node])
        else:
            z, offsets = self.lifted[node]
            layout = layout_of(self.values[node], self.space)
            assert layout is not None
            place = self.modules.place("lower", Shift(layout.groups, 1, layout.images, layout.features))
            self.new[node] = self._call(place, (z, self._total(offsets)), node)
        return self.new[node]

    def _total(self, offsets: tuple[fx.Node, ...]) -> fx.Node:
        """The sum of offsets, (N, g)."""
        flat = [self.graph.call_function(torch.ops.aten.flatten.using_ints, (offset, 1)) for offset in offsets]
        total, images = flat[0], self.space.images
        for each in flat[1:]:
            total = self.graph.call_function(torch.ops.aten.add.Tensor, (total, each))
            flat.append(total)
        for new in flat:
            new.meta["val"] = torch.empty(images, self.space.groups, device="meta")
        return total

    def _call(self, path: str, args: tuple[fx.Node, ...], like: fx.Node | None) -> fx.Node:
        new = self.graph.call_module(path, args)
        if like is not None:
            known = like.meta.get("val")
            new.meta["val"] = torch.empty(self._shape(like), device="meta") if known is None else known
        return new

    def _moves(self, node: fx.Node) -> bool:
        value = self.values.get(node)
        return isinstance(value, Response) and value.map is not None

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(self.values[node].shape)


def _copied(network: nn.Module) -> nn.Module:
    """The modules of a network in a tree of their own; layers themselves are shared."""
    root = nn.Module()
    for name, child in network.named_children():
        root.add_module(name, child if type(child) is not nn.Module else _copied(child))
    for name, parameter in network.named_parameters(recurse=False):
        root.register_parameter(name, parameter)
    for name, buffer in network.named_buffers(recurse=False):
        root.register_buffer(name, buffer)
    return root


def _plain(module: Any) -> nn.Module:
    """Torch's layer that one of ours adapts, with the same parameters."""
    kind = next(base for base in type(module).__mro__ if base.__module__.startswith("torch.nn"))
    options = {
        name: getattr(module, name)
        for name in inspect.signature(kind).parameters
        if name not in ("device", "dtype", "bias") and hasattr(module, name)
    }
    if "bias" in inspect.signature(kind).parameters:
        options["bias"] = module.bias is not None
    plain: Any = kind(**options)
    for name, parameter in module.named_parameters(recurse=False):
        plain.register_parameter(name, parameter)
    for name, buffer in module.named_buffers(recurse=False):
        plain.register_buffer(name, buffer)
    return plain.train(module.training)
