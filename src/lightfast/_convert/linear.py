"""Linear layers and convolutions in the walk: constrained where their input carries the offset, plain where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from lightfast._convert.blocks import GroupScores, ProjectedWeight
from lightfast._convert.layers import arguments, assign, linear_layer
from lightfast._convert.walk import Walk
from lightfast._groups import Groups
from lightfast._response import Response
from lightfast._response.layout import Layout


class LinearLayers(Walk):
    """The part of the walk that comes upon linear layers."""

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
                out_groups = self._assign(node, layout.groups, outputs, call.get("groups", 1))
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
        self._note(place, plain_name(name), type(module).__name__, "its weights are kept on the constraint")
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

    def _assign(self, node: fx.Node, groups: Groups, outputs: int, conv_groups: int) -> Groups | None:
        """The assignment of a layer's outputs, which suits what becomes of them; None if some group has no output."""
        usual, seen = assign(groups, outputs, conv_groups), sorted(set(groups.assignment))
        width = self.heads.get(node, outputs)
        if usual is None or conv_groups != 1:
            return usual
        if len(seen) <= width < outputs:
            # The same in each head.
            head = Groups.runs(width, len(seen)).assignment
            return Groups((seen[head[i % width]] for i in range(outputs)), groups.count)
        if node in self.split:
            # In turns, so that each part has features of all groups.
            return Groups((seen[i % len(seen)] for i in range(outputs)), groups.count)
        return usual

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
        self._note(place, plain_name(name), "projected weight", "its weight is computed, and kept on the constraint")
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
            self._note_kept(node, place, plain_name(name), "it serves a product, was kept, or cannot be constrained")


def plain_name(name: str) -> str:
    return {"linear": "Linear", "conv2d": "Conv2d", "batch_norm": "BatchNorm", "layer_norm": "LayerNorm"}.get(
        name, name
    )


def _mixes_positions(name: str, call: dict[str, Any], weight: Tensor, layout: Layout, axis: int) -> bool:
    """Whether a layer is applied along an axis of positions, to each feature by itself, as an MLP-Mixer does."""
    if axis in (layout.features, layout.images) or "transpose" in name:
        return False
    padding = call.get("padding", 0)
    plain = padding == "valid" or not any(padding if isinstance(padding, list | tuple) else [padding])
    return name == "linear" or (weight[0, 0].numel() == 1 and call["groups"] == 1 and plain)


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
