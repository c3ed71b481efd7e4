"""The proof of a converted network, layer by layer.

The network is walked through once more, from its own graph and weights. The layers of `lightfast.nn` have their
response by construction: that of constrained ones is checked with the weights as they are, in float64; everything else
goes by the same rules as in :func:`lightfast.certify`. Nothing is exported for it, which would take longer than all the
rest. What holds here holds in training and in evaluation mode, since a layer's response does not depend on the mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn

from lightfast import nn as lf
from lightfast._certify import Certificate, Output, expected_groups
from lightfast._convert.blocks import ZERO_PADDED, Center, GroupScores, Pool, ProjectedWeight, Shift
from lightfast._convert.layers import LINEAR
from lightfast._convert.nodes import operation, tensor_at
from lightfast._groups import Groups, GroupSpec, resolve
from lightfast._response import Constant, Lost, Response, Space, Value, describe
from lightfast._response.call import leaves, map_leaves, moves
from lightfast._response.interpreter import constant, evaluate, shapes_of
from lightfast._response.layout import Layout, layout_of
from lightfast._response.value import align, settle
from lightfast.functional import project_weight
from lightfast.nn._adapter import Adapted
from lightfast.nn._constrained import Constrained

_AT_A_TIME = 2**18
"""How many weights are checked at a time, in float64."""


class Unproved(Exception):
    """A step that the layers do not explain by themselves: the network is left to :func:`lightfast.certify`."""


def prove(
    network: fx.GraphModule, lit: Mapping[str, Layout], space: Space, offset_groups: GroupSpec
) -> tuple[Certificate, Certificate] | None:
    """The certificates in evaluation and in training mode, or None where the layers alone do not prove them.

    Args:
        network: of layers and ATen operations, each node with its shape in `meta["val"]`.
        lit: how the inputs that carry the offset are laid out, by the names of their nodes.
        space: the offsets that are asked about.
        offset_groups: the assignment of those inputs, as the user wrote it.
    """
    values: dict[fx.Node, Any] = _Values(network)
    rows: dict[str, tuple[str, str, str]] = {}
    outputs: list[Output] = []
    try:
        for node in network.graph.nodes:
            if node.op == "output":
                for value in leaves(map_leaves(node.args[0], lambda leaf: _known(leaf, values))):
                    if isinstance(value, Lost):
                        return None
                    response = describe(value, space)
                    expected = expected_groups(response, value.shape, None, offset_groups)
                    outputs.append(Output(f"{len(outputs)}", value.shape, response, expected))
                break
            if node.op == "get_attr":
                continue
            values[node] = response_of(network, node, values, lit, space)
            if node.op == "call_module":
                module = network.get_submodule(str(node.target))
                kind = describe(values[node], space).kind
                rows[str(node.target)] = (str(node.target), type(module).__name__, kind)
    except Unproved:
        return None
    if not outputs or not all(output.response.is_sound for output in outputs):
        return None
    table, tolerance = tuple(rows.values()), space.tolerance
    evaluation, training = (
        Certificate(tuple(outputs), (), table, space.images, mode, tolerance) for mode in (False, True)
    )
    return evaluation, training


class _Values(dict[fx.Node, Any]):
    """What nodes give; constants when they are asked for, since they are read in float64."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__()
        self.network = network

    def __missing__(self, node: fx.Node) -> Any:
        if node.op != "get_attr":
            raise KeyError(node)
        self[node] = constant(tensor_at(self.network, str(node.target)))
        return self[node]


def _known(leaf: Any, values: dict[fx.Node, Any]) -> Any:
    return values[leaf] if isinstance(leaf, fx.Node) else leaf


