"""A network as a graph of pure ATen operations, with parameters under their own names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from lightfast._convert.blocks import StochasticDepth
from lightfast._convert.checking import EXAMPLE, Witness
from lightfast._convert.exporting import (
    FIXED_BATCH,
    FIXED_SIZE,
    SEVERAL_IMAGES,
    depends_on_mode,
    name_batch,
    sharing_copy,
    taken_apart,
    ways,
)
from lightfast._convert.nodes import operation, stack_of
from lightfast._convert.writes import SharedWrite, make_pure
from lightfast._tracing import quiet, two_images

_RANDOM_LAYERS = ("dropout", "dropout_", "feature_dropout", "feature_dropout_", "scaled_dot_product_attention")
"""Operations that draw at random in training, and of which layers are made that do not in evaluation."""

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_UNLIKE = (
    "what can be seen of {} is not what it computes: {}. It should do the same for every number of images, and with "
    "nothing but its inputs and weights"
)


class PlainGraph(NamedTuple):
    """A network as a graph, and sentences about sizes of the example that others cannot take the place of."""

    network: fx.GraphModule
    fixed: tuple[str, ...]


def plain_graph(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int = 1, training: bool = True
) -> PlainGraph:
    """Export a copy of the model, for any batch size, and any positions if it has no attention.

    In-place operations are replaced by pure ones. Modules that draw random numbers by themselves (stochastic depth) are
    kept as calls, since only they know what to do in evaluation. Shapes of the example are recorded in `meta["val"]`.

    What comes out has computed what the model computes: in evaluation mode, for several images and for one, of another
    size unless it is said that it is for the example's alone.

    Args:
        model: the network, which may share its parameters with what comes out.
        args: an example of its inputs.
        kwargs: likewise, by name.
        dim: the features' axis of the inputs.
        training: whether to look at it in training, as converting does where it can: layers know what they do in
            evaluation. What draws random numbers in evaluation does so in either mode, and may stay among operations.

    Raises:
        ValueError: with the reason, where the model cannot be exported, has side effects that cannot be removed, or
            where what was exported computes something else.
    """
    two, named, _ = two_images(args, kwargs)
    witness, found, reason = Witness(model, args, kwargs, dim), None, ValueError()
    for way in ways(_with_momentum(model), args, kwargs, dim, training):
        if found is not None and not way.any_size:
            continue
        try:
            program, batch, fixed = way.export()
        except ValueError as error:
            reason = error
            continue
        network = _rewritten(program, model, training, batch)
        any_number, any_size = FIXED_BATCH not in fixed, FIXED_SIZE not in fixed
        images, size = witness.takes(batch or 2, any_number, any_size)
        difference, sized = witness.differs(network, images, size, training), False
        if difference and size != EXAMPLE:
            size, difference, sized = EXAMPLE, witness.differs(network, images, EXAMPLE, training), True
        if difference:
            if training and depends_on_mode(model, two, named):
                raise ValueError(f"in training it does something else, by which {difference}")
            reason = ValueError(_UNLIKE.format(type(model).__name__, difference))
            continue
        several = any_number and witness.differs(network, 1, size, training)
        fixed += (*[FIXED_SIZE] * sized, *[SEVERAL_IMAGES] * bool(several))
        found = found if found and FIXED_SIZE in fixed else PlainGraph(network, fixed)
        if FIXED_SIZE not in fixed:
            break
    if found is None:
        raise reason
    propagate(found.network, two, named)
    return found


def _rewritten(program: ExportedProgram, model: nn.Module, training: bool, batch: int | None) -> fx.GraphModule:
    """The program as a module, in pure operations, for any number of images."""
    try:
        network = _pure(program, model, training)
    except SharedWrite:
        network = _pure(taken_apart(program), model, training)
    if batch is not None:
        name_batch(network, batch)
    # What torch checks before each call is that sizes are those of the export.
    network._forward_pre_hooks.clear()
    network.recompile()
    return network


def _with_momentum(model: nn.Module) -> nn.Module:
    """The model, or a copy in which norms that average over all batches so far have a momentum that is no number.

    Theirs is one over the number of batches in training, which cannot be traced, and 0 in evaluation, which would be
    taken for the momentum of a layer that never moves.
    """

    def averages(module: nn.Module) -> bool:
        return getattr(module, "momentum", 0.0) is None and getattr(module, "running_mean", None) is not None

    if not any(map(averages, model.modules())):
        return model
    marked = sharing_copy(model)
    for module in filter(averages, marked.modules()):
        module.momentum = math.nan  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return marked


def _pure(program: ExportedProgram, model: nn.Module, training: bool) -> fx.GraphModule:
    """The program as a module, in pure operations, with the calls of random modules kept."""
    with quiet():
        network = program.module(check_guards=False)
    assert isinstance(network, fx.GraphModule)
    _inline_regions(network)
    _undo_decompositions(network.graph)
    if training:
        _name_stochastic_depth(network)
        _keep_random_modules(network, model)
    make_pure(network.graph, training)
    _transpose_after_layers(network.graph)
    _images_first(network.graph)
    _follow_type(network, model)
    network.graph.eliminate_dead_code()
    return network


def propagate(network: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record what each node gives for these inputs, as tensors without values."""
    inputs = pytree.tree_leaves((args, kwargs))
    with quiet(), torch.no_grad():
        try:
            _Shapes(network).run(*inputs)
            return
        except Exception:
            # Whatever went wrong is found again by torch's own way, which knows devices and takes many times as long.
            mode = FakeTensorMode(allow_non_fake_inputs=True)
        fake = [mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, Tensor) else leaf for leaf in inputs]
        FakeTensorProp(network, mode).propagate_dont_convert_inputs(*fake)


