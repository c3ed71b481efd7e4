"""What the outputs of a network are: scores, which should not move with the light, or maps, which follow it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import getitem
from typing import Literal

from torch import Tensor, fx

from lightfast._convert.layers import LINEAR
from lightfast._convert.nodes import operation
from lightfast._convert.regions import varying_nodes

OutputKind = Literal["auto", "scores", "equivariant"]

_SHAPES_SCORES = {
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "select", "slice"),
    *("contiguous", "clone", "to", "split", "chunk", "unbind", "upsample_bilinear2d", "upsample_nearest2d"),
    *("add", "sub", "mul", "div", "mean", "sum", "stack", "cat", "max", "amax", "sigmoid", "softmax", "log_softmax"),
}
"""What may come between the last layers and the scores that are made of them: two heads averaged, one on each token."""


@dataclass
class Decision:
    """What was decided about outputs.

    Args:
        heads: the last layers before outputs that are scores.
        scores: outputs that should not move.
        reasons: a sentence per output that depends on the input: what it was taken for, and how to change that.
    """

    heads: set[fx.Node] = field(default_factory=set)
    scores: set[fx.Node] = field(default_factory=set)
    reasons: dict[fx.Node, str] = field(default_factory=dict)


def decide_outputs(graph: fx.Graph, first: fx.Node, dim: int, groups: int, output: OutputKind) -> Decision:
    """Look at each output of the network.

    By itself, an output of shape (N, k) is taken for class scores; so is one with the input's axes that a linear layer
    or convolution makes, unless it has as many channels as the input, as an image has, or is one of several maps of the
    same number of channels and different sizes: a pyramid of features, as detectors have. Others follow the light, and
    so do outputs that these are made from, such as the code of an auto-encoder.
    """
    decision, varying = Decision(), varying_nodes(graph)
    results = [r for r in next(n for n in graph.nodes if n.op == "output").all_input_nodes if _is_map(r, varying)]
    heads = {result: _last_layers(result, varying) for result in results}
    if output == "auto":
        example = first.meta["val"]
        pyramid = _pyramid(results, example, dim)
        kinds = {r: "equivariant" if r in pyramid else _kind(r, heads[r], example, dim, groups) for r in results}
        sources = _sources(result for result in results if kinds[result] == "equivariant")
        inside = [r for r in results if r in sources or (heads[r] and heads[r] <= sources)]
        kinds |= dict.fromkeys(inside, "equivariant")
    else:
        kinds = dict.fromkeys(results, output)
    for number, (result, kind) in enumerate(kinds.items()):
        if kind == "scores":
            decision.heads |= heads[result]
            decision.scores.add(result)
        recorded = result.meta["val"]
        shape = tuple(recorded.shape)
        decision.reasons[result] = _reason(number, shape, kind, output)
        same_axes = recorded.dim() == first.meta["val"].dim()
        if kind == "equivariant" and same_axes and output == "auto" and recorded.shape[dim] % groups:
            warnings.warn(
                f"output {number} {shape} follows the light with {recorded.shape[dim]} channels, which do not divide "
                f"into {groups} groups: say output='scores' if they are classes, or output='equivariant' if not",
                stacklevel=3,
            )
    return decision


def _kind(
    result: fx.Node, heads: set[fx.Node], example: Tensor, dim: int, groups: int
) -> Literal["scores", "equivariant"]:
    recorded = result.meta["val"]
    if recorded.dim() == 2:
        return "scores"
    if not heads or recorded.dim() != example.dim():
        return "equivariant"
    channels = recorded.shape[dim]
    return "equivariant" if channels == example.shape[dim] and channels >= groups else "scores"


def _sources(results: Iterable[fx.Node]) -> set[fx.Node]:
    """What values are made of, themselves included."""
    pending, found = [*results], set[fx.Node]()
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _pyramid(results: list[fx.Node], example: Tensor, dim: int) -> set[fx.Node]:
    """Outputs that are maps of as many channels as another output, which has other positions."""
    sizes: dict[int, dict[fx.Node, tuple[int, ...]]] = {}
    for result in results:
        recorded = result.meta["val"]
        if recorded.dim() == example.dim() > 2:
            sizes.setdefault(recorded.shape[dim], {})[result] = tuple(recorded.shape)
    return {result for maps in sizes.values() if len(set(maps.values())) > 1 for result in maps}


def _reason(number: int, shape: tuple[int, ...], kind: str, output: OutputKind) -> str:
    said = f"output {number} {shape}: " + ("scores, which do not move" if kind == "scores" else "follows the light")
    other = "equivariant" if kind == "scores" else "scores"
    return f"{said}, as asked" if output != "auto" else f"{said}; change it with output={other!r}"


def _last_layers(result: fx.Node, varying: set[fx.Node]) -> set[fx.Node]:
    """The linear layers that an output is made of, by sums, averages and changes of shape; none if it is not."""
    heads: set[fx.Node] = set()
    pending, seen = [result], set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if operation(node) in LINEAR:
            if _is_shared(node):
                # It is also used inside the network, where it cannot become another layer.
                return set()
            heads.add(node)
        elif operation(node) in _SHAPES_SCORES or node.target is getitem:
            pending += [argument for argument in node.all_input_nodes if argument in varying and _is_tensor(argument)]
        elif node.op != "call_module":
            return set()
        else:
            pending += [argument for argument in node.all_input_nodes if argument in varying]
    return heads


def _is_shared(layer: fx.Node) -> bool:
    weights = [a.target for a in layer.all_input_nodes if a.op == "get_attr"]
    others = (node for node in layer.graph.nodes if node.op == "get_attr" and node.target in weights)
    return any(user is not layer for node in others for user in node.users)


def _is_map(node: fx.Node, varying: set[fx.Node]) -> bool:
    recorded = node.meta.get("val")
    return isinstance(recorded, Tensor) and recorded.is_floating_point() and node in varying


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor | tuple | list)