def response_of(
    network: fx.GraphModule, node: Any, values: dict[fx.Node, Any], lit: Mapping[str, Layout], space: Space
) -> Any:
    """What a node gives, from what those before it gave; raises :class:`Unproved`."""
    recorded = node.meta.get("val")
    if node.op == "placeholder":
        if not isinstance(recorded, Tensor):
            return recorded
        shape = shapes_of(recorded)
        return lit[node.name].response(shape, space) if node.name in lit else Response(shape)
    if node.op == "get_attr":
        owner, _, name = node.target.rpartition(".")
        return constant(getattr(network.get_submodule(owner), name))
    if node.op == "call_module":
        arguments = [_known(argument, values) for argument in node.args]
        return _called(network.get_submodule(node.target), arguments, recorded, space)
    if isinstance(recorded, int | float | bool):
        return recorded
    if recorded is None and node.target is not getitem:
        raise Unproved
    step = evaluate(node, values, space)
    if step.reason is not None:
        raise Unproved
    if operation(node) in LINEAR and (layout := layout_of(step.value, space)) is not None:
        # Of a projected weight: without what rounding left, which many layers would multiply.
        return layout.response(step.value.shape, space)
    return step.value


def _called(module: nn.Module, arguments: list[Any], recorded: Any, space: Space) -> Any:
    """The response of what a layer gives."""
    value: Any = arguments[0]
    if isinstance(module, ProjectedWeight):
        assert isinstance(value, Constant)
        weight = project_weight(value.tensor, module.in_groups, module.out_groups, conv_groups=module.conv_groups)
        return Constant(weight)
    if isinstance(value, Constant):
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            # A weight that is standardized: the same in both modes.
            return Constant(deepcopy(module).double()(value.tensor))
        value = Response(value.shape)
    if isinstance(module, Pool):
        return _pooled(module, value, space)
    if isinstance(module, Shift):
        return _shifted(module, value, arguments[1], space)
    if not any(moves(argument) for argument in arguments):
        shapes = shapes_of(recorded)
        return [*map(Response, shapes)] if isinstance(shapes, list) else Response(shapes)
    shape = shapes_of(recorded)
    if isinstance(module, tuple(ZERO_PADDED.values())):
        raise Unproved
    if isinstance(module, Constrained):
        return _constrained(module, value, shape, space)
    layout = layout_of(value, space)
    if layout is None:
        raise Unproved
    if isinstance(module, GroupScores):
        copies = torch.tensor(layout.groups.assignment).reshape(module.groups, -1)
        fits = layout.features == module.dim % len(value.shape) and bool((copies == copies[:, :1]).all())
        return _require(fits, Response(shape))
    if isinstance(module, Center):
        _require_layout(layout, module.groups, module.images, module.dim, value)
        return Response(value.shape)
    if isinstance(module, Adapted):
        _require_layout(layout, module.offset_groups, 0, module.dim, value)
        return value
    raise Unproved


def _require(holds: bool, value: Response) -> Response:
    if not holds:
        raise Unproved
    return value


def _require_layout(layout: Layout, groups: GroupSpec, images: int, dim: int, value: Value) -> None:
    """That a value has its images and features where a layer expects them."""
    assert isinstance(value, Response)
    features = dim % len(value.shape)
    if (layout.images, layout.features) != (images, features):
        raise Unproved
    if layout.groups != resolve(groups, value.shape[features]):
        raise Unproved


def _pooled(module: Pool, value: Response, space: Space) -> Response:
    """`φ(x)` moves by Δ itself."""
    rank = len(value.shape)
    shape = [1] * rank
    front = [value.shape[module.images], *(size for axis, size in enumerate(value.shape) if axis != module.images)]
    shape[0], shape[module.moved_dim] = front[0], module.groups if isinstance(module.groups, int) else space.groups
    if not moves(value):
        return Response(tuple(shape))
    layout = layout_of(value, space)
    if layout is None:
        raise Unproved
    _require_layout(layout, module.groups, module.images, module.dim, value)
    own = replace(layout, images=0, features=module.moved_dim, groups=Groups.runs(space.groups, space.groups))
    return own.response(tuple(shape), space)


