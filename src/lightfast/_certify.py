"""Is a network equivariant? A proof from its graph, for all inputs and all offsets, or the operation at fault."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import OutputKind

from lightfast._groups import Groups, GroupSpec, group_count
from lightfast._response import Constant, Description, Lost, Response, Space, Step, Value, describe, ignores_constants
from lightfast._tracing import Traced, operation_name, shape_of, trace
from lightfast.fields import Cosines, FieldSpec, Polynomial
from lightfast.fields._bases import check_field


@dataclass(frozen=True)
class Break:
    """An operation that loses the response, or leaves one that is not the input's.

    Args:
        operation: its ATen name.
        module: the path of the module that calls it, empty for the network itself.
        line: where in the source.
        why: what happens, in words.
        instead: what to use instead.
    """

    operation: str
    module: str
    line: str
    why: str
    instead: str

    def __str__(self) -> str:
        where = f"{self.module or 'the network itself'} ({self.operation})"
        place = f"\n      at {self.line}" if self.line else ""
        return f"{where}: {self.why}{place}\n      instead: {self.instead}"


@dataclass(frozen=True)
class Output:
    """An output of the network: its name, shape, and response."""

    name: str
    shape: tuple[int, ...]
    response: Description
    expected: Groups | None

    @property
    def equivariant(self) -> bool:
        """Whether the response is `G` of the expected assignment."""
        return self.response.kind == "equivariant" and self.response.groups == self.expected

    @property
    def invariant(self) -> bool:
        """Whether the response is 0."""
        return self.response.is_invariant

    def __str__(self) -> str:
        return f"{self.name} {self.shape}: {self._words()}"

    def _words(self) -> str:
        response = self.response
        if response.kind == "equivariant" and not self.equivariant:
            return f"equivariant, but with the assignment {response.groups}; accept it with out_groups="
        if response.kind == "scaled":
            scales = [f"{_scale(response, j):.4g}" for j in range(response.matrix.shape[1])]
            return f"scaled: follows each group's offset times {', '.join(scales)}"
        if response.kind == "uniform":
            if not len(response.matrix):
                return "uniform: every feature moves alike, so it is invariant after softmax"
            row = ", ".join(f"{entry:.4g}" for entry in response.matrix[0].tolist())
            return f"uniform: every feature moves by ({row}) · Δ, so it is invariant after softmax"
        if response.kind == "affine":
            return "affine: follows offsets, but not as the input does"
        return {"broken": "broken: no response", "constant": "constant, so invariant"}.get(response.kind, response.kind)


@dataclass(frozen=True)
class Certificate:
    """What :func:`certify` found. `print` it for a report.

    Args:
        outputs: each output of the network that is a tensor.
        breaks: operations at fault, first cause first; empty if every output is equivariant or invariant.
        modules: (path, type, kind of response) of each module's output, in the order of the calls.
        images: how many images, each with its own offset, the proof is about.
        training: whether the network was in training mode.
        tolerance: responses that differ by less, relative to the terms that they are summed from, count as equal.
        field: the fields that offsets are; 0 where they are the same over the whole image.
        size: the size of the maps that a proof about fields is for.
        from_log: whether it is about what a pipeline does to log RGB, and not to the sRGB that it takes.
    """

    outputs: tuple[Output, ...]
    breaks: tuple[Break, ...]
    modules: tuple[tuple[str, str, str], ...]
    images: int
    training: bool
    tolerance: float
    field: FieldSpec = 0
    size: tuple[int, ...] = ()
    from_log: bool = False

    @property
    def equivariant(self) -> bool:
        """Whether every output moves by `G Δ`, for all inputs and all offsets.

        By fields, an output moves at its own positions; one that has no positions moves by their means.
        """
        return bool(self.outputs) and all(output.equivariant for output in self.outputs)

    @property
    def invariant(self) -> bool:
        """Whether no output moves, for all inputs and all offsets."""
        return bool(self.outputs) and all(output.invariant for output in self.outputs)

    @property
    def proved(self) -> bool:
        """Whether each output is either equivariant or invariant."""
        return bool(self.outputs) and all(output.equivariant or output.invariant for output in self.outputs)

    @property
    def response(self) -> Description:
        """The response of the first output."""
        return self.outputs[0].response

    def table(self) -> str:
        """Every module with the kind of its output's response."""
        rows = [("module", "type", "response"), *self.modules]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        return "\n".join(f"{path:<{widths[0]}}  {kind:<{widths[1]}}  {response}" for path, kind, response in rows)

    def __str__(self) -> str:
        verdicts = {
            "equivariant": self.equivariant,
            "invariant": self.invariant,
            "each output is equivariant or invariant": self.proved,
            "not proved": True,
        }
        verdict = next(words for words, holds in verdicts.items() if holds)
        offset, about = "offset", "all inputs and all offsets"
        if self.field != 0:
            offset, about = "field", f"all inputs of {' x '.join(map(str, self.size))} pixels"
            verdict += f"{' to' if self.proved else ' for'} every {_words_for(self.field)},"
        lines = [f"{verdict} in {'training' if self.training else 'evaluation'} mode"]
        if self.proved:
            images = (
                "one image" if self.images == 1 else f"batches in which each image has its own {offset} ({self.images})"
            )
            lines[0] += f", for {about}, tolerance {self.tolerance:g}, {images}"
            if self.from_log:
                lines[0] += ", from log RGB on: as long as light clips nothing"
        lines += [f"  output {output}" for output in self.outputs]
        lines += [f"  {number}. {fault}" for number, fault in enumerate(self.breaks, 1)]
        return "\n".join(lines)


