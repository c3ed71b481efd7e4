"""A network as a graph of pure ATen operations in training mode, with parameters under their own names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from lightfast._tracing import export, quiet, two_images

_RANDOM_LAYERS = ("dropout", "dropout_", "feature_dropout", "feature_dropout_", "scaled_dot_product_attention")
"""Operations that draw at random in training, and of which layers are made that do not in evaluation."""

_ATTENTION = ("scaled_dot_product_attention", "matmul", "bmm", "einsum")

_VIEWS = ("view", "select", "slice", "transpose", "permute", "expand", "squeeze", "unsqueeze", "narrow", "t", "detach")


class PlainGraph(NamedTuple):
    """A network as a graph, and whether it takes batches of the example's size alone."""

    network: fx.GraphModule
    fixed_batch: bool


def plain_graph(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PlainGraph:
    """Export a copy of the model in training mode, for any batch size, and any positions if it has no attention.

    In-place operations are replaced by pure ones. Modules that draw random numbers by themselves (stochastic depth) are
    kept as calls, since only they know what to do in evaluation. Shapes of the example are recorded in `meta["val"]`.

    Raises:
        ValueError: with the reason, where the model cannot be exported or has side effects that cannot be removed.
    """
    model = deepcopy(model).train()
    args, kwargs, _ = two_images(args, kwargs)
    fixed = False
    try:
        program = export(model, args, kwargs, dynamic_shapes=_dynamic(model, args, kwargs, range(1)))
    except ValueError:
        program, fixed = export(model, args, kwargs), True
    if not fixed and not any(operation(node) in _ATTENTION for node in program.graph.nodes):
        # Symbolic sizes of windows and tokens take minutes, and position embeddings fix them anyway.
        with suppress(ValueError):
            program = export(model, args, kwargs, dynamic_shapes=_dynamic(model, args, kwargs, range(8)))
    with quiet():
        network = program.module(check_guards=False)
    assert isinstance(network, fx.GraphModule)
    _keep_random_modules(network, model)
    _make_pure(network.graph)
    network.graph.eliminate_dead_code()
    propagate(network, args, kwargs)
    return PlainGraph(network, fixed)


def propagate(network: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record what each node gives for these inputs, as tensors without values."""
    inputs = pytree.tree_leaves((args, kwargs))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, Tensor) else leaf for leaf in inputs]
    with quiet(), torch.no_grad():
        FakeTensorProp(network, mode).propagate_dont_convert_inputs(*fake)


def operation(node: fx.Node) -> str:
    """The ATen name of a call without overload, or an empty string for any other node."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return ""
    return node.target._schema.name.removeprefix("aten::")


def stack_of(node: fx.Node) -> list[tuple[str, str]]:
    """(call, path) of the modules that a node belongs to, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    return [(str(call), str(path)) for call, (path, _) in stack.items() if not str(call).startswith("_empty")]


def tensor_at(network: nn.Module, path: str) -> Tensor:
    """The parameter or buffer at a path."""
    owner, _, name = path.rpartition(".")
    return getattr(network.get_submodule(owner), name)


def _dynamic(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], axes: Iterable[int]) -> Any:
    """Which sizes may change: the given axes of every tensor, by the names of the arguments of `forward`."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {axis: Dim.AUTO for axis in axes if axis < leaf.dim()}

    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: pytree.tree_map(of, argument) for name, argument in bound.items()}


def _keep_random_modules(network: fx.GraphModule, model: nn.Module) -> None:
    """Put a call of the module in the place of what it does, for modules that draw random numbers by themselves."""
    while True:
        node = next(filter(_draws, network.graph.nodes), None)
        if node is None:
            return
        stack = stack_of(node)
        call, path = stack[-1] if stack else ("", "")
        if not path:
            raise ValueError(
                f"{operation(node)} draws random numbers in the network's own forward, which would go on in "
                "evaluation: move it into a module of its own"
            )
        _collapse(network, call, path, model.get_submodule(path))


def _draws(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or operation(node) in _RANDOM_LAYERS:
        return False
    return torch.Tag.nondeterministic_seeded in target.tags


def _collapse(network: fx.GraphModule, call: str, path: str, module: nn.Module) -> None:
    """Replace one call of a module, traced, by the call itself."""
    graph = network.graph
    inside = [node for node in graph.nodes if any(name == call for name, _ in stack_of(node))]
    members = set(inside)
    inputs = {a: None for node in inside for a in node.all_input_nodes if a not in members and _is_tensor(a)}
    results = [node for node in inside if any(user not in members for user in node.users)]
    if len(inputs) != 1 or len(results) != 1:
        raise ValueError(
            f"{path} draws random numbers and has {len(inputs)} inputs and {len(results)} outputs, where one of each "
            "is needed to keep it as it is: split it, or take the drawing out"
        )
    network.add_submodule(path, module)
    with graph.inserting_after(results[0]):
        replacement = graph.call_module(path, tuple(inputs))
    replacement.meta = {key: results[0].meta[key] for key in ("val", "nn_module_stack")}
    results[0].replace_all_uses_with(replacement)
    for node in reversed(inside):
        graph.erase_node(node)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor) and node.op != "get_attr"


def _make_pure(graph: fx.Graph) -> None:
    """Replace operations that write into a tensor by those that give a new one, and drop checks and counters."""
    for node in list(graph.nodes):
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload):
            continue
        if not target._schema.returns or (target._schema.is_mutable and node.args[0].op == "get_attr"):
            # Checks of shapes, and counters of batches, which the layers keep themselves.
            node.replace_all_uses_with(node.args[0]) if node.users else None
            graph.erase_node(node)
        elif target._schema.is_mutable:
            _replace_in_place(graph, node)


def _replace_in_place(graph: fx.Graph, node: fx.Node) -> None:
    name, written = operation(node), node.args[0]
    assert isinstance(written, fx.Node) and isinstance(node.target, OpOverload)
    later = set()
    after = False
    for other in graph.nodes:
        after = after or other is node
        if after:
            later.add(other)
    shares = [user for user in written.users if user not in later and operation(user) in _VIEWS]
    if operation(written) in _VIEWS or any(user in later for view in shares for user in view.users):
        where = stack_of(node)[-1][1] if stack_of(node) else "the network"
        raise ValueError(
            f"{where} writes with {name} into a part of a tensor, which others may share: write it without side effects"
        )
    packet = getattr(torch.ops.aten, name.removesuffix("_"))
    node.target = getattr(packet, node.target._overloadname)
    written.replace_all_uses_with(node, delete_user_cb=lambda user: user in later and user is not node)
