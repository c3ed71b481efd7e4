"""From a conventional network to its offset equivariant version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from torch import Tensor, fx, nn

from lightfast._certify import Certificate, certify
from lightfast._convert.exporting import sharing_copy
from lightfast._convert.fit import fit_features
from lightfast._convert.graph import PlainGraph, plain_graph, propagate
from lightfast._convert.lift import lift
from lightfast._convert.outputs import OutputKind, decide_outputs
from lightfast._convert.progress import Progress
from lightfast._convert.proof import Unproved, prove
from lightfast._convert.regions import plain_nodes
from lightfast._convert.report import Conversion
from lightfast._convert.rewrite import Rewriter
from lightfast._convert.walk import Options
from lightfast._convert.widths import change_widths
from lightfast._groups import GroupSpec, resolve
from lightfast._notice import notice_srgb
from lightfast._response import Space
from lightfast._response.layout import Layout
from lightfast._tracing import quiet, two_images
from lightfast.functional import Scope


def convert(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any],
    offset_groups: GroupSpec = 3,
    *,
    kwargs: Mapping[str, Any] | None = None,
    keep: str | Iterable[str] = (),
    widths: Literal["multiple", "keep"] = "multiple",
    weights: Literal["project", "init"] = "project",
    output: OutputKind = "auto",
    padding_mode: str = "replicate",
    scope: Scope = "image",
    dim: int = 1,
    offset_inputs: Sequence[int] = (0,),
    lifted: bool = False,
    images: Tensor | None = None,
) -> nn.Module:
    """The offset equivariant version of a conventional network, certified before it is returned.

    Layer by layer: linear layers and convolutions are constrained, `(Σ W) G_m = G_n`; zero padding is replaced; norms,
    activations and dropout see the centered map, `f(x - G φ(x)) + G φ(x)`; the shortcut of a
    sum of two maps is centered; concatenations are tracked through assignments. Attention, gates, and any operation
    without a response are left as they are, on the centered map, and the group means are given back after them.

    Args:
        model: the network; it is not changed. Batch norm and dropout of the result switch with `train()` and `eval()`.
        example_inputs: the first input, which carries the offset, (N, ..., m, ...); or all inputs. Only shapes matter.
            The result takes any batch size, and any positions unless the model has attention or fixes them itself.
        offset_groups: the assignment of the first input.
        kwargs: further inputs by name.
        keep: names of modules (patterns such as `"blocks.*.attn"`) to leave plain, on the centered map.
        widths: `multiple` moves widths to the nearest multiple of the number of groups; `keep` leaves them, with uneven
            assignments.
        weights: `project` starts from the model's weights, projected; `init` from fresh ones. Parameters that belong to
            no layer (class tokens, position embeddings) are taken over in both cases.
        output: `scores` ends in k x g scores, averaged over groups, less their mean over classes: invariant;
            `equivariant` lets the output follow the input; `auto` takes for scores what has the shape (N, k), and maps
            that a linear layer makes with another number of channels than the input's. The report says what it
            decided.
        padding_mode: in place of zeros: `replicate`, `reflect`, `circular` or `mean`.
        scope: of the group pooling in norms, activations and shortcuts; `pixel` follows light that varies over the
            image.
        dim: the features' axis of the inputs that carry the offset.
        offset_inputs: which inputs carry the offset, counted among those that are real tensors: two pictures under one
            light are `(0, 1)`. All of them move together, each image with its own offset.
        lifted: carry what the light adds beside each map, `x = z + G o`, where groups are pooled over the image: it is
            faster, and nearer to the model, since activations act on `z` as they do there.
        images: a few inputs as the network will see them, without labels. Layers are then fitted to the model's
            features on them by least squares, instead of projected alone, which keeps more of what it has learned.

    Returns:
        The network, whose attribute `conversion` is a report of what was replaced and why, with the certificates.

    Raises:
        ValueError: if the network cannot be exported or made equivariant, with the operations at fault.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1))
    >>> net = convert(net, torch.zeros(2, 3, 8, 8))
    >>> net.conversion.certificate.equivariant
    True
    """
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    named = dict(kwargs or {})
    with Progress(f"converting {type(model).__name__}") as progress:
        report = Conversion()
        progress("exporting it")
        network, fixed = _seen(model, args, named, dim, report)
        report.notes += fixed
        inputs = two_images(args, named)[:2]
        lit = _lit_inputs(network.graph, offset_inputs, offset_groups, dim)
        layout = next(iter(lit.values()))
        space = Space(len(layout.owners), layout.groups.count)
        ours = any(type(module).__module__.startswith("lightfast.") for module in model.modules())
        if len(lit) == 1 and (ours or prove(network, lit, space, offset_groups) is not None):
            already = _certificates(model, args, named, offset_groups, dim)
            if all(certificate.proved for certificate in already):
                report.notes.append("the network is equivariant or invariant already")
                return _with_report(deepcopy(model), report, already)
        progress("replacing layers")
        if widths == "multiple":
            network = _with_multiple_widths(network, space.groups, inputs, report)
        plain = plain_nodes(network.graph, [keep] if isinstance(keep, str) else list(keep))
        first = next(node for node in network.graph.nodes if node.name in lit)
        decision = decide_outputs(network.graph, first, dim, space.groups, output)
        options = Options(weights, padding_mode, scope)
        leaves = {path for path, module in model.named_modules() if path and not list(module.children())}
        rewriter = Rewriter(network, lit, space, plain, decision, leaves, options, report)
        converted = rewriter.run(type(model).__name__)
        report.outputs = [*decision.reasons.values()]
        converted.train(model.training)
        if lifted and scope == "image":
            try:
                converted = lift(converted, lit, space)
            except Unproved:
                report.notes.append("it is not on lifted maps, since the layers alone do not say how each value moves")
        if images is not None and weights == "project":
            progress("fitting layers to features")
            fit_features(converted, model, images)
        progress("proving the result")
        certificates = prove(converted, lit, space, offset_groups)
        if certificates is None and len(lit) > 1:
            raise ValueError(
                f"{type(model).__name__} has several inputs that carry the offset, and operations that layers do not "
                "explain: convert the part before they are joined for each input by itself, with offset_inputs=(0,)"
            )
        if certificates is None:
            certificates = _certificates(converted, args, named, offset_groups, dim)
        for certificate in certificates:
            if not all(output.response.is_sound for output in certificate.outputs):
                raise ValueError(
                    f"{type(model).__name__} could not be made equivariant; name the modules at fault in keep=, or use "
                    f"lightfast.wrap:\n{certificate}"
                )
        return _with_report(converted, report, certificates)


def _seen(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int, report: Conversion) -> PlainGraph:
    """The network as a graph, of how it is in training; in evaluation, where training cannot be seen or reproduced."""
    try:
        return plain_graph(model, args, kwargs, dim)
    except ValueError as reason:
        try:
            found = plain_graph(model, args, kwargs, dim, training=False)
        except ValueError:
            raise reason from None
        report.notes.append(
            f"in training it does what it does in evaluation, but for norms and dropout in layers: {reason}"
        )
        return found


def _certificates(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], offset_groups: GroupSpec, dim: int
) -> tuple[Certificate, Certificate]:
    """What can be proved of a copy of the model, in evaluation and in training mode."""
    with quiet():
        copy = deepcopy(model)
    evaluation, training = (
        certify(copy.train(mode), args, offset_groups, kwargs=kwargs, dim=dim) for mode in (False, True)
    )
    return evaluation, training


def _with_report(model: nn.Module, report: Conversion, certificates: tuple[Certificate, Certificate]) -> nn.Module:
    report.certificate, report.training_certificate = certificates
    model.conversion = report  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    notice_srgb(model)
    return model


def _carries_offset(node: fx.Node) -> bool:
    recorded = node.meta.get("val")
    return node.op == "placeholder" and isinstance(recorded, Tensor) and recorded.is_floating_point()


def _lit_inputs(graph: fx.Graph, wanted: Sequence[int], offset_groups: GroupSpec, dim: int) -> dict[str, Layout]:
    """How the inputs that carry the offset are laid out, by the names of their nodes."""
    real = [node for node in graph.nodes if _carries_offset(node)]
    if not wanted or not all(0 <= number < len(real) for number in wanted):
        raise ValueError(
            f"offset_inputs={tuple(wanted)} should number some of the {len(real)} inputs that are real tensors, from 0"
        )
    lit = {}
    for node in (real[number] for number in wanted):
        shape = node.meta["val"].shape
        lit[node.name] = Layout(0, dim, resolve(offset_groups, shape[dim]), tuple(range(shape[0])))
    return lit


def _with_multiple_widths(network: fx.GraphModule, groups: int, inputs: Any, report: Conversion) -> fx.GraphModule:
    """The network with widths that are multiples of the number of groups, or as it is where a size is written in it."""
    changed = sharing_copy(network)
    for old, new in zip(network.graph.nodes, changed.graph.nodes, strict=True):
        new.meta = dict(old.meta)
    try:
        report.widths = change_widths(changed, groups)
        if report.widths:
            changed.recompile()
            propagate(changed, *inputs)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        report.widths = {}
        report.notes.append(f"widths were kept, since the network insists on them: {reason}")
        return network
    return changed
