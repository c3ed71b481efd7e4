"""A network as JSON, and back: a graph of known layers and known operations, without the code that it was written in.

Nothing in a description is executed: layers and operations are looked up in lists that are written here, names have to
be identifiers, and weights come from elsewhere. So a description from a stranger can be read.
"""

from __future__ import annotations

import inspect
import keyword
import math
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

import lightfast.nn as ours
from lightfast._convert import blocks
from lightfast._convert.modules import Modules
from lightfast._groups import Groups
from lightfast._response.registry import RULES
from lightfast._wrap import Wrapped
from lightfast.nn._constrained import Constrained

__all__ = ["Undescribed", "describe", "restore"]

_POSITIONS = ("1d", "2d", "3d")
_TORCH_LAYERS = (
    *("Linear", "Identity", "PReLU", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "Hardswish", "LeakyReLU", "ELU"),
    *("GroupNorm", "LayerNorm", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"),
    *(f"{layer}{n}" for layer in ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm") for n in _POSITIONS),
)


def _modules_in(namespace: Any, prefix: str, names: Sequence[str]) -> dict[str, type[nn.Module]]:
    found = {f"{prefix}{name}": getattr(namespace, name) for name in names}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, nn.Module)}


_LAYERS: dict[str, type[nn.Module]] = {
    **_modules_in(nn, "", _TORCH_LAYERS),
    **_modules_in(ours, "lightfast.", ours.__all__),
    **_modules_in(blocks, "convert.", [name for name in vars(blocks) if not name.startswith("_")]),
}
"""The layers that a description may name."""

_NAMES = {kind: name for name, kind in reversed(_LAYERS.items())}

_MORE_OPERATIONS = {
    *("bernoulli", "rand_like", "randn_like", "ones", "zeros", "ones_like", "zeros_like", "full_like", "empty_like"),
    *("new_ones", "new_zeros", "new_full", "linspace", "meshgrid", "eye", "type_as", "square", "softplus", "mish"),
    *("hardsigmoid", "hardswish", "silu", "log_sigmoid", "glu", "relu6", "scaled_dot_product_attention", "lstm", "gru"),
    *("clamp_min", "clamp_max", "norm", "linalg_vector_norm", "rms_norm", "cumprod", "erf", "floor_divide", "take"),
    *("normalize", "prelu", "_prelu_kernel", "replication_pad1d", "reflection_pad1d", "grid_sampler", "celu", "selu"),
    *("logical_and", "ger", "outer", "swapaxes", "unsafe_split", "unsafe_chunk", "hstack", "vstack", "numel", "square"),
    *("is_floating_point", "broadcast_to", "cosine_similarity", "exp2", "frobenius_norm", "trunc", "view_as", "lerp"),
    *("rnn_tanh", "rnn_relu", "addcmul", "addcdiv", "native_batch_norm", "adaptive_avg_pool2d", "upsample_nearest2d"),
}
_REFUSED_OPERATIONS = {"as_strided", "empty_strided", "_local_scalar_dense"}
"""Of torch's core, those that look at memory itself, or leave the graph."""

_PYTHON: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(operator, name)
        for name in ("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "eq", "ne", "lt", "le", "gt")
    },
    "ge": operator.ge,
    **{name: getattr(torch, name) for name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not")},
    "ceil": math.ceil,
    "floor": math.floor,
}
"""Functions on sizes, and the one that takes a part."""

_PYTHON_NAMES = {function: name for name, function in _PYTHON.items()}

_TORCH_VALUES: dict[str, type] = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}


class Undescribed(ValueError):
    """A network, or a part of it, that is made of something else than known layers and operations."""


# --- from a network to a description