def certify(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any],
    offset_groups: GroupSpec = 3,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dim: int = 1,
    out_groups: GroupSpec | None = None,
    tolerance: float = 1e-9,
    field: FieldSpec = 0,
) -> Certificate:
    """Prove that a network is offset equivariant or invariant, or name the operations that break it.

    The network is exported to a graph of ATen operations, and each value's offset response (`y(x + G Δ) = y(x) + R Δ`)
    is derived from that of its inputs, with the actual weights, in float64. Each image of the batch has its own `Δ`.
    The result is a proof in exact arithmetic for all inputs of the example's shapes and all offsets; rounding in
    lower precision is for :func:`~lightfast.equivariance_error` to measure. Operations that have no rule
    are breaks, so what is not understood is never called equivariant.

    Args:
        model: in the mode, training or evaluation, that is to be certified. It is not changed or run. Of a classifier
            that takes sRGB and works on log RGB, the part from log RGB on is certified, where light is an offset.
        example_inputs: the first input, which carries the offset, (N, ..., m, ...); or all inputs, the first of which
            does. Only shapes and types matter. The others are taken not to depend on the offset.
        offset_groups: the assignment of the first input.
        kwargs: further inputs by name, for models that need them; if there are no `example_inputs`, the first of
            these carries the offset.
        dim: the features' axis of the first input.
        out_groups: the assignment that an output needs to be called equivariant. By default that of the input, or as
            many contiguous runs, as equal as can be, where the number of features is another.
        tolerance: responses that differ by less, relative to the terms that they are summed from, count as equal. The
            default suits layers that project their weights, which is redone in float64; weights that were projected
            and stored in float32 need about 1e-5.
        field: offsets that are asked about: 0 for one that is the same over the whole image, 1 for every plane, 2 for
            every quadratic, or a basis; see :mod:`lightfast.fields`. The proof is then for maps of the example's size,
            and all axes of the first input but those of images and features are positions.

    Raises:
        ValueError: if the network cannot be exported, with the reason; or if the example is too small to tell the
            functions of the field apart.

    >>> import lightfast as lf
    >>> certificate = certify(lf.nn.Conv2d(3, 6, 3, padding=1), torch.zeros(2, 3, 8, 8))
    >>> certificate.equivariant, certificate.breaks
    (True, ())
    >>> print(certify(nn.ReLU(), torch.zeros(2, 3)).breaks[0].why)
    ReLU of an equivariant value
    >>> certify(lf.wrap(nn.ReLU(), field=1), torch.zeros(2, 3, 8, 8), field=1).invariant
    True
    """
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    field = 0 if check_field(field) in (Polynomial(0), Cosines(0)) else field
    part = getattr(model, "from_log", None)
    from_log = isinstance(part, nn.Module)
    model = part if from_log else model
    traced = trace(model, args, dict(kwargs or {}), offset_groups, dim, tolerance, field)
    outputs, targets = [], []
    for spec, value, node in traced.results():
        if spec.kind == OutputKind.USER_OUTPUT and isinstance(value, Value):
            response = describe(value, traced.space)
            expected = expected_groups(response, shape_of(node), out_groups, offset_groups)
            outputs.append(Output(f"{len(outputs)}", shape_of(node), response, expected))
            targets.append(node)
    faults = _faults(traced, outputs, targets) + _state_faults(traced)
    modules = _module_kinds(model, traced)
    images, size = traced.space.images, traced.space.size
    return Certificate(tuple(outputs), tuple(faults), modules, images, model.training, tolerance, field, size, from_log)


