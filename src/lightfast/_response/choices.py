"""Rules of choices and normalizations: they keep or remove a response that all elements they compare share."""

from __future__ import annotations

from typing import Any

from lightfast._response.call import CENTER, Call, joint, keep_largest
from lightfast._response.registry import axes_of, remedy, require_equal, rule, without_axes
from lightfast._response.sums import maximum
from lightfast._response.value import NoResponse, Response, align, full


@rule("amax", "amin", "max", "min", "sort", "topk")
def _largest(call: Call) -> Any:
    if "other" in call.arguments:
        return maximum(call)
    return keep_largest(call, ["self"], f"{call.name} over values of different response", CENTER)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
@rule("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _max_pooling(call: Call) -> Any:
    value = call.response("self")
    if not value.is_flat(call.positions):
        return keep_largest(call, ["self"], "max pooling over values of different response", CENTER)
    return call.first(value.moving)


@rule("scatter_reduce")
def _scatter_reduce(call: Call) -> Any:
    if call["reduce"] in ("sum", "mean"):
        return joint(call, ["self", "src"], sums=True)
    if call["reduce"] == "prod":
        raise NoResponse("product of values with response", CENTER)
    return keep_largest(call, ["self", "src"], "largest of values of different response", CENTER)


@rule("argmax", "argmin", "argsort", "softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax")
@rule("var", "std")
def _removed(call: Call) -> Response:
    """Operations that a response shared along their axes leaves as they are."""
    value, name = call.response("self"), call.name
    name = "variance" if name in ("var", "std") else "softmax" if "softmax" in name else name
    require_equal(call, value, axes_of(call.get("dim"), len(value.shape)), f"{name} over values of different response")
    return Response(call.shapes)


@rule("logsumexp", "var_mean", "std_mean")
def _kept(call: Call) -> Any:
    """Operations that a response shared along their axes passes."""
    value, several = call.response("self"), call.name != "logsumexp"
    axes = axes_of(call.get("dim"), len(value.shape))
    name = "variance" if several else call.name
    require_equal(call, value, axes, f"{name} over values of different response")
    exact = value.moving
    for axis in axes:
        exact = exact.narrow(axis + 1, 0, 1)
    exact = without_axes(call, exact, axes)
    return [Response(call.shapes[0]), call.wrap(exact, call.shapes[1])] if several else call.wrap(exact)


@rule("layer_norm")
def _layer_norm(call: Call) -> Response:
    value, rank = call.response("input"), len(call["normalized_shape"])
    axes = list(range(len(value.shape) - rank, len(value.shape)))
    why = "layer normalization over features of different response"
    require_equal(call, value, axes, why, "use lightfast.nn.LayerNorm")
    return Response(call.shapes)


@rule("group_norm")
def _group_norm(call: Call) -> Response:
    value = call.response("input")
    exact = full(value).reshape(call.space.directions, value.shape[0], call["num_groups"], -1)
    grouped = Response(tuple(exact.shape[1:]), exact)
    why = "group normalization over features of different response"
    require_equal(call, grouped, [2], why, "use lightfast.nn.GroupNorm")
    return Response(call.shapes)


@rule("batch_norm", "_native_batch_norm_legit_no_training")
@rule("_native_batch_norm_legit_functional", "_native_batch_norm_legit")
def _batch_norm(call: Call) -> Any:
    instead = f"use lightfast.nn.BatchNorm{max(len(call.response('input').shape) - 2, 1)}d"
    if call.get("training", False):
        raise NoResponse("batch statistics of a map whose images may have different offsets", instead)
    return _scaled_by_statistics(call, instead)


@rule("instance_norm")
def _instance_norm(call: Call) -> Any:
    value = call.response("input")
    instead = f"use lightfast.nn.InstanceNorm{max(len(value.shape) - 2, 1)}d"
    if not call["use_input_stats"]:
        return _scaled_by_statistics(call, instead)
    if call["running_mean"] is not None:
        raise NoResponse("running statistics of a map with response", instead)
    require_equal(call, value, list(range(2, len(value.shape))), "statistics of a map of uneven response", instead)
    return Response(call.shapes)


def _scaled_by_statistics(call: Call, instead: str) -> Any:
    """Normalization by constants: `R` is divided by the standard deviation and multiplied by the weight."""
    value, variance, weight = call.response("input"), call["running_var"], call["weight"]
    if any(isinstance(v, Response) for v in (variance, weight, call["running_mean"], call["bias"])):
        raise NoResponse("normalization by statistics that depend on the input", instead)
    scale = (variance.tensor + call["eps"]).rsqrt()
    if weight is not None:
        scale = scale * weight.tensor
    rank = len(value.shape)
    return call.first(align(value, rank, call.space) * scale.reshape(-1, *[1] * (rank - 2)))


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(call: Call) -> Response:
    if call["train"] and call["p"] > 0:
        raise NoResponse("dropout of {value}, to zero", remedy(call.name))
    return call.response("input")
