"""How bright a picture is, as a field, where black pixels have no logarithm."""

from __future__ import annotations

import torch
from torch import Tensor

from lightfast.fields._bases import FieldSpec
from lightfast.fields._projection import position_weights
from lightfast.fields._tables import inverse, product_dtype, tables
from lightfast.functional import statistics_dtype

_STEEPEST = 10.0


def log_level(linear: Tensor, field: FieldSpec, mask: Tensor | None = None, steps: int = 12) -> Tensor:
    """The field that says how bright each channel is, black pixels included: for a constant, the log of the mean.

    Minimizes `Σ_p w_p (x(p) exp(-o(p)) + o(p))`, so that `Σ_p w_p B_k(p) (x(p) exp(-o(p)) - 1) = 0` for every function.
    Light that multiplies `x` by the exponential of a field of the span adds that field to `o`. A channel has no
    logarithm where it is black, so that this cannot be a projection. Where all the light is on one side there is no
    minimum, and coefficients end at a limit.

    Args:
        linear: (N, C, *positions), from 0 up.
        field: 0, 1, 2 or a basis whose first function is the constant 1.
        mask: which positions count, (N or 1, 1, *positions); all by default.
        steps: of Newton's method, damped.

    Returns:
        Coefficients (N, C, K), at least float32.

    >>> log_level(torch.tensor([[[0.0, 2.0]]]), 0)
    tensor([[[0.]]])
    """
    wide, size = product_dtype(linear), tuple(linear.shape[2:])
    values = tables(field, size, linear.device)[0].to(wide)
    weights = values.new_ones(1, values.shape[0]) if mask is None else position_weights(mask, linear, 1).to(wide)
    tiny = torch.finfo(wide).tiny
    weights = (weights / weights.sum(1, keepdim=True).clamp(min=tiny)).unsqueeze(1)
    light = torch.where(weights > 0, linear.flatten(2).to(wide) * weights, 0)
    # A channel without any light has a level too, far below the first step of any image.
    mean = light.sum(2, keepdim=True)
    light, mean = torch.where(mean > 1e-12, light, 1e-12 * weights), mean.clamp(min=1e-12)
    pairs, wanted = (values[:, :, None] * values[:, None]).flatten(1), weights @ values
    found = values.new_zeros(*linear.shape[:2], values.shape[1])
    for _ in range(steps if values.shape[1] > 1 else 0):
        share = light / mean * torch.exp(-found @ values.T)
        share = share / share.sum(2, keepdim=True).clamp(min=tiny)
        slope = share @ values - wanted
        step = (inverse((share @ pairs).unflatten(2, (values.shape[1], -1))) @ slope.unsqueeze(3)).squeeze(3)
        found = found + step / (1 + (step * slope).sum(2, keepdim=True).clamp(min=0).sqrt())
        found = found.clamp(-_STEEPEST, _STEEPEST)
    level = (light * torch.exp(-found @ values.T)).sum(2).clamp(min=tiny).log()
    first = torch.arange(values.shape[1], device=linear.device) == 0
    return (found + torch.where(first, level.unsqueeze(2), 0)).to(statistics_dtype(linear))