def describe(module: nn.Module) -> dict[str, Any]:
    """What a network is made of, as JSON holds it, without its weights.

    Args:
        module: what :func:`lightfast.convert` returned or :func:`lightfast._convert.capture.capture` made; one of the
            known layers; or one of these in :func:`lightfast.wrap`.

    Raises:
        Undescribed: it is something else.
    """
    if isinstance(module, Wrapped):
        return {"type": "Wrapped", "options": _options(module, skip=("model",)), "model": describe(module.model)}
    if isinstance(module, blocks.Modes):
        return {
            "type": "Modes",
            "training": describe(module.in_training),
            "evaluation": describe(module.in_evaluation),
        }
    if isinstance(module, fx.GraphModule):
        return _describe_graph(module)
    if type(module) in _NAMES:
        described = {"type": _NAMES[type(module)], "options": _options(module)}
        first = next(module.parameters(), None)
        return described if first is None else {**described, "dtype": _value(first.dtype)["dtype"]}
    raise Undescribed(f"{type(module).__name__} is none of the layers that a saved network is made of")


def _describe_graph(network: fx.GraphModule) -> dict[str, Any]:
    nodes = []
    called: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for node in network.graph.nodes:
        args: Any = node.args
        target = str(node.target)
        if node.op == "call_function":
            target = _function_name(node)
        elif node.op == "call_module" and target not in called:
            called[target] = _described_part(network, node)
        elif node.op == "get_attr" and target not in tensors:
            tensors[target] = _described_tensor(network, target)
        elif node.op == "output":
            args = [_returned(network, node)]
        described: dict[str, Any] = {"op": node.op, "name": node.name, "target": target}
        if args:
            described["args"] = _value(args)
        if node.kwargs:
            described["kwargs"] = _value(dict(node.kwargs))["dict"]
        nodes.append(described)
    shared = _shared(network)
    whole = {"type": "Graph", "name": type(network).__name__, "nodes": nodes, "modules": called, "tensors": tensors}
    return {**whole, "shared": shared} if shared else whole


def _described_part(network: fx.GraphModule, node: fx.Node) -> dict[str, Any]:
    path = str(node.target)
    module = network.get_submodule(path)
    try:
        return describe(module)
    except Undescribed as error:
        raise Undescribed(f"{path}: {error}") from None


def _described_tensor(network: nn.Module, path: str) -> dict[str, Any]:
    owner, _, name = path.rpartition(".")
    tensor = getattr(network.get_submodule(owner), name)
    if not isinstance(tensor, Tensor):
        raise Undescribed(f"{path} is {type(tensor).__name__}, where a network has tensors")
    kind = {"dtype": _value(tensor.dtype)["dtype"], "shape": list(tensor.shape)}
    return {**kind, "parameter": isinstance(tensor, nn.Parameter)}


def _function_name(node: fx.Node) -> str:
    if isinstance(node.target, OpOverload):
        name = str(node.target)
        if _is_known(node.target):
            return name
        raise Undescribed(f"the operation {name} is none of those that a saved network may hold")
    function: Any = node.target
    if function in _PYTHON_NAMES:
        return f"python.{_PYTHON_NAMES[function]}"
    raise Undescribed(f"{node.target} is no operation that a saved network may hold")


@cache
def _is_known(target: OpOverload) -> bool:
    name, packet = target._schema.name.removeprefix("aten::"), target.overloadpacket
    core = any(torch.Tag.core in getattr(packet, overload).tags for overload in packet.overloads())
    known = core or name in RULES or name in _MORE_OPERATIONS
    pure = not target._schema.is_mutable and bool(target._schema.returns)
    return known and pure and name not in _REFUSED_OPERATIONS and target.namespace == "aten"


def _returned(network: fx.GraphModule, output: fx.Node) -> Any:
    """What a network gives, in lists and dictionaries."""
    info = getattr(network.graph._codegen, "pytree_info", None)
    if info is None:
        return output.args[0]
    placeholders = [node for node in network.graph.nodes if node.op == "placeholder"]
    args, kwargs = pytree.tree_unflatten(placeholders, info.in_spec)
    if not all(isinstance(leaf, fx.Node) for leaf in (*args, *kwargs.values())):
        raise Undescribed("its inputs are not tensors by themselves")
    results: Any = output.args[0]
    return pytree.tree_unflatten(results, info.out_spec)


