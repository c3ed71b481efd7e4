"""Convolution, batch norm, shortcut and activation of a lifted map in one: what networks are mostly made of.

It is `convolve` and `norm_act`. Called one by one, what lies between torch's own calls takes longer than the calls
where maps are small; so a backend may do all of it at once, by a plan that is worked out once for maps of one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lightfast._backends.choose import backend_of
from lightfast._backends.convolve import convolve
from lightfast._backends.norm_act import infer_folded, norm_act
from lightfast._backends.operands import Folded, Operands, Statistics
from lightfast._backends.plans import UnitPlans
from lightfast._backends.tensors import observed


def conv_norm_act(
    z: Tensor,
    shortcut: Tensor | None,
    conv: Any,
    norm: Any,
    groups: int,
    slope: float,
    plans: UnitPlans,
    share: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The map after all of it, (N, channels, H', W'), and the offset (N, g) to be added to the map's own.

    Args:
        z: (N, channels, H, W), perhaps with idle channels.
        shortcut: of the shape of the result, or None.
        conv: `nn.Conv2d` or `nn.ConvTranspose2d`, or a constrained one.
        norm: a batch norm, whose running statistics move in training; or what `lf.fuse` has left of one.
        groups: g.
        slope: 0 for ReLU, 1 for no activation.
        plans: those of this unit.
        share: the mean of a tensor over all processes that train together.
    """
    if share is None and not observed(z):
        done = backend_of(z).unit(z, shortcut, conv, norm, groups, slope, plans)
        if done is not None:
            return done
    if isinstance(norm, Folded):
        u, bias, _ = convolve(z, conv, groups, with_bias=True, cache=plans.weights)
        return infer_folded(u, shortcut, bias, norm, groups, slope)
    u, bias, level = convolve(z, conv, groups)
    statistics = Statistics(norm.training, norm.running_mean, norm.running_var, norm.momentum, norm.eps, share)
    operands = Operands(u, shortcut, bias, norm.weight, norm.bias, statistics, groups, slope)
    z, offset = norm_act(operands, norm.num_batches_tracked)
    return z, offset if level is None else offset + level