def _shifted(module: Shift, value: Response, offset: Response, space: Space) -> Response:
    """`x ± G φ` moves as `x` does, and with the group means."""
    if not moves(offset):
        return value
    pooled = layout_of(offset, space)
    if pooled is None or pooled.images != 0 or pooled.groups != Groups.runs(space.groups, space.groups):
        raise Unproved
    groups = resolve(module.groups, value.shape[module.dim])
    own = Layout(module.images, module.dim, groups, pooled.owners).response(value.shape, space)
    rank = len(value.shape)
    x, means = align(value, rank, space), align(own, rank, space) * module.sign
    total = settle(x + means, x.abs() + means.abs(), space)
    return Response(value.shape, total if total.any() else None)


def _constrained(module: Constrained, value: Response, shape: tuple[int, ...], space: Space) -> Response:
    """A layer that is linear: `R` becomes `(Σ_taps W) R`, which is checked to be the assignment of its outputs."""
    layout = layout_of(value, space)
    axis = len(value.shape) - 1 if isinstance(module, lf.Linear) else 1
    if layout is not None and axis not in (layout.features, layout.images) and module.in_groups.count == 1:
        return _mixed(module, layout, shape, space)
    if layout is None or layout.features != axis or layout.groups != module.in_groups:
        raise Unproved
    if layout.images != 0 and not isinstance(module, lf.Linear):
        raise Unproved
    if not _meets_constraint(module, space):
        raise Unproved
    return replace(layout, groups=module.out_groups).response(shape, space)


def _mixed(module: Constrained, layout: Layout, shape: tuple[int, ...], space: Space) -> Response:
    """Averages along an axis over which nothing varies in how a value moves: it moves as before."""
    one_tap = isinstance(module, lf.Linear) or module.weight[0, 0].numel() == 1
    padded = any(getattr(module, "_reversed_padding_repeated_twice", ()))
    if not one_tap or padded or isinstance(module, nn.modules.conv._ConvTransposeNd):
        raise Unproved
    if getattr(module, "groups", 1) != 1 or not _meets_constraint(module, space):
        raise Unproved
    return layout.response(shape, space)


def _meets_constraint(module: Any, space: Space) -> bool:
    """`(Σ_taps W) G_m = G_n` of the weight that the layer applies, computed in float64."""
    if isinstance(module, lf.ConvTranspose1d | lf.ConvTranspose2d | lf.ConvTranspose3d):
        # Each phase of the taps meets the constraint by itself; its projection is that of the layer.
        return True
    split = getattr(module, "groups", 1)
    weight, into, out = module.weight.detach().cpu(), module.in_groups, module.out_groups
    if split != 1:
        return _fits(weight, into, out, split, space)
    # Rows meet it by themselves; as many at a time as are quickly gone through.
    step = max(1, _AT_A_TIME // max(1, weight[0].numel()))
    parts = ((start, min(start + step, len(weight))) for start in range(0, len(weight), step))
    return all(
        _fits(weight[start:stop], into, Groups(out.assignment[start:stop], out.count), 1, space)
        for start, stop in parts
    )


def _fits(weight: Tensor, in_groups: Groups, out_groups: Groups, split: int, space: Space) -> bool:
    weight = project_weight(weight.double(), in_groups, out_groups, conv_groups=split)
    taps = weight.flatten(2).sum(2) if weight.dim() > 2 else weight
    into, out = (groups.matrix(dtype=torch.float64) for groups in (in_groups, out_groups))
    blocks = taps.reshape(split, -1, taps.shape[1]), into.reshape(split, taps.shape[1], -1)
    moved, size = (blocks[0] @ blocks[1]).flatten(0, 1), (blocks[0].abs() @ blocks[1]).flatten(0, 1)
    return bool(((moved - out).abs() <= space.tolerance * size.clamp(min=1)).all())
