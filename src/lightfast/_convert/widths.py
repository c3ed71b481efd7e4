"""Moving widths to multiples of the number of groups, consistently through the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from lightfast._convert.nodes import operation, tensor_at
from lightfast._response.call import map_leaves

Part: TypeAlias = tuple[int, int]
"""A run of features: which width, and how many elements each of its features takes."""

Axis: TypeAlias = tuple[Part, ...]
"""The widths that make up an axis, one after another; empty where the size is fixed."""

_CHANNELS_KEPT = ("max_pool", "avg_pool", "upsample", "pad", "adaptive")
_REDUCTIONS = ("mean", "sum", "amax", "amin", "var", "std", "max", "min", "logsumexp")


class Widths:
    """The widths of a network: which axes of parameters and values are the same, and which cannot change."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.size: list[int] = []
        self.fixed: set[int] = set()
        self.divisors: dict[int, int] = {}
        self.made_of: dict[int, Axis] = {}

    def new(self, size: int) -> Axis:
        self.parent.append(len(self.parent))
        self.size.append(size)
        return ((len(self.parent) - 1, 1),)

    def find(self, width: int) -> int:
        while self.parent[width] != width:
            width = self.parent[width]
        return width

    def parts(self, axis: Axis) -> Axis:
        """The axis with widths that stand for several others replaced by those."""
        result: list[Part] = []
        for width, times in axis:
            made_of = self.made_of.get(self.find(width))
            pieces = ((width, 1),) if made_of is None else self.parts(made_of)
            result += [(piece, times * own) for piece, own in pieces]
        return tuple(result)

    def unite(self, a: Axis, b: Axis) -> None:
        """Make two axes change together; where they are made of different parts, neither can change."""
        a, b = self.parts(a), self.parts(b)
        shapes = [[(self.size[w], times) for w, times in axis] for axis in (a, b)]
        if a and shapes[0] == shapes[1]:
            for (first, _), (second, _) in zip(a, b, strict=True):
                low, high = sorted((self.find(first), self.find(second)))
                self.parent[high] = low
            return
        for whole, pieces in ((a, b), (b, a)):
            if len(whole) == 1 and whole[0][1] == 1 and pieces:
                root = self.find(whole[0][0])
                free = root not in {self.find(width) for width in (*self.fixed, *self.divisors)}
                if free and root not in {self.find(width) for width, _ in pieces}:
                    self.made_of[root] = pieces
                    return
        self.fix(a, b)

    def fix(self, *axes: Axis) -> None:
        self.fixed.update(width for axis in axes for width, _ in self.parts(axis))

    def divide(self, axis: Axis, by: int) -> None:
        """Ask that the width stays a multiple of `by`."""
        for width, _ in self.parts(axis):
            self.divisors[width] = lcm(self.divisors.get(width, 1), by)

    def chosen(self, groups: int) -> list[int]:
        """The new size of each width: the nearest multiple of the number of groups."""
        fixed = {self.find(width) for width in self.fixed}
        multiples = dict.fromkeys(map(self.find, range(len(self.size))), groups)
        for width, divisor in self.divisors.items():
            multiples[self.find(width)] = lcm(multiples[self.find(width)], divisor)
        sizes = []
        for width, size in enumerate(self.size):
            root = self.find(width)
            step = multiples[root]
            near = max(step, (size + step // 2) // step * step)
            # A step that is large against the width (a group norm with many groups) would change the network too much.
            sizes.append(size if root in fixed or size % groups == 0 or abs(near - size) > size / 4 + groups else near)
        return sizes


def change_widths(network: fx.GraphModule, groups: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Resize parameters, buffers and written sizes in place; returns the shapes of what changed, old and new."""
    widths = Widths()
    axes: dict[fx.Node, Any] = {}
    parameters: dict[str, list[Axis]] = {}
    for node in network.graph.nodes:
        if node.op == "get_attr":
            name = str(node.target)
            if name not in parameters:
                tensor = tensor_at(network, name)
                parameters[name] = [widths.new(size) if size > 1 else () for size in tensor.shape]
                if not tensor.is_floating_point():
                    widths.fix(*parameters[name])
            axes[node] = parameters[name]
        elif node.op == "output":
            map_leaves(node.args, lambda leaf: _fix_all(widths, axes.get(leaf)) if isinstance(leaf, fx.Node) else None)
        elif node.op != "placeholder":
            axes[node] = _follow(node, axes, widths)
        else:
            axes[node] = None
    chosen = widths.chosen(groups)

    def size_of(axis: Axis) -> int:
        return sum(chosen[width] * times for width, times in widths.parts(axis))

    changed = {}
    for name, parts in parameters.items():
        old = tensor_at(network, name)
        new = _resized(old, [widths.parts(axis) for axis in parts], widths.size, chosen)
        if new.shape != old.shape:
            changed[name] = (tuple(old.shape), tuple(new.shape))
            _set_tensor(network, name, new)
    if changed:
        for node in network.graph.nodes:
            _rewrite_sizes(node, axes.get(node), size_of)
    return changed


def _follow(node: Any, axes: dict[fx.Node, Any], widths: Widths) -> Any:
    """The widths of a node's axes, from those of its inputs; what is not understood fixes them."""
    inputs = [argument for argument in node.all_input_nodes if isinstance(argument.meta.get("val"), Tensor)]
    recorded = node.meta.get("val")
    if node.target is getitem:
        # Of operations with several outputs none is understood.
        return None
    nothing = [()] * recorded.dim() if isinstance(recorded, Tensor) else None
    if not any(any(axes.get(argument) or ()) for argument in inputs):
        return nothing
    result = _rule(node, inputs, axes, widths)
    if result is None:
        for argument in inputs:
            _fix_all(widths, axes.get(argument))
        return nothing
    return result


def _rule(node: Any, inputs: list[fx.Node], axes: dict[fx.Node, Any], widths: Widths) -> Any:
    name, recorded = operation(node), node.meta.get("val")
    args = node.args

    def of(argument: Any) -> list[Axis]:
        shape = argument.meta["val"].shape if isinstance(argument, fx.Node) else ()
        return axes.get(argument) or [()] * len(shape)

    if name.startswith("conv") or name == "linear":
        return _layer(node, name, of, widths)
    if name in ("batch_norm", "instance_norm", "group_norm", "layer_norm"):
        return _norm(node, name, of, widths)
    if name == "cat":
        return _cat(node, of, widths)
    if not isinstance(recorded, Tensor):
        return None
    if node.op == "call_module" and list(node.graph.owning_module.get_submodule(node.target).parameters()):
        return None
    source = of(inputs[0])
    before, after = tuple(inputs[0].meta["val"].shape), tuple(recorded.shape)
    if name == "permute":
        return [source[axis] for axis in args[1]]
    if name == "transpose":
        order = list(range(len(source)))
        order[args[1]], order[args[2]] = order[args[2]], order[args[1]]
        return [source[axis] for axis in order]
    if name in ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"):
        return _reshape(before, after, source)
    if name == "expand":
        return [()] * (len(after) - len(before)) + list(source)
    if name in ("slice", "select"):
        axis = args[1] % len(before) if len(args) > 1 else 0
        if source[axis]:
            return None
        return list(source) if name == "slice" else [part for i, part in enumerate(source) if i != axis]
    if name in _REDUCTIONS and len(inputs) == 1 and len(args) > 1:
        dims = {dim % len(before) for dim in (args[1] if isinstance(args[1], list | tuple) else [args[1]])}
        if len(after) < len(before):
            return [part for i, part in enumerate(source) if i not in dims]
        return [() if i in dims else part for i, part in enumerate(source)]
    if any(key in name for key in _CHANNELS_KEPT) and len(after) == len(before) and after[:2] == before[:2]:
        return list(source)
    if name in ("matmul", "bmm", "mm") and len(inputs) == 2:
        first, second = of(args[0]), of(args[1])
        if len(first) != len(second):
            return None
        widths.unite(first[-1], second[-2])
        return [*first[:-1], second[-1]]
    return _elementwise(inputs, after, of, widths)


def _layer(node: Any, name: str, of: Callable[[Any], list[Axis]], widths: Widths) -> list[Axis] | None:
    value, weight, bias = (*node.args, None, None)[:3]
    if not isinstance(weight, fx.Node) or weight.op != "get_attr":
        return None
    axis = len(of(value)) - 1 if name == "linear" else 1
    shape = tuple(weight.meta["val"].shape)
    result = list(of(value))
    widths.fix(*of(weight)[2:])
    transposed = name.startswith("conv_transpose")
    out, into = (1, 0) if transposed else (0, 1)
    groups = 1
    if name != "linear":
        groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
    if groups == 1:
        if of(value)[axis] or shape[into] == 1:
            widths.unite(of(value)[axis], of(weight)[into])
        else:
            widths.fix(of(weight)[into])
        result[axis] = of(weight)[out]
    elif groups == shape[0] and shape[1] == 1:
        widths.unite(of(value)[axis], of(weight)[0])
        result[axis] = of(weight)[0]
    else:
        return None
    if isinstance(bias, fx.Node):
        widths.unite(of(bias)[0], result[axis])
    return result


def _norm(node: Any, name: str, of: Callable[[Any], list[Axis]], widths: Widths) -> list[Axis]:
    value = node.args[0]
    source = of(value)
    first = len(source) - len(node.args[1]) if name == "layer_norm" else 1
    if name == "group_norm":
        widths.divide(source[1], node.args[1])
    for argument in node.all_input_nodes:
        if argument is not value and argument.op == "get_attr":
            for axis, own in enumerate(of(argument)):
                if own:
                    widths.unite(own, source[first + axis])
    return list(source)


def _cat(node: Any, of: Callable[[Any], list[Axis]], widths: Widths) -> list[Axis] | None:
    tensors = node.args[0]
    rank = node.meta["val"].dim()
    joined = (node.args[1] if len(node.args) > 1 else 0) % rank
    parts = [of(tensor) for tensor in tensors]
    result = list(parts[0])
    for other in parts[1:]:
        for axis in range(rank):
            if axis != joined and (result[axis] or other[axis]):
                widths.unite(result[axis], other[axis])
    if any(part[joined] for part in parts):
        if not all(part[joined] for part in parts):
            # A fixed part keeps its size: a width of its own that cannot change stands for it.
            for tensor, part in zip(tensors, parts, strict=True):
                if not part[joined]:
                    part[joined] = widths.new(tensor.meta["val"].shape[joined])
                    widths.fix(part[joined])
        result[joined] = tuple(piece for part in parts for piece in part[joined])
    return result


def _reshape(before: tuple[int, ...], after: tuple[int, ...], source: list[Axis]) -> list[Axis] | None:
    """Axes that a change of shape leaves alone, or joins to others that come after."""
    result: list[Axis] = []
    i = j = 0
    while i < len(before) or j < len(after):
        first, last, have, want = i, j, 1, 1
        while (have != want or (i == first and j == last)) and (i < len(before) or j < len(after)):
            if (have <= want and i < len(before)) or j >= len(after):
                have, i = have * before[i], i + 1
            else:
                want, j = want * after[j], j + 1
        ins, outs = range(first, i), range(last, j)
        tagged = [axis for axis in ins if source[axis]]
        real_ins, real_outs = [a for a in ins if before[a] != 1], [a for a in outs if after[a] != 1]
        parts: list[Axis] = [()] * len(outs)
        if tagged:
            if len(tagged) > 1 or len(real_outs) != 1 or tagged[0] != real_ins[0]:
                return None
            times = have // before[tagged[0]]
            parts[real_outs[0] - last] = tuple((width, t * times) for width, t in source[tagged[0]])
        result += parts
    return result


def _elementwise(
    inputs: list[fx.Node], after: tuple[int, ...], of: Callable[[Any], list[Axis]], widths: Widths
) -> list[Axis] | None:
    """Operations whose output has the broadcast shape of their inputs."""
    shapes = [tuple(argument.meta["val"].shape) for argument in inputs]
    try:
        if tuple(torch.broadcast_shapes(*shapes)) != after:
            return None
    except RuntimeError:
        return None
    result: list[Axis] = [()] * len(after)
    for axis in range(1, len(after) + 1):
        candidates = [
            of(argument)[-axis]
            for argument, shape in zip(inputs, shapes, strict=True)
            if len(shape) >= axis and shape[-axis] > 1
        ]
        if any(candidates):
            for parts in candidates[1:]:
                widths.unite(candidates[0], parts)
            result[-axis] = candidates[0]
    return result


def _rewrite_sizes(node: Any, axes: Any, size_of: Callable[[Axis], int]) -> None:
    """Written sizes that stand for an axis whose width has changed."""
    name = operation(node)
    if not isinstance(axes, list) or not any(axes):
        return
    if name.startswith("conv") and len(node.args) > 6 and node.args[6] != 1 and axes[1]:
        # Of convolutions with groups, only the widths of depthwise ones change.
        node.update_arg(6, size_of(axes[1]))
        return
    if name not in ("view", "reshape", "expand", "layer_norm"):
        return
    written: Any = node.args[1]
    kept = axes[-len(written) :] if name == "layer_norm" else axes
    node.update_arg(
        1,
        [
            size_of(axis) if axis and isinstance(size, int) and size != -1 else size
            for axis, size in zip(kept, written, strict=True)
        ],
    )


def _resized(tensor: Tensor, axes: list[Axis], sizes: list[int], chosen: list[int]) -> Tensor:
    """A parameter with new widths: features that are too many are left out, missing ones repeat the first."""
    for axis, parts in enumerate(axes):
        if all(sizes[width] == chosen[width] for width, _ in parts):
            continue
        index, start = [], 0
        for width, times in parts:
            old, new = sizes[width], chosen[width]
            features = torch.arange(new) % old
            index.append(start + (features[:, None] * times + torch.arange(times)).flatten())
            start += old * times
        tensor = tensor.index_select(axis, torch.cat(index).to(tensor.device))
    return tensor


def _fix_all(widths: Widths, axes: Any) -> None:
    if isinstance(axes, list):
        widths.fix(*axes)


def _set_tensor(network: nn.Module, path: str, tensor: Tensor) -> None:
    owner, _, name = path.rpartition(".")
    old, new = tensor_at(network, path), tensor.detach().clone()
    new = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
    setattr(network.get_submodule(owner), name, new)
