"""Layers made from operations: torch's for values that do not move, `lightfast.nn`'s for those that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch._ops import OpOverload

import lightfast.nn as lf
from lightfast._convert.blocks import Attention
from lightfast._groups import Groups
from lightfast.functional import Scope

LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
NORMS = ("batch_norm", "instance_norm", "group_norm", "layer_norm", "prelu")
"""Operations with parameters of their own that act on each feature: norms, and an activation with a learned slope."""
ACTIVATIONS: dict[str, Callable[[dict[str, Any]], tuple[type[nn.Module], type[nn.Module], dict[str, Any]]]] = {
    "relu": lambda a: (nn.ReLU, lf.ReLU, {}),
    "gelu": lambda a: (nn.GELU, lf.GELU, {"approximate": a["approximate"]}),
    "silu": lambda a: (nn.SiLU, lf.SiLU, {}),
    "tanh": lambda a: (nn.Tanh, lf.Tanh, {}),
    "sigmoid": lambda a: (nn.Sigmoid, lf.Sigmoid, {}),
    "hardswish": lambda a: (nn.Hardswish, lf.Hardswish, {}),
    "leaky_relu": lambda a: (nn.LeakyReLU, lf.LeakyReLU, {"negative_slope": a["negative_slope"]}),
    "elu": lambda a: (nn.ELU, lf.ELU, {"alpha": a["alpha"]}),
    "dropout": lambda a: (nn.Dropout, lf.Dropout, {"p": a["p"]}),
    "feature_dropout": lambda a: (nn.Dropout2d, lf.Dropout2d, {"p": a["p"]}),
}
"""Activations and dropout: torch's layer, ours, and the options of both, from an operation's arguments."""


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen call by the names of its schema, defaults included."""
    assert isinstance(node.target, OpOverload)
    schema = node.target._schema.arguments
    written = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
    return {a.name: written.get(a.name, a.default_value) for a in schema}


def assign(groups: Groups, outputs: int, conv_groups: int = 1) -> Groups | None:
    """The assignment of a layer's outputs: runs over the groups that they can see; None if some group has no output.

    A depthwise layer's outputs belong where its inputs do.
    """
    blocks_in, blocks_out = groups.features // conv_groups, outputs // conv_groups
    assignment: list[int] = []
    for block in range(conv_groups):
        seen = sorted(set(groups.assignment[block * blocks_in : (block + 1) * blocks_in]))
        if blocks_in == 1 or conv_groups == 1:
            if blocks_out < len(seen):
                return None
            assignment += [seen[i] for i in Groups.runs(blocks_out, len(seen)).assignment]
        else:
            shares = Groups.runs(blocks_out, min(blocks_out, len(seen)))
            assignment += [seen[i] for i in shares.assignment]
    return Groups(assignment, groups.count)


def linear_layer(
    name: str,
    call: dict[str, Any],
    weight: Tensor,
    bias: Tensor | None,
    groups: tuple[Groups, Groups] | None = None,
    padding_mode: str = "zeros",
) -> nn.Module:
    """A linear layer or convolution with the shape of `weight`; `lightfast.nn`'s if `groups` are given.

    Args:
        name: of the operation.
        call: its arguments.
        weight: as the operation takes it.
        bias: or None.
        groups: the assignments of input and output.
        padding_mode: in place of zeros, with `groups`.
    """
    offsets: dict[str, Any] = {} if groups is None else {"offset_groups": groups}
    common: dict[str, Any] = {"bias": bias is not None, "dtype": weight.dtype, "device": weight.device}
    source: Any = nn if groups is None else lf
    if name == "linear":
        return source.Linear(weight.shape[1], weight.shape[0], **common, **offsets)
    transposed, rank = "transpose" in name, int(name[-2])
    layer = getattr(source, f"Conv{'Transpose' if transposed else ''}{rank}d")
    split = call["groups"]
    into, out = weight.shape[1] * split, weight.shape[0]
    common |= {"kernel_size": tuple(weight.shape[2:]), "groups": split}
    common |= {key: _tuple(call[key], rank) for key in ("stride", "dilation", "padding")}
    if transposed:
        into, out = weight.shape[0], weight.shape[1] * split
        common["output_padding"] = _tuple(call["output_padding"], rank)
    if groups is not None:
        common["padding_mode"] = "replicate" if transposed else padding_mode
    return layer(into, out, **common, **offsets)


def unary_layer(
    name: str,
    call: dict[str, Any],
    sizes: Sequence[int],
    weight: Tensor | None,
    groups: Groups | None,
    scope: Scope = "image",
    dim: int = 1,
) -> nn.Module:
    """A norm, an activation or dropout; `lightfast.nn`'s if `groups` are given.

    Args:
        name: of the operation.
        call: its arguments; of a norm that averages over all batches so far, the momentum is no number.
        sizes: the input's shape.
        weight: the scale that the operation takes, or None.
        groups: the assignment of the input.
        scope: of ours.
        dim: the features' axis, of our activations; norms know theirs.
    """
    rank = min(max(len(sizes) - 2, 1), 3)
    source: Any = nn if groups is None else lf
    offsets: dict[str, Any] = {} if groups is None else {"offset_groups": groups, "scope": scope}
    if name in ACTIVATIONS:
        plain, ours, own = ACTIVATIONS[name](call)
        return plain(**own) if groups is None else ours(**own, **offsets, dim=dim)
    if name == "prelu":
        assert weight is not None
        return source.PReLU(weight.numel(), **offsets)
    if name == "layer_norm":
        affine = {"elementwise_affine": weight is not None, "bias": call["bias"] is not None}
        return source.LayerNorm(list(call["normalized_shape"]), eps=call["eps"], **affine, **offsets)
    if name == "group_norm":
        return source.GroupNorm(call["num_groups"], sizes[1], eps=call["eps"], affine=weight is not None, **offsets)
    layer = getattr(source, f"{'BatchNorm' if name == 'batch_norm' else 'InstanceNorm'}{rank}d")
    tracked = call["running_mean"] is not None
    momentum = None if math.isnan(call["momentum"]) else call["momentum"]
    return layer(sizes[1], call["eps"], momentum, weight is not None, tracked, **offsets)


def plain_layer(name: str, call: dict[str, Any]) -> Attention | None:
    """The layer for an operation that behaves differently in training, other than the above."""
    if name != "scaled_dot_product_attention":
        return None
    extra = {"enable_gqa": True} if call.get("enable_gqa") else {}
    return Attention(call["dropout_p"], call["is_causal"], call["scale"], **extra)


def _tuple(value: Any, rank: int) -> Any:
    if isinstance(value, str):
        return value
    sizes = tuple(value) if isinstance(value, list | tuple) else (value,)
    return sizes * rank if len(sizes) == 1 else sizes