class _Shapes(fx.Interpreter):
    """Runs a graph on the device `meta`, where tensors have no values, and records what each node gives."""

    def run(self, *args: Any) -> Any:
        return super().run(*pytree.tree_map(_on_meta, args))

    def run_node(self, n: fx.Node) -> Any:
        n.meta["val"] = super().run_node(n)
        return n.meta["val"]

    def fetch_attr(self, target: str) -> Any:
        return _on_meta(super().fetch_attr(target))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: torch.device("meta"), (args, kwargs))
        return super().call_function(target, args, kwargs)


def _on_meta(leaf: Any) -> Any:
    return leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf


def _name_stochastic_depth(network: fx.GraphModule) -> None:
    """Put a module in the place of stochastic depth that is written out, `x / p · floor(p + u)`, among other layers."""
    graph = network.graph
    for node in [node for node in graph.nodes if operation(node) == "rand"]:
        chain = [node]
        for names in (("add", "add_"), ("floor", "floor_"), ("mul", "mul_")):
            users = list(chain[-1].users)
            if len(users) == 1 and operation(users[0]) in names:
                chain += users
        if len(chain) < 4:
            continue
        keep, product = chain[1].args[1], chain[3]
        scaled = next(argument for argument in product.all_input_nodes if argument is not chain[2])
        if not isinstance(keep, float) or operation(scaled) != "div" or scaled.args[1] != keep:
            continue
        stack = stack_of(node)
        path = ".".join(filter(None, (stack[-1][1] if stack else "", f"stochastic_depth_{node.name}")))
        network.add_submodule(path, StochasticDepth(1 - keep))
        with graph.inserting_before(product):
            named = graph.call_module(path, (scaled.args[0],))
        named.meta = dict(product.meta)
        product.replace_all_uses_with(named)
        for old in reversed(chain):
            graph.erase_node(old)


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
                f"{operation(node)} draws random numbers in the network's own forward, which may not do so in "
                "evaluation: move it into a module of its own"
            )
        _collapse(network, call, path, model.get_submodule(path))


def _draws(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or operation(node) in _RANDOM_LAYERS:
        return False
    if operation(node) in _RECURRENT:
        # Recurrent layers draw between their layers alone, and only if asked to.
        given = dict(zip((argument.name for argument in target._schema.arguments), node.args, strict=False))
        return bool(given["dropout"])
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
    with quiet():
        network.add_submodule(path, deepcopy(module).train())
    with graph.inserting_after(results[0]):
        replacement = graph.call_module(path, tuple(inputs))
    replacement.meta = {key: results[0].meta[key] for key in ("val", "nn_module_stack")}
    results[0].replace_all_uses_with(replacement)
    for node in reversed(inside):
        graph.erase_node(node)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor) and node.op != "get_attr"