def _words_for(field: FieldSpec) -> str:
    """What a light of that field is called."""
    field = field.order if isinstance(field, Polynomial) else field
    if not isinstance(field, int):
        return f"light in the span of {field} in log RGB"
    return f"light that is {_ORDERS.get(field, f'a polynomial of order {field}')} in log RGB"


_ORDERS = {1: "a plane", 2: "a quadratic"}


def expected_groups(
    response: Description, shape: tuple[int, ...], out_groups: GroupSpec | None, offset_groups: GroupSpec
) -> Groups | None:
    """The assignment that an output of this shape needs to be called equivariant."""
    if response.images_axis != 0 or response.features_axis is None:
        return None
    features = shape[response.features_axis]
    wanted = offset_groups if out_groups is None else out_groups
    if isinstance(wanted, Groups):
        if wanted.features == features:
            return wanted
        wanted = group_count(wanted) if out_groups is None else 0
    return Groups.runs(features, wanted) if 0 < wanted <= features else None


def _scale(response: Description, group: int) -> float:
    column = response.matrix[:, group]
    return float(column[column.abs().argmax()])


def _faults(traced: Traced, outputs: list[Output], targets: list[Any]) -> list[Break]:
    """The operations behind outputs that do not follow offsets as they should, in the order of the graph."""
    space, by_node = traced.space, {step.node: step for step in traced.steps}
    by_name = {step.node.name: step for step in traced.steps}
    suspects: dict[str, Break] = {}

    def trace_back(node: fx.Node) -> None:
        """From a value with an odd response back to the operations that made it of good ones."""
        pending, seen = [node], set()
        while pending:
            current = pending.pop()
            step = by_node.get(current)
            if step is None or current in seen or describe_step(step, space).is_sound:
                continue
            seen.add(current)
            inputs = [a for a in current.all_input_nodes if a in by_node]
            odd = [a for a in inputs if not describe_step(by_node[a], space).is_sound]
            pending += odd
            if not odd and (not space.varies or operation_name(current).startswith(_NAMED_FOR_FIELDS)):
                suspects[current.name] = _odd_response(current, step, space)

    for output, node in zip(outputs, targets, strict=True):
        if output.equivariant or output.invariant or output.response.kind == "uniform":
            continue
        if output.response.kind != "broken":
            trace_back(node)
            if space.varies and not suspects:
                why = "moves with fields, but not as they are at the positions of its own pixels"
                suspects[node.name] = _break(node, why, _remedy("center", space))
            continue
        for name in by_node[node].value.causes:
            step = by_name[name]
            assert step.reason is not None
            for argument in step.node.all_input_nodes:
                trace_back(argument)
            why = step.reason.why(_operand(step.node, by_node, space))
            suspects[name] = _break(step.node, why, _remedy(step.reason.instead, space))
    order = {step.node.name: index for index, step in enumerate(traced.steps)}
    return [suspects[name] for name in sorted(suspects, key=lambda name: order.get(name, -1))]


_NAMED_FOR_FIELDS = ("conv", "add", "linear", "batch_norm")
"""Operations that are at fault if they turn a value that follows fields into one that does not.

Many others do so on the way to something good: a projection is a view, a product, another view and a difference.
"""


def _remedy(instead: str, space: Space) -> str:
    """What to do instead; where it is about layers and centering, what follows fields too."""
    if not space.varies or not any(word in instead for word in ("lightfast.", "center", "pad")):
        return instead
    return (
        f"take the field away first, with lightfast.wrap(model, field={space.field}) or lightfast.fields.remove_field; "
        "lightfast.nn's layers follow fields only where they pool each pixel, scope='pixel'"
    )


def describe_step(step: Step, space: Space) -> Description:
    """The response of a step; of its first output, if there are several."""
    value = _first_output(step)
    return describe(value if isinstance(value, Value) else Constant(torch.zeros(0)), space)


