"""What the nodes of a graph are: their operations, the modules that they belong to, and the tensors that they hold."""

from __future__ import annotations

from torch import Tensor, fx, nn
from torch._ops import OpOverload


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