def _inline_regions(network: fx.GraphModule) -> None:
    """Put the operations of a region in its place: of `torch.no_grad`, whose results are detached, or `autocast`."""
    graph = network.graph
    while True:
        node = next((n for n in graph.nodes if isinstance(n.target, HigherOrderOperator)), None)
        if node is None:
            return
        bodies = [a for a in node.args if isinstance(a, fx.Node) and a.op == "get_attr"]
        if not str(node.target).startswith("wrap_with") or not bodies:
            raise ValueError(f"{node.target} holds operations of its own: write the network without control flow")
        body = network.get_submodule(str(bodies[0].target))
        assert isinstance(body, fx.GraphModule)
        operands = iter(node.args[node.args.index(bodies[0]) + 1 :])
        known: dict[fx.Node, Any] = {}
        result: Any = None
        with graph.inserting_before(node):
            for inner in body.graph.nodes:
                if inner.op == "placeholder":
                    known[inner] = next(operands)
                elif inner.op == "output":
                    result = fx.map_arg(inner.args[0], known.__getitem__)
                else:
                    copied = graph.node_copy(inner, known.__getitem__)
                    if inner.op == "get_attr":
                        setattr(network, copied.name, getattr(body, str(inner.target)))
                        copied.target = copied.name
                    copied.meta["nn_module_stack"] = node.meta.get("nn_module_stack", inner.meta.get("nn_module_stack"))
                    known[inner] = copied
            if "grad" in str(node.target) and not node.args[0]:
                result = fx.map_arg(result, lambda value: _detached(graph, value))
        for user in list(node.users):
            assert user.target is getitem
            user.replace_all_uses_with(result[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not bodies[0].users:
            graph.erase_node(bodies[0])


def _detached(graph: fx.Graph, value: fx.Node) -> fx.Node:
    new = graph.call_function(torch.ops.aten.detach.default, (value,))
    new.meta = dict(value.meta)
    return new


def _undo_decompositions(graph: fx.Graph) -> None:
    """Batch norm and dropout as layers do them, where taking writes apart has left their functional forms."""
    wanted = {
        "_native_batch_norm_legit_functional": lambda a: (torch.ops.aten.batch_norm.default, (*a, False)),
        "_native_batch_norm_legit_no_training": lambda a: (
            torch.ops.aten.batch_norm.default,
            (*a[:5], False, *a[5:], False),
        ),
        "native_dropout": lambda a: (torch.ops.aten.dropout.default, a),
    }
    for node in list(graph.nodes):
        if operation(node) not in wanted:
            continue
        node.target, node.args = wanted[operation(node)](node.args)
        node.meta["val"] = node.meta["val"][0]
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(node)
            else:
                _drop_statistics(graph, node, user)
            graph.erase_node(user)


def _drop_statistics(graph: fx.Graph, norm: fx.Node, updated: fx.Node) -> None:
    """Take out what writes the statistics of a norm, which the layer does itself, in each of its calls."""
    # Statistics are at the same place among what it takes and what it gives.
    place: Any = updated.args[1]
    buffer = norm.args[place]
    for user in list(updated.users):
        if operation(user) == "copy_" and user.args[0] is buffer:
            graph.erase_node(user)
        elif operation(user) == "_native_batch_norm_legit_functional" and isinstance(buffer, fx.Node):
            user.replace_input_with(updated, buffer)
        else:
            raise ValueError(f"the network reads what {operation(norm)} gives beside its output")


def _transpose_after_layers(graph: fx.Graph) -> None:
    """Exchange axes after a linear layer instead of before it, where its features stay the last.

    On rows in order it is one product of matrices. Attention of torch exchanges tokens and images first.
    """
    for node in list(graph.nodes):
        before = node.args[0] if operation(node) == "linear" else None
        if not isinstance(before, fx.Node) or operation(before) != "transpose" or len(before.users) > 1:
            continue
        value, first, second = before.args
        assert isinstance(value, fx.Node) and callable(before.target)
        rank = value.meta["val"].dim()
        if rank - 1 in (first % rank, second % rank):  # pyright: ignore[reportOperatorIssue]
            continue
        node.args = (value, *node.args[1:])
        with graph.inserting_after(node):
            after = graph.call_function(torch.ops.aten.transpose.int, (node, first, second))
        after.meta = dict(node.meta)
        node.replace_all_uses_with(after, delete_user_cb=lambda user, after=after: user is not after)
        node.meta = {**node.meta, "val": node.meta["val"].transpose(first, second)}
        graph.erase_node(before)


def _images_first(graph: fx.Graph) -> None:
    """Put images before tokens again before the last layer of torch's attention instead of after it.

    It is applied to rows (tokens · images, features), which are then taken apart and exchanged. On (images, tokens,
    features) it has its input where a conversion can tell images from tokens.
    """
    for node in list(graph.nodes):
        rows = node.args[0] if operation(node) == "linear" else None
        apart = next(iter(node.users), None)
        exchanged = next(iter(apart.users), None) if apart is not None else None
        if not isinstance(rows, fx.Node) or apart is None or exchanged is None:
            continue
        alone = len(node.users) == 1 and len(apart.users) == 1
        views = operation(rows) in ("view", "reshape") and operation(apart) in ("view", "reshape")
        if not alone or not views or operation(exchanged) != "transpose" or sorted(exchanged.args[1:]) != [0, 1]:
            continue
        shape, features = apart.meta["val"].shape, rows.meta["val"].shape[-1]
        if len(shape) != 3 or shape[-1] != node.meta["val"].shape[-1] or rows.meta["val"].dim() != 2:
            continue
        sizes: Any = apart.args[1]
        with graph.inserting_before(exchanged):
            tokens = graph.call_function(apart.target, (rows, [*sizes[:-1], features]))
            tokens.meta = {**apart.meta, "val": rows.meta["val"].reshape(*shape[:-1], features)}
            images = graph.call_function(torch.ops.aten.transpose.int, (tokens, 0, 1))
            images.meta = {**apart.meta, "val": tokens.meta["val"].transpose(0, 1)}
            inputs = graph.call_function(torch.ops.aten.contiguous.default, (images,))
            inputs.meta = dict(images.meta)
            layer = graph.call_function(node.target, (inputs, *node.args[1:]), node.kwargs)
            layer.meta = {**node.meta, "val": exchanged.meta["val"]}
        exchanged.replace_all_uses_with(layer)
        for old in (exchanged, apart, node):
            graph.erase_node(old)


def _follow_type(network: fx.GraphModule, model: nn.Module) -> None:
    """Let constants and casts follow the type of the parameters, which `double()` or `half()` may change later."""
    floats = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    if not floats:
        return
    graph, own = network.graph, floats[0].dtype
    reference: fx.Node | None = None
    for node in list(graph.nodes):
        made = not node.all_input_nodes and getattr(node.meta.get("val"), "dtype", None) == own
        if not isinstance(node.target, OpOverload) or not (made or own in (*node.args, *node.kwargs.values())):
            continue
        if operation(node) not in ("to", "_to_copy") and _has_type(node.args[:1], own):
            # A sum or a softmax in the type that its input has anyway.
            node.args = tuple(None if argument is own else argument for argument in node.args)
            node.kwargs = {key: argument for key, argument in node.kwargs.items() if argument is not own}
            continue
        if reference is None:
            network.register_buffer("type_reference", torch.zeros((), dtype=own, device=floats[0].device), False)
            with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
                reference = graph.get_attr("type_reference")
        if operation(node) in ("to", "_to_copy") and node.args[0].meta["val"].is_floating_point():
            node.target, node.args, node.kwargs = torch.ops.aten.to.other, (node.args[0], reference), {}
        else:
            with graph.inserting_after(node):
                cast = graph.call_function(torch.ops.aten.to.other, (node, reference))
            cast.meta = dict(node.meta)
            node.replace_all_uses_with(cast, delete_user_cb=lambda user, cast=cast: user is not cast)


def _has_type(arguments: Iterable[Any], dtype: torch.dtype) -> bool:
    values = (argument.meta.get("val") for argument in arguments if isinstance(argument, fx.Node))
    return any(isinstance(value, Tensor) and value.dtype == dtype for value in values)