def _first_output(step: Step) -> Any:
    return step.value[0] if isinstance(step.value, list) and step.value else step.value


def _odd_response(node: fx.Node, step: Step, space: Space) -> Break:
    """The fault of an operation whose inputs are equivariant or invariant, and whose output is neither."""
    name, response = operation_name(node), describe_step(step, space)
    if space.varies and name.startswith("conv"):
        why = (
            "convolution of a value that follows fields, with taps that do not: planes need (Σ W_t) G_m = G_n and "
            "first moments that vanish, (Σ W_t t) G_m = 0, and at the border no padding follows them"
        )
        weights = "give the taps such weights with lightfast.functional.project_weight(..., moments=1)"
        return _break(node, why, f"{_remedy('center', space)}; or {weights}, with padding=0")
    if response.kind == "affine" and response.images_axis is None:
        why = f"{name} mixes images of the batch, each of which has its own offset"
        return _break(node, why, "treat each image by itself")
    if name in ("add", "sub"):
        size = float((response.matrix if len(response.matrix) else step.value.map).abs().max())
        why = f"{'sum' if name == 'add' else 'difference'} of two equivariant values: response {size:g}"
        return _break(node, why, _remedy("center one of the two, as lightfast.nn.Residual does", space))
    if name.startswith("conv") or name in ("linear", "addmm", "mm", "matmul", "bmm"):
        kind = "convolution" if name.startswith("conv") else "linear map"
        why = f"{kind} of an equivariant value, with weights that do not meet (ΣW) G_m = G_n"
        instead = "use lightfast.nn's layer, or lightfast.project_; weights projected in float32 need tolerance=1e-5"
        return _break(node, why, _remedy(instead, space))
    if name == "batch_norm":
        why = "batch normalization multiplies an equivariant value by constants"
        return _break(node, why, _remedy("use lightfast.nn's batch normalization", space))
    article = "an" if response.kind == "affine" else "a"
    return _break(node, f"{name} turns an equivariant value into {article} {response.kind} one", "center it first")


def _operand(node: fx.Node, by_node: Mapping[fx.Node, Step], space: Space) -> str:
    """What to call the operands of an operation that have a response."""
    # What is no step is an input or a parameter, and the one input with a response is equivariant.
    operands = [by_node[a] for a in node.all_input_nodes if a in by_node]
    sound = all(describe_step(step, space).is_sound for step in operands)
    if space.varies and not sound and all(ignores_constants(_first_output(step), space) for step in operands):
        return "a value without its group means, which a field still moves"
    return "an equivariant value" if sound else "a value with response"


def _state_faults(traced: Traced) -> list[Break]:
    """Buffers that are updated with values that follow the offset, so that later calls depend on it."""
    faults = []
    for spec, value, node in traced.results():
        if spec.kind == OutputKind.BUFFER_MUTATION and isinstance(value, Response) and value.map is not None:
            why = f"buffer {spec.target} is updated with a value that follows the offset"
            faults.append(_break(node, why, "update it with a centered value"))
    return faults


def _module_kinds(model: nn.Module, traced: Traced) -> tuple[tuple[str, str, str], ...]:
    """The kind of the last value that each module computed from the input, in the order of first calls."""
    last: dict[str, Step] = {}
    for step in traced.steps:
        if isinstance(_first_output(step), Response | Lost):
            for path, _ in (step.node.meta.get("nn_module_stack") or {}).values():
                last[path] = step
    types = {path: type(module).__name__ for path, module in model.named_modules()}
    kinds = {path: describe_step(step, traced.space).kind for path, step in last.items()}
    return tuple((path or ".", types[path], kind) for path, kind in kinds.items() if path in types)


def _break(node: fx.Node, why: str, instead: str) -> Break:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return Break(operation_name(node), stack[-1][0] if stack else "", _source_line(node), why, instead)


def _source_line(node: fx.Node) -> str:
    """The innermost line of the traceback outside torch: the file, its number, and the code."""
    trace = node.meta.get("stack_trace") or ""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', trace)
    torch_files = str(Path(torch.__file__).parent)
    own = [frame for frame in frames if not frame[0].startswith(torch_files)]
    if not own:
        return ""
    file, number, code = own[-1]
    return f"{file}:{number}: {code.strip()}"
