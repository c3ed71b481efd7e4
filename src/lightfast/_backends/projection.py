"""The projection of weights with its gradient: in one pass, and in the form that is wanted, where a backend can.

The projection is affine, `P(W) = W - M W + S`, with `M` the mean of each block of weights that meets the constraint
together, and `S` its share of it. `I - M` is symmetric. With `E` for the idle channels, `E P(W)` has the gradient
`(I - M) Eᵀ`, and that has `E (I - M)`: the same pass without `S`, back and forth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightfast._backends.choose import REFERENCE, backend_of
from lightfast._backends.constraint import Constraint, Form
from lightfast._backends.operators import fit_weight_operator, wants_weight_operator
from lightfast._backends.reference import Reference
from lightfast._backends.tensors import layout_of, observed


def fit_weight(weight: Tensor, constraint: Constraint | None, form: Form) -> Tensor:
    """The weight projected onto the constraint, if there is one, in this form; itself where there is nothing to do.

    Args:
        weight: (n, m / conv_groups, *kernel), or (m, n / conv_groups, *kernel) of a transposed convolution.
        constraint: what it is to meet.
        form: with as many channels or more, which are idle and zero.
    """
    if constraint is None and _has(weight, form):
        return weight
    backend = backend_of(weight)
    if not observed(weight) and backend.takes_weight(weight, constraint, form):
        return _Fit.apply(weight, backend, constraint, form, True)
    if constraint is not None and wants_weight_operator(weight, constraint, form):
        return fit_weight_operator(weight, constraint, form)
    return REFERENCE.fit_weight(weight, constraint, form, True)


def _has(weight: Tensor, form: Form) -> bool:
    same = tuple(weight.shape) == form.shape and weight.dtype == form.dtype
    return same and weight.is_contiguous(memory_format=form.layout)


class _Fit(torch.autograd.Function):
    """From one form to the other, larger or smaller one, projected; without `wanted`, the linear part of that."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, backend: Reference, constraint: Constraint | None, form: Form, wanted: bool
    ) -> Tensor:
        ctx.backend, ctx.constraint, ctx.forms = backend, constraint, (Form.of(weight), form)
        return backend.fit_weight(weight, constraint, form, wanted)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (raw, form) = grads, ctx.forms
        if observed(grad):
            # Batches of gradients do not say how they lie, and cannot be laid otherwise.
            raw = raw._replace(layout=torch.contiguous_format)
            return REFERENCE.fit_weight(grad, ctx.constraint, raw, False), None, None, None, None
        grad = grad if layout_of(grad) == form.layout else grad.contiguous(memory_format=form.layout)
        by = ctx.backend if ctx.backend.takes_weight(grad, ctx.constraint, raw) else REFERENCE
        if by is REFERENCE:
            return by.fit_weight(grad, ctx.constraint, raw, False), None, None, None, None
        return _Fit.apply(grad, by, ctx.constraint, raw, False), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        tangent = tangents[0]
        return None if tangent is None else REFERENCE.fit_weight(tangent, ctx.constraint, ctx.forms[1], False)
