"""The paper's other way of training: plain torch layers whose weights are projected in place after each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightfast._groups import Groups, GroupSpec, resolve
from lightfast.functional import ConstraintKind, project_weight
from lightfast.nn._constrained import Constrained
from lightfast.nn._transposed import reach

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Assignments = Mapping[str, tuple[Groups, Groups]]


@torch.no_grad()
def project_(
    model: nn.Module,
    offset_groups: GroupSpec = 3,
    *,
    assignments: Assignments | None = None,
    constraint: ConstraintKind = "sum",
) -> nn.Module:
    """Project the weights of all linear and convolution layers in place, onto the offset equivariant ones.

    For networks of plain `torch.nn` linear and convolution layers (with `lightfast.nn` for the rest), called after each
    optimizer step. Layers of `lightfast.nn` have their raw weights projected too, with their own assignments.

    Args:
        model: changed in place; the module itself or any inside it.
        offset_groups: a number of equal contiguous runs, for every layer.
        assignments: for layers by name, (of the input, of the output), where runs are not equal.
        constraint: `sum` or `tap`, for plain layers.

    Returns:
        `model`.

    Raises:
        ValueError: nothing is changed, and the message names each layer that pads with zeros, has a number of features
            that does not divide, or holds weights that are not finite.

    >>> layer = project_(nn.Linear(6, 3))
    >>> (layer.weight @ Groups.even(6, 3).matrix()).round(decimals=4).abs().tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    assignments = assignments or {}
    unknown = set(assignments) - {name for name, _ in model.named_modules()}
    if unknown:
        raise ValueError(f"assignments name layers that the model does not have: {', '.join(sorted(unknown))}")
    layers = {name: layer for name, layer in model.named_modules() if _is_linear(layer)}
    complaints, projected = [], {}
    for name, layer in layers.items():
        try:
            projected[name] = _projected(layer, assignments.get(name, offset_groups), constraint)
        except ValueError as error:
            complaints.append(f"{name or 'the model'} ({type(layer).__name__}): {error}")
    if complaints:
        raise ValueError("cannot project\n" + "\n".join(f"  {line}" for line in complaints))
    for name, weight in projected.items():
        layers[name].weight.copy_(weight)  # pyright: ignore[reportCallIssue]
    return model


def attach_projection(
    optimizer: Optimizer,
    model: nn.Module,
    offset_groups: GroupSpec = 3,
    *,
    assignments: Assignments | None = None,
    constraint: ConstraintKind = "sum",
) -> RemovableHandle:
    """Project `model` now, and after every step of `optimizer`, through its post-step hook.

    Args as in :func:`project_`. Returns the handle whose `remove()` ends it.

    >>> layer = nn.Linear(6, 3)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> handle = attach_projection(optimizer, layer)
    """

    def project(*_: object) -> None:
        project_(model, offset_groups, assignments=assignments, constraint=constraint)

    project()
    return optimizer.register_step_post_hook(project)


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Linear, *_CONV, *_TRANSPOSED)) and not isinstance(
        layer, nn.modules.linear.NonDynamicallyQuantizableLinear
    )


def _projected(
    layer: nn.Module, offset_groups: GroupSpec | tuple[Groups, Groups], constraint: ConstraintKind
) -> torch.Tensor:
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    if not torch.isfinite(weight).all():
        raise ValueError(
            "its weight holds NaN or Inf, so training has diverged: start again from an earlier checkpoint"
        )
    if isinstance(layer, Constrained):
        return layer.projected_weight()
    into, out = offset_groups if isinstance(offset_groups, tuple) else (offset_groups, offset_groups)
    if isinstance(layer, nn.Linear):
        return project_weight(weight, resolve(into, layer.in_features), resolve(out, layer.out_features))
    assert isinstance(layer, nn.modules.conv._ConvNd)
    in_groups, out_groups = resolve(into, layer.in_channels), resolve(out, layer.out_channels)
    options: dict[str, Any] = {"conv_groups": layer.groups, "constraint": constraint}
    if isinstance(layer, _TRANSPOSED):
        if any(reach(layer, layer.output_padding)):
            raise ValueError(
                "its outputs at the border miss taps, as if the map went on with zeros, which do not follow an offset: "
                "use lightfast.nn's, or kernel_size = stride without padding"
            )
        options |= {"transposed": True, "stride": layer.stride, "dilation": layer.dilation}
    elif layer.padding_mode == "zeros" and any(layer._reversed_padding_repeated_twice):
        raise ValueError("it pads with zeros, which do not follow an offset: use padding_mode='replicate'")
    return project_weight(weight, in_groups, out_groups, **options)
