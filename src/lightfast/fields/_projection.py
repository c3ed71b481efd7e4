"""Fields found in a map, taken away from it, and given back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lightfast._groups import GroupSpec, group_count
from lightfast.fields._bases import FieldSpec, Ridge, check_field, is_constant
from lightfast.fields._tables import inverse, product_dtype, tables
from lightfast.functional import add_offset, combine_offset, group_pool, statistics_dtype


def project_field(x: Tensor, groups: GroupSpec, field: FieldSpec, mask: Tensor | None = None, dim: int = 1) -> Tensor:
    """The coefficients of `P(x)`, the field of the span that is nearest to each group's mean map.

    Minimizes `Σ_p w_p (mean_{i in j} x_i(p) - Σ_k c_jk B_k(p))²` over `c`, for each image and group `j`.

    Args:
        x: (N, ..., m, ...), with features on axis `dim`; every other axis is one of positions.
        groups: the assignment of the `m` features.
        field: 0, 1, 2 or a function of positions; see :mod:`lightfast.fields`.
        mask: which positions count, `w`: boolean, or weights from 0 up; broadcastable to `x`, with size 1 on axis
            `dim`. An image where none counts has the field 0.
        dim: the features' axis.

    Returns:
        (N, g, K), at least float32.

    >>> ramp = torch.arange(4.0).expand(1, 1, 4)
    >>> project_field(ramp, 1, 1)
    tensor([[[1.5000, 2.0000]]])
    """
    dim = dim + x.dim() if dim < 0 else dim
    if mask is None and is_constant(field):
        return group_pool(x, groups, dim=dim).flatten(1).unsqueeze(-1)
    means = group_pool(x, groups, scope="pixel", dim=dim).movedim(dim, 1)
    size = tuple(means.shape[2:])
    means = means.reshape(*means.shape[:2], math.prod(size))
    wide = product_dtype(x)
    if mask is None:
        _, dual = tables(field, size, x.device)
        return (means.to(wide) @ dual.to(wide)).to(means.dtype)
    weights = position_weights(mask, x, dim)
    values, _ = tables(field, size, x.device)
    pairs = (values[:, :, None] * values[:, None]).flatten(1)
    gram = (weights.to(values.dtype) @ pairs).unflatten(1, (values.shape[1], -1))
    if isinstance(field, Ridge):
        gram = gram + field.penalty(len(size)).to(gram) * weights.to(gram).sum(1)[:, None, None]
    # What does not count may be anything, NaN too.
    counted = torch.where(weights[:, None] > 0, means * weights[:, None].to(means.dtype), 0)
    return (counted.to(values.dtype) @ values @ inverse(gram)).to(means.dtype)


def remove_field(
    x: Tensor, groups: GroupSpec, field: FieldSpec, mask: Tensor | None = None, dim: int = 1
) -> tuple[Tensor, Tensor]:
    """`z = x - G P(x)`, which no field of the span can change, and the coefficients of `P(x)`.

    With a mask, that holds at the positions that count; it holds elsewhere too if these tell the functions apart.

    Args and coefficients as in :func:`project_field`.

    Returns:
        `z`, of the shape and precision of `x`, and the coefficients (N, g, K), at least float32.

    >>> x, light = torch.randn(2, 3, 5, 6), torch.linspace(0, 9, 6)
    >>> torch.allclose(remove_field(x, 3, 1)[0], remove_field(x + light, 3, 1)[0], atol=1e-5)
    True
    """
    coefficients = project_field(x, groups, field, mask, dim)
    return _combine(torch.sub, x, coefficients, groups, field, dim), coefficients


def add_field(y: Tensor, coefficients: Tensor, groups: GroupSpec, field: FieldSpec, dim: int = 1) -> Tensor:
    """`y + G o`: add to each feature the field of its group, at the positions of `y`, however many there are.

    Args:
        y: (N, ..., n, ...), with features on axis `dim`.
        coefficients: (N, g, K), as from :func:`remove_field`.
        groups: the assignment of the `n` features.
        field: the functions that the coefficients belong to.
        dim: the features' axis.

    Returns:
        The shape and precision of `y`; the sum itself is taken in at least the precision of the coefficients.

    >>> add_field(torch.zeros(1, 1, 2), torch.tensor([[[1.5, 2.0]]]), 1, 1)
    tensor([[[0.5000, 2.5000]]])
    """
    return _combine(torch.add, y, coefficients, groups, field, dim)


def field_map(coefficients: Tensor, field: FieldSpec, size: Sequence[int]) -> Tensor:
    """`o(p) = Σ_k c_k B_k(p)` at every pixel: coefficients (N, g, K) to (N, g, *size).

    >>> field_map(torch.tensor([[[1.0, 0.0, 4.0]]]), 1, (1, 2))
    tensor([[[[-1.,  3.]]]])
    """
    values, _ = tables(field, tuple(size), coefficients.device)
    _check_coefficients(coefficients, values.shape[1], len(size))
    wide = product_dtype(coefficients)
    fields = (coefficients.to(wide) @ values.to(wide).T).to(coefficients.dtype)
    return fields.reshape(*fields.shape[:2], *size)


def field_mean(coefficients: Tensor, field: FieldSpec, size: Sequence[int]) -> Tensor:
    """The mean over all pixels of each group's field: coefficients (N, g, K) to (N, g).

    >>> field_mean(torch.tensor([[[1.0, 0.0, 4.0]]]), 1, (1, 2))
    tensor([[1.]])
    """
    if is_constant(field):
        _check_coefficients(coefficients, 1, len(size))
        return coefficients[..., 0]
    values, _ = tables(field, tuple(size), coefficients.device)
    _check_coefficients(coefficients, values.shape[1], len(size))
    return (coefficients * values.mean(0)).sum(-1).to(coefficients.dtype)


class RemoveField(nn.Module):
    """`z = x - G P(x)` as a step of a data pipeline, before any network; see :func:`remove_field`.

    Args:
        offset_groups: the assignment of the channels; in log RGB, each is a group.
        field: 0, 1, 2 or a function of positions.

    Shapes: (..., C, H, W) to the same; the mask, if there is one, (..., 1, H, W).

    >>> transform = RemoveField(field=1)
    >>> transform(torch.randn(3, 32, 32)).shape
    torch.Size([3, 32, 32])
    """

    def __init__(self, offset_groups: GroupSpec = 3, field: FieldSpec = 1) -> None:
        super().__init__()
        self.offset_groups, self.field = offset_groups, check_field(field)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        images = x.reshape(-1, *x.shape[-3:])
        if mask is not None:
            mask = mask.expand(*x.shape[:-3], 1, *x.shape[-2:]).reshape(-1, 1, *x.shape[-2:])
        return remove_field(images, self.offset_groups, self.field, mask)[0].reshape(x.shape)

    def extra_repr(self) -> str:
        return f"offset_groups={self.offset_groups}, field={self.field}"


def _combine(
    operation: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    coefficients: Tensor,
    groups: GroupSpec,
    field: FieldSpec,
    dim: int,
) -> Tensor:
    """`operation(x, G o)` at the positions of `x`."""
    dim = dim + x.dim() if dim < 0 else dim
    size = [pixels for axis, pixels in enumerate(x.shape) if axis not in (0, dim)]
    if coefficients.dim() != 3 or coefficients.shape[1] != group_count(groups):
        raise ValueError(
            f"expected coefficients (N, g, K) with g = {group_count(groups)}, but their shape is "
            f"{tuple(coefficients.shape)}"
        )
    if is_constant(field):
        _check_coefficients(coefficients, 1, len(size))
        offset = coefficients[..., 0]
        return add_offset(x, offset if operation is torch.add else -offset, groups, dim)
    return combine_offset(operation, x, field_map(coefficients, field, size).movedim(1, dim), groups, dim)


def _check_coefficients(coefficients: Tensor, count: int, axes: int) -> None:
    if coefficients.shape[-1] != count:
        raise ValueError(
            f"over {axes} axes of positions the field has {count} functions, but there are {coefficients.shape[-1]} "
            "coefficients per group: they belong to another field, or to maps with other axes"
        )


def position_weights(mask: Tensor, x: Tensor, dim: int) -> Tensor:
    """The weight of each position, (N or 1, P), of `x`'s statistics' precision."""
    if mask.dim() > x.dim() or (mask.dim() >= x.dim() - dim and mask.shape[dim - x.dim()] != 1):
        raise ValueError(
            f"expected a mask that is broadcastable to {tuple(x.shape)}, with size 1 on axis {dim}, but its shape is "
            f"{tuple(mask.shape)}"
        )
    mask = mask.reshape((1,) * (x.dim() - mask.dim()) + tuple(mask.shape))
    shape = [mask.shape[0], *x.shape[1:]]
    shape[dim] = 1
    return mask.expand(shape).flatten(1).to(statistics_dtype(x))
