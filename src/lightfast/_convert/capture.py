"""A network of anyone's as a graph of known layers, so that it can be saved without its code."""

from __future__ import annotations

import copy
import warnings
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from lightfast._convert.blocks import Modes
from lightfast._convert.describe import Undescribed, describe
from lightfast._convert.graph import plain_graph
from lightfast._convert.outputs import Decision
from lightfast._convert.report import Conversion
from lightfast._convert.rewrite import Rewriter
from lightfast._convert.walk import Options
from lightfast._response import Space
from lightfast._tracing import export, quiet
from lightfast._wrap import Wrapped

__all__ = ["capture"]

_TOLERANCE = 1e-4
"""By how much a captured network may differ from the network, relative to its largest output (and to 1)."""


def capture(model: nn.Module, example: Tensor | None) -> nn.Module:
    """The same network, weights included, made of layers and operations that :func:`describe` knows.

    Layers are under their old names and switch between training and evaluation as before. What comes out is compared
    with the network in evaluation mode, on random inputs of several batch sizes; where a network has ways of its own to
    differ in training, it is captured as it is in evaluation.

    Args:
        model: left as it is.
        example: an input, (N, ...), of which only shape and type matter; None where the model is such a graph already.

    Raises:
        ValueError: it cannot be exported, or holds what cannot be saved; the sentence says what.
    """
    if isinstance(model, Wrapped):
        inner = copy.copy(model)
        inner._modules = {"model": capture(model.model, example)}
        return inner
    reasons: list[str] = []
    if isinstance(model, fx.GraphModule):
        model = _without_foreign_modules(model)
        try:
            describe(model)
        except Undescribed as error:
            reasons.append(str(error))
        else:
            return model
    if example is None:
        unknown = "the size of its images is not known: give size="
        raise ValueError(f"{type(model).__name__} cannot be saved without its code: {(*reasons, unknown)[0]}")
    for make in (_layered, _in_evaluation):
        try:
            captured = make(model, example)
            describe(captured)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if (difference := _difference(model, captured, example)) <= _TOLERANCE:
            if make is _in_evaluation:
                warnings.warn(
                    f"{type(model).__name__} is saved as it is in evaluation, so that training one that was loaded "
                    f"leaves its statistics as they are: {reasons[-1]}",
                    stacklevel=2,
                )
            return _like(captured, model)
        reasons.append(f"what was captured differs from it by {difference:.2g}")
    raise ValueError(f"{type(model).__name__} cannot be saved without its code: {reasons[0]}")


def _is_described(model: nn.Module) -> bool:
    try:
        describe(model)
    except Undescribed:
        return False
    return True


def _like(captured: nn.Module, model: nn.Module) -> nn.Module:
    """In the mode of before, with parameters that want gradients where they did."""
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in captured.named_parameters():
        parameter.requires_grad_(wanted.get(name, parameter.requires_grad))
    return captured.train(model.training)


def _layered(model: nn.Module, example: Tensor) -> nn.Module:
    """In torch's layers: the walk of a conversion in which nothing moves."""
    network, _ = plain_graph(model, (example,), {})
    space = Space(2, 1)
    leaves = {path for path, module in model.named_modules() if path and not list(module.children())}
    options = Options("project", "zeros", "image")
    rewriter = Rewriter(network, {}, space, set(), Decision(), leaves, options, Conversion())
    return _without_foreign_modules(rewriter.run(type(model).__name__))


def _in_evaluation(model: nn.Module, example: Tensor) -> nn.Module:
    """As it is in evaluation, in training too."""
    with quiet():
        own = deepcopy(model).eval()
    return _program(own, example)


def _program(model: nn.Module, example: Tensor) -> fx.GraphModule:
    two = torch.cat([example[:1], example[:1]])
    try:
        program = export(model, (two,), {}, dynamic_shapes=({0: torch.export.Dim.AUTO},))
    except ValueError:
        program = export(model, (two,), {})
    with quiet():
        network = program.run_decompositions({}).module(check_guards=False)
    assert isinstance(network, fx.GraphModule)
    for node in list(network.graph.nodes):
        if node.op == "call_function" and not getattr(getattr(node.target, "_schema", None), "returns", True):
            # Checks of shapes.
            network.graph.erase_node(node)
    network.graph.eliminate_dead_code()
    # A module of torch.export refuses train() and eval(); what it gives is described by a tree beside the graph.
    graph, copies = fx.Graph(), {}
    info: Any = network.graph._codegen
    results: Any = graph.graph_copy(network.graph, copies)
    graph.output(pytree.tree_unflatten(results, info.pytree_info.out_spec))
    return fx.GraphModule(network, graph, type(model).__name__)


def _without_foreign_modules(network: fx.GraphModule) -> fx.GraphModule:
    """Modules that were kept as calls, because they draw random numbers, as what they do in either mode."""
    foreign = {}
    for node in network.graph.nodes:
        if node.op != "call_module" or str(node.target) in foreign:
            continue
        module = network.get_submodule(str(node.target))
        if _is_described(module):
            continue
        if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
            raise Undescribed(
                f"{node.target} ({type(module).__name__}) draws random numbers and has weights of its own: it was kept "
                "whole, and cannot be saved without its code"
            )
        # What draws random numbers by itself gives the shape that it takes.
        recorded = node.meta.get("val")
        if not isinstance(recorded, Tensor):
            raise Undescribed(f"{node.target} ({type(module).__name__}) can be saved before its network is, not after")
        example = torch.zeros([*recorded.shape], dtype=recorded.dtype)
        with quiet():
            own = deepcopy(module)
        foreign[str(node.target)] = Modes(*(_program(own.train(mode), example) for mode in (True, False)))
    if not foreign:
        return network
    with quiet():
        network = deepcopy(network)
    for path, modes in foreign.items():
        network.set_submodule(path, modes.train(network.training))
    return network


@torch.no_grad()
def _difference(model: nn.Module, captured: nn.Module, example: Tensor) -> float:
    """The largest difference between two networks in evaluation mode, relative to the largest output, and to 1."""
    with quiet():
        model, captured = deepcopy(model).eval(), deepcopy(captured).eval()
    largest = 0.0
    for count in (1, 3):
        generator = torch.Generator().manual_seed(count)
        x = torch.randn([count, *example.shape[1:]], generator=generator).to(example)
        expected, given = (pytree.tree_leaves(_plain(net(x))) for net in (model, captured))
        for one, other in zip(expected, given, strict=True):
            if isinstance(one, Tensor):
                scale = max(1.0, one.abs().max().item())
                largest = max(largest, ((one - other).abs().max() / scale).nan_to_num(float("inf")).item())
    return largest


def _plain(returned: Any) -> Any:
    """What a network gave, without what is None."""
    return [leaf for leaf in pytree.tree_leaves(returned) if leaf is not None]