def _shared(network: nn.Module) -> dict[str, str]:
    """Parameters that are another one under a second name: the first name of each."""
    first: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            shared[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    return shared


def _options(module: nn.Module, skip: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments that a layer was made with, by their names, which are those of its attributes."""
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name in ("device", "dtype", *skip) or (name == "dim" and isinstance(module, ours.LayerNorm)):
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= getattr(module, name)
        elif name == "bias":
            found[name] = module.bias is not None
        elif name == "offset_groups" and isinstance(module, Constrained):
            found[name] = (module.in_groups, module.out_groups)
        elif hasattr(module, name):
            found[name] = getattr(module, name)
        else:
            raise Undescribed(f"{type(module).__name__} does not say what {name} is")
    return {name: _value(value) for name, value in found.items()}


def _value(value: Any) -> Any:
    """An argument as JSON holds it; what JSON has no word for is a dictionary with one entry that says what it is."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Groups):
        return {"groups": [[group, len(list(run))] for group, run in groupby(value.assignment)], "of": value.count}
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    if isinstance(value, Mapping):
        return {"dict": {str(key): _value(each) for key, each in value.items()}}
    if isinstance(value, slice):
        return {"slice": [_value(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, type_ in _TORCH_VALUES.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    raise Undescribed(f"{type(value).__name__} cannot be written down as JSON")


# --- and back


def restore(description: Any) -> nn.Module:
    """The network that was described, with weights that are still to be loaded.

    Raises:
        ValueError: it is no description of a network, or names what no network may hold; the sentence says what.
    """
    try:
        return _restored(description, depth=0)
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"the description of its network does not hold together: {error}") from None


_DEEPEST = 4


def _restored(described: Any, depth: int) -> nn.Module:
    described = _mapping(described, "a network")
    kind = described.get("type")
    if depth > _DEEPEST:
        raise ValueError("the description of its network goes too deep")
    if kind == "Wrapped":
        options = _given_options(described)
        return Wrapped(_restored(described.get("model"), depth + 1), **options)
    if kind == "Modes":
        return blocks.Modes(*(_restored(described.get(mode), depth + 1) for mode in ("training", "evaluation")))
    if kind == "Graph":
        return _restored_graph(described, depth)
    if not isinstance(kind, str) or kind not in _LAYERS:
        raise ValueError(f"its network has a layer {_shown(kind)}, which is none that a saved network may hold")
    layer, options = _LAYERS[kind], _given_options(described)
    if "dtype" in described:
        # Memory is taken when weights come, so that a description alone cannot ask for much.
        options |= {"dtype": _given({"dtype": described["dtype"]})}
        if "device" in inspect.signature(layer).parameters:
            return layer(**options, device="meta").to_empty(device="cpu")
        dtype = options.pop("dtype")
        return layer(**options).to(dtype)
    return layer(**options)


def _restored_graph(described: Mapping[str, Any], depth: int) -> fx.GraphModule:
    modules, graph = Modules(load=False), fx.Graph()
    for path, part in _mapping(described.get("modules", {}), "modules").items():
        _place(modules, path, _restored(part, depth + 1))
    for path, about in _mapping(described.get("tensors", {}), "tensors").items():
        about = _mapping(about, "a tensor")
        dtype, shape = _given({"dtype": about.get("dtype")}), _shape(about.get("shape"))
        tensor = torch.empty(shape, dtype=dtype)
        held = nn.Parameter(tensor) if about.get("parameter") is True else tensor
        modules.take_over(_path(path), held)
    nodes: dict[str, fx.Node] = {}
    for entry in described.get("nodes", ()):
        entry = _mapping(entry, "a node")
        op, name = entry.get("op"), _identifier(entry.get("name"))
        args = tuple(_given(each, nodes) for each in entry.get("args", ()))
        kwargs = {_identifier(key): _given(each, nodes) for key, each in entry.get("kwargs", {}).items()}
        target: Any = entry.get("target")
        if op == "call_function":
            target = _function(target)
        elif op in ("call_module", "get_attr"):
            target = _path(target)
        elif op in ("placeholder", "output"):
            target = _identifier(target)
        else:
            raise ValueError(f"its network has a step {_shown(op)}, which is none that a saved network may hold")
        nodes[name] = graph.create_node(op, target, args, kwargs, name)
    graph.lint()
    network = fx.GraphModule(modules.root, graph, _identifier(described.get("name", "Network")))
    for path, first in _mapping(described.get("shared", {}), "shared").items():
        owner, _, name = _path(path).rpartition(".")
        setattr(network.get_submodule(owner), name, network.get_parameter(_path(first)))
    return network


def _place(modules: Modules, path: str, module: nn.Module) -> None:
    if modules.place(_path(path), module) != path:
        raise ValueError(f"its network has two parts at {_shown(path)}")


def _function(target: Any) -> Callable[..., Any]:
    space, _, name = str(target).partition(".")
    if space == "python" and name in _PYTHON:
        return _PYTHON[name]
    packet, _, overload = name.partition(".")
    if space == "aten" and re.fullmatch(r"\w+", packet) and re.fullmatch(r"\w+", overload):
        found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if isinstance(found, OpOverload) and _is_known(found):
            return found
    raise ValueError(f"its network has an operation {_shown(target)}, which is none that a saved network may hold")


def _given_options(described: Mapping[str, Any]) -> dict[str, Any]:
    options = _mapping(described.get("options", {}), "options")
    found = {_identifier(name): _given(value) for name, value in options.items()}
    # Pairs are tuples where a list would be something else.
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def _given(value: Any, nodes: Mapping[str, fx.Node] | None = None) -> Any:
    """The argument that :func:`_value` wrote down."""
    if isinstance(value, list):
        return [_given(each, nodes) for each in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    content: Any = value.get(kind)
    if kind == "node" and nodes is not None and content in nodes:
        return nodes[content]
    if kind == "float":
        return float(content)
    if kind == "groups":
        return _groups(content, value.get("of"))
    if kind == "dict":
        return {str(key): _given(each, nodes) for key, each in _mapping(content, "a dictionary").items()}
    if kind == "slice":
        return slice(*(_given(part, nodes) for part in content))
    if kind == "device" and re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", str(content)):
        return torch.device(content)
    if kind in _TORCH_VALUES and isinstance(found := getattr(torch, str(content), None), _TORCH_VALUES[kind]):
        return found
    raise ValueError(f"its network has a value {_shown(value)}, which is none that a saved network may hold")


_MOST_FEATURES = 2**20


def _groups(runs: Any, count: Any) -> Groups:
    lengths = [length for _, length in runs]
    if not all(isinstance(length, int) and length > 0 for length in lengths) or sum(lengths) > _MOST_FEATURES:
        raise ValueError(f"its network has an assignment {_shown(runs)}, which no features have")
    return Groups((group for group, length in runs for _ in range(length)), count)


def _shape(shape: Any) -> list[int]:
    if not isinstance(shape, list) or not all(isinstance(size, int) and 0 <= size < 2**31 for size in shape):
        raise ValueError(f"its network has a tensor of shape {_shown(shape)}")
    return shape


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} must be a table of names and values, but is {_shown(value)}")
    return OrderedDict(value)


def _identifier(name: Any) -> str:
    """A name, which becomes part of the code that torch makes of a graph: nothing but a name may pass."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or keyword.iskeyword(name):
        raise ValueError(f"its network has a name {_shown(name)}, which is none")
    return name


def _path(path: Any) -> str:
    """Names of modules, or their numbers in a sequence, with points between them."""
    if not isinstance(path, str) or not re.fullmatch(r"\w+(\.\w+)*", path, re.ASCII):
        raise ValueError(f"its network has a path {_shown(path)}, which is none")
    return path


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
