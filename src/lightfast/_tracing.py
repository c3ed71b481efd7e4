"""Networks as graphs, with the response of every value in them: exported for two images, and interpreted."""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from lightfast._groups import Groups, GroupSpec, group_count, resolve
from lightfast._response import Lost, Response, Space, Step, interpret
from lightfast._response.interpreter import constant
from lightfast._response.layout import Layout
from lightfast.fields import FieldSpec


@dataclass(frozen=True)
class Traced:
    """A network's graph, with the response of every value in it."""

    program: ExportedProgram
    space: Space
    steps: list[Step]
    values: Any

    def results(self) -> list[tuple[Any, Any, Any]]:
        """(what it is, value, node) of each output of the graph, updated buffers included."""
        nodes = next(iter(reversed(self.program.graph.nodes))).args[0]
        return list(zip(self.program.graph_signature.output_specs, self.values, nodes, strict=True))


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    offset_groups: GroupSpec = 3,
    dim: int = 1,
    tolerance: float = 1e-9,
    field: FieldSpec = 0,
) -> Traced:
    """Export the model, and derive the response of every value. Arguments as in :func:`lightfast.certify`."""
    program, images = _export_images(model, args, kwargs)
    shape = shape_of(_offset_input(program))
    size = tuple(pixels for axis, pixels in enumerate(shape) if axis not in (0, dim % len(shape)))
    space = Space(images, group_count(offset_groups), tolerance, field, size)
    if space.varies:
        space.check()
    if is_pure(program):
        traced = interpreted(program, offset_groups, dim, space)
        if not any(isinstance(value, Lost) for value in traced.values):
            return traced
    # Taking operations that write into tensors apart, and those that are made of others, takes longest of all.
    with quiet():
        program = program.run_decompositions({})
    return interpreted(program, offset_groups, dim, space)


def interpreted(program: ExportedProgram, offset_groups: GroupSpec, dim: int, space: Space) -> Traced:
    first = _offset_input(program)
    groups = resolve(offset_groups, shape_of(first)[dim % len(shape_of(first))])
    inputs = _input_values(program, first, groups, dim, space)
    steps, values = interpret(program.graph, inputs, space, program.graph_module)
    return Traced(program, space, steps, values)


def is_pure(program: ExportedProgram) -> bool:
    """Whether nothing in a graph writes into a tensor that anything else reads.

    Batch norm in training writes its running statistics, and counts batches, in buffers that it alone may read.
    """
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        name, schema = operation_name(node), getattr(node.target, "_schema", None)
        if schema is None:
            return False
        if name in ("batch_norm", "instance_norm"):
            statistics = [a for a in node.all_input_nodes if a.op == "placeholder" and a is not node.args[0]]
            if any(operation_name(user) != name for statistic in statistics for user in statistic.users):
                return False
        elif schema.is_mutable and name != "detach_":
            counts = [a.op for a in node.all_input_nodes] == ["placeholder"] and len(node.all_input_nodes[0].users) == 1
            if not counts or node.users:
                return False
    return True


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> ExportedProgram:
    """`torch.export`, with what it says itself kept out of the user's sight, and failures as sentences."""
    # Where it fails it prints the whole graph.
    with quiet(), redirect_stderr(io.StringIO()):
        try:
            return torch.export.export(model, args, kwargs, **options)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise ValueError(
                f"{type(model).__name__} cannot be exported, so its operations cannot be seen: {reason}. Check that it "
                "runs on the example, and that what depends on values of tensors is written in tensor operations"
            ) from error


_TALKATIVE = ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")
"""Modules of torch that log what they could not find out about shapes."""


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings and logs of exporting are about torch's own insides, and failures are reported as errors anyway."""
    loggers = [logging.getLogger(f"torch.{name}") for name in _TALKATIVE]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def two_images(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """The inputs with two images instead of the example's number, so that what mixes images can be seen."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if not tensors or not tensors[0].dim():
        shape = args if args and all(isinstance(size, int) for size in args) else (1, 3, 32, 32)
        raise ValueError(
            "the example is to be what the network is called with, a tensor of images or a tuple of its inputs: pass "
            f"torch.zeros({', '.join(map(str, shape))}), not {args if args else 'nothing'}"
        )
    images = tensors[0].shape[0]

    def resize(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != images:
            return leaf
        return torch.cat([leaf[:1], leaf[-1:]])

    args, kwargs = pytree.tree_map(resize, (args, kwargs))
    return args, kwargs, images


def _export_images(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ExportedProgram, int]:
    """The graph of the model for two images, or for as many as the example has if it insists on those."""
    two_args, two_kwargs, images = two_images(args, kwargs)
    try:
        return export(model, two_args, two_kwargs), 2
    except ValueError:
        return export(model, args, kwargs), images


def _offset_input(program: ExportedProgram) -> fx.Node:
    """The placeholder of the input that carries the offset."""
    users = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in users and isinstance(node.meta.get("val"), Tensor):
            if not node.meta["val"].is_floating_point():
                raise ValueError(f"the first input holds {node.meta['val'].dtype}, to which no offset can be added")
            return node
    raise ValueError("the example holds no tensor, so nothing can carry an offset")


def shape_of(node: Any) -> tuple[int, ...]:
    """Of the tensor that a node of a graph stands for."""
    return tuple(int(size) for size in node.meta["val"].shape)


def _input_values(program: ExportedProgram, first: fx.Node, groups: Groups, dim: int, space: Space) -> dict[str, Any]:
    """The values of all placeholders: constants for parameters, equivariant for the first input, else invariant."""
    tensors: dict[str, Any] = {**program.state_dict, **program.constants}
    values: dict[str, Any] = {}
    for node, spec in zip(
        [node for node in program.graph.nodes if node.op == "placeholder"],
        program.graph_signature.input_specs,
        strict=True,
    ):
        recorded = node.meta.get("val")
        if spec.kind != InputKind.USER_INPUT:
            held = tensors[spec.target] if spec.target is not None else None
            values[node.name] = constant(held) if isinstance(held, Tensor) else held
        elif node is first:
            layout = Layout(0, dim % len(shape_of(node)), groups, tuple(range(space.images)))
            values[node.name] = layout.response(shape_of(node), space)
        else:
            values[node.name] = Response(shape_of(node)) if isinstance(recorded, Tensor) else recorded
    return values


def operation_name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    name = schema.name.removeprefix("aten::") if schema is not None else str(node.target)
    return "batch_norm" if "batch_norm" in name else name.removeprefix("native_").lstrip("_")
