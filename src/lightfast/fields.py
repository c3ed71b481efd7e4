"""Offsets that vary over the image: fields in the span of a few smooth functions of the position.

Light varies over a picture. Let the offset of each group be a field `o(p) = Σ_k c_k B_k(p)`. With `P` the orthogonal
projection of a group's mean map onto the span of the functions `B_k`, `z = x - G P(x)` does not change when any field
of the span is added to `x`: exactly, and whatever network follows. One function, the constant, gives the group means.

Positions are those of pixel centers, from -1 to 1 over the extent of the image along each of its axes, so that a field
is the same at any resolution. What is called `field` below is 0 for a constant, 1 for a plane, 2 for a quadratic, or
any function from positions (P, d) to the values (P, K) of K functions there, such as :class:`Cosines`. :class:`Ridge`
takes away exactly what the first few functions can be, and a part of what the others are.

Functions are taken in their order. One that the positions cannot tell from those before it, as the quadratic ones from
the constant on 2 x 2 pixels, gets the coefficient 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lightfast._compilers import known_to_compilers
from lightfast._groups import GroupSpec, group_count
from lightfast.functional import add_offset, combine_offset, group_pool, statistics_dtype

__all__ = [
    "Cosines",
    "FieldSpec",
    "Polynomial",
    "RemoveField",
    "Ridge",
    "add_field",
    "field_map",
    "field_mean",
    "positions",
    "project_field",
    "remove_field",
]

DEPENDENT = 1e-10
"""Square of the share of its length that a function must add to those before it, to count as another one."""

_STEEPEST = 10.0
_CACHED_VALUES = 2**22
_CACHED_SIZES = 64


@dataclass(frozen=True)
class Polynomial:
    """The polynomials of a total degree up to `order` in d positions: products of Legendre's `L_0 = 1, L_1 = u, ...`.

    There are (d + order)! / (d! order!) of them, from the constant up: 1, 3, 6 in two dimensions for order 0, 1, 2.
    The mean over the image of each but the first is 0, so `c_0` is a group's mean.

    >>> Polynomial(1)(torch.tensor([[0.0, 0.5]]))
    tensor([[1.0000, 0.0000, 0.5000]])
    """

    order: int

    def __post_init__(self) -> None:
        """Complain about what cannot be meant."""
        _check_order(self.order)

    def __call__(self, p: Tensor) -> Tensor:
        """Positions (P, d) to values (P, K)."""
        powers = [torch.ones_like(p), p]
        for n in range(1, self.order):
            powers.append(((2 * n + 1) * p * powers[n] - n * powers[n - 1]) / (n + 1))
        return _products(powers, self.order, p)


@dataclass(frozen=True)
class Cosines:
    """Products of `cos(π k (u + 1) / 2)` over the positions, with frequencies `k` of a sum up to `order`.

    The lowest frequencies of the discrete cosine transform, from the constant up, and as many as polynomials of that
    order. The mean over the image of each but the first is 0.

    >>> Cosines(1)(torch.tensor([[-1.0], [0.5], [1.0]]))
    tensor([[ 1.0000,  1.0000],
            [ 1.0000, -0.7071],
            [ 1.0000, -1.0000]])
    """

    order: int

    def __post_init__(self) -> None:
        """Complain about what cannot be meant."""
        _check_order(self.order)

    def __call__(self, p: Tensor) -> Tensor:
        """Positions (P, d) to values (P, K)."""
        waves = [torch.cos(math.pi / 2 * k * (p + 1)) for k in range(self.order + 1)]
        return _products(waves, self.order, p)


@dataclass(frozen=True)
class Ridge:
    """More functions than can be told from the picture, which are held back: for spots and edges, which no plane is.

    Minimizes `Σ_p (x(p) - Σ_k c_k B_k(p))² + λ P Σ_{k ≥ K} c_k²`, for `P` positions and the `K` polynomials of a degree
    up to `exact`. Light in the span of these is taken away exactly, as without a ridge. Of a further function whose
    mean square is `m`, the share `m / (m + λ)` is, if it is orthogonal to the others: all of it for `λ = 0`.

    Args:
        order: the highest degree.
        strength: `λ`.
        exact: the highest degree that is not held back.

    >>> wave = torch.linspace(-1, 1, 64) ** 3
    >>> left = [remove_field(wave.expand(1, 1, -1), 1, field)[0].abs().mean() for field in (1, Ridge(3, 0.1), 3)]
    >>> left == sorted(left, reverse=True)
    True
    """

    order: int
    strength: float
    exact: int = 1

    def __post_init__(self) -> None:
        """Complain about what cannot be meant."""
        _check_order(self.order)
        if not 0 <= self.exact <= self.order or not self.strength >= 0:
            raise ValueError(f"a ridge has 0 <= exact <= order and a strength from 0 up, not {self}")

    def __call__(self, p: Tensor) -> Tensor:
        """Positions (P, d) to values (P, K)."""
        return Polynomial(self.order)(p)

    def penalty(self, axes: int) -> Tensor:
        """What is added to the Gram matrix per position, for so many axes of positions: (K, K), float64."""
        count, free = (math.comb(axes + order, axes) for order in (self.order, self.exact))
        return torch.diag((torch.arange(count) >= free).double() * self.strength)


FieldSpec: TypeAlias = int | Callable[[Tensor], Tensor]
"""How a user names a field: the order of a polynomial, or a function from positions (P, d) to values (P, K)."""


def positions(
    size: Sequence[int], device: torch.device | str | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """The centers of the pixels of an image, (P, d): row by row, each from -1 to 1 over the extent of its axis.

    >>> positions((1, 4))[:, 1]
    tensor([-0.7500, -0.2500,  0.2500,  0.7500], dtype=torch.float64)
    """
    if not size:
        return torch.zeros(1, 0, device=device, dtype=dtype)
    axes = [(2 * torch.arange(n, device=device, dtype=dtype) + 1) / n - 1 for n in size]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)


def project_field(x: Tensor, groups: GroupSpec, field: FieldSpec, mask: Tensor | None = None, dim: int = 1) -> Tensor:
    """The coefficients of `P(x)`, the field of the span that is nearest to each group's mean map.

    Minimizes `Σ_p w_p (mean_{i in j} x_i(p) - Σ_k c_jk B_k(p))²` over `c`, for each image and group `j`.

    Args:
        x: (N, ..., m, ...), with features on axis `dim`; every other axis is one of positions.
        groups: the assignment of the `m` features.
        field: 0, 1, 2 or a function of positions; see above.
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
    if mask is None and _is_constant(field):
        return group_pool(x, groups, dim=dim).flatten(1).unsqueeze(-1)
    means = group_pool(x, groups, scope="pixel", dim=dim).movedim(dim, 1)
    size = tuple(means.shape[2:])
    means = means.reshape(*means.shape[:2], math.prod(size))
    wide = _product_dtype(x)
    if mask is None:
        _, dual = _tables(field, size, x.device)
        return (means.to(wide) @ dual.to(wide)).to(means.dtype)
    weights = _weights(mask, x, dim)
    values, _ = _tables(field, size, x.device)
    pairs = (values[:, :, None] * values[:, None]).flatten(1)
    gram = (weights.to(values.dtype) @ pairs).unflatten(1, (values.shape[1], -1))
    if isinstance(field, Ridge):
        gram = gram + field.penalty(len(size)).to(gram) * weights.to(gram).sum(1)[:, None, None]
    # What does not count may be anything, NaN too.
    counted = torch.where(weights[:, None] > 0, means * weights[:, None].to(means.dtype), 0)
    return (counted.to(values.dtype) @ values @ _inverse(gram)).to(means.dtype)


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
    values, _ = _tables(field, tuple(size), coefficients.device)
    _check_coefficients(coefficients, values.shape[1], len(size))
    wide = _product_dtype(coefficients)
    fields = (coefficients.to(wide) @ values.to(wide).T).to(coefficients.dtype)
    return fields.reshape(*fields.shape[:2], *size)


def field_mean(coefficients: Tensor, field: FieldSpec, size: Sequence[int]) -> Tensor:
    """The mean over all pixels of each group's field: coefficients (N, g, K) to (N, g).

    >>> field_mean(torch.tensor([[[1.0, 0.0, 4.0]]]), 1, (1, 2))
    tensor([[1.]])
    """
    if _is_constant(field):
        _check_coefficients(coefficients, 1, len(size))
        return coefficients[..., 0]
    values, _ = _tables(field, tuple(size), coefficients.device)
    _check_coefficients(coefficients, values.shape[1], len(size))
    return (coefficients * values.mean(0)).sum(-1).to(coefficients.dtype)


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
    wide, size = _product_dtype(linear), tuple(linear.shape[2:])
    values = _tables(field, size, linear.device)[0].to(wide)
    weights = values.new_ones(1, values.shape[0]) if mask is None else _weights(mask, linear, 1).to(wide)
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
        step = (_inverse((share @ pairs).unflatten(2, (values.shape[1], -1))) @ slope.unsqueeze(3)).squeeze(3)
        found = found + step / (1 + (step * slope).sum(2, keepdim=True).clamp(min=0).sqrt())
        found = found.clamp(-_STEEPEST, _STEEPEST)
    level = (light * torch.exp(-found @ values.T)).sum(2).clamp(min=tiny).log()
    first = torch.arange(values.shape[1], device=linear.device) == 0
    return (found + torch.where(first, level.unsqueeze(2), 0)).to(statistics_dtype(linear))


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


def check_field(field: FieldSpec) -> FieldSpec:
    """The field, if it is one; else an error that says what is."""
    _function(field)
    return field


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
    if _is_constant(field):
        _check_coefficients(coefficients, 1, len(size))
        offset = coefficients[..., 0]
        return add_offset(x, offset if operation is torch.add else -offset, groups, dim)
    return combine_offset(operation, x, field_map(coefficients, field, size).movedim(1, dim), groups, dim)


def _function(field: FieldSpec) -> Callable[[Tensor], Tensor]:
    """The functions that `field` names."""
    if isinstance(field, int):
        return Polynomial(field)
    if not callable(field):
        raise TypeError(f"a field is 0, 1, 2 or a function from positions (P, d) to values (P, K), not {field!r}")
    return field


def _is_constant(field: FieldSpec) -> bool:
    return field == 0 if isinstance(field, int) else field in (Polynomial(0), Cosines(0))


def _check_order(order: int) -> None:
    if order < 0:
        raise ValueError(f"the order of a field is 0 (a constant), 1 (a plane), 2 (a quadratic) or higher, not {order}")


def _check_coefficients(coefficients: Tensor, count: int, axes: int) -> None:
    if coefficients.shape[-1] != count:
        raise ValueError(
            f"over {axes} axes of positions the field has {count} functions, but there are {coefficients.shape[-1]} "
            "coefficients per group: they belong to another field, or to maps with other axes"
        )


def _products(factors: Sequence[Tensor], order: int, p: Tensor) -> Tensor:
    """All products of a factor (P,) for each of the d positions, whose numbers add up to at most `order`: (P, K)."""
    chosen = sorted((n for n in product(range(order + 1), repeat=p.shape[1]) if sum(n) <= order), key=_low_first)
    columns = []
    for numbers in chosen:
        column = p.new_ones(p.shape[0])
        for axis, number in enumerate(numbers):
            if number:
                column = column * factors[number][:, axis]
        columns.append(column)
    return torch.stack(columns, 1)


def _low_first(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return sum(numbers), *(-number for number in numbers)


def _product_dtype(x: Tensor) -> torch.dtype:
    """The precision of products over positions.

    In float32 they would be rounded further, to bfloat16 by autocast and to TF32 where users allow that; in float64
    nothing is. Exported programs have no such settings, and not all that run them know float64.
    """
    if x.dtype == torch.float64:
        return torch.float64
    return torch.float32 if x.device.type == "mps" or torch.compiler.is_exporting() else torch.float64


_Key = tuple[Callable[[Tensor], Tensor], tuple[int, ...], torch.device]
_kept: dict[_Key, tuple[Tensor, Tensor]] = {}
_captured: dict[_Key, tuple[Tensor, Tensor]] = {}


def _tables(field: FieldSpec, size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The functions at each position, `B` (P, K), and their dual, `D` (P, K): `B Dᵀ` is the orthogonal projection.

    To compilers they are constants, unless the size is not known; exporters fold them themselves.
    """
    if not torch.compiler.is_compiling():
        return _kept_tables(field, size, device)
    known = _known_to_compiler(size)
    return _build(_function(field), size, device) if known is None else _kept_tables(field, known, device)


def _known_to_compiler(size: tuple[int, ...]) -> tuple[int, ...] | None:
    """The size as numbers, if it is one that the compiler takes for granted; exporters have none such."""
    # Not at the top: it is slow to load.
    from torch.fx.experimental.symbolic_shapes import guard_scalar, has_static_value

    if torch.compiler.is_dynamo_compiling() and all(has_static_value(pixels) for pixels in size):
        return tuple(int(guard_scalar(pixels)) for pixels in size)
    return None


@known_to_compilers
def _kept_tables(field: FieldSpec, size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The tables, kept for the next call unless they take much memory, or are made while a CUDA graph is captured."""
    key = (_function(field), size, device)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if key in _kept:
        if capturing:
            # The graph reads them for as long as it lives, and nobody says how long that is.
            _captured[key] = _kept[key]
        return _kept[key]
    # A tensor that was made for inference could not be used in training later.
    with torch.inference_mode(False), torch.no_grad():
        tables = _build(*key)
    if type(tables[0]) is Tensor and not capturing and tables[0].numel() <= _CACHED_VALUES:
        if device.type == "cuda":
            # The next call may be on another stream.
            torch.cuda.current_stream(device).synchronize()
        if len(_kept) >= _CACHED_SIZES:
            _kept.pop(next(iter(_kept)))
        _kept[key] = tables
    return tables


def _build(function: Callable[[Tensor], Tensor], size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if device.type == "mps" else torch.float64
    places = positions(size, device, dtype)
    values = function(places)
    if values.dim() != 2 or values.shape[0] != places.shape[0]:
        raise ValueError(
            f"the functions of a field turn positions of shape {tuple(places.shape)} into values of shape "
            f"({places.shape[0]}, K), but gave {tuple(values.shape)}"
        )
    values = values.to(dtype)
    gram = values.T @ values
    if isinstance(function, Ridge):
        gram = gram + function.penalty(len(size)).to(gram) * len(places)
    return values, values @ _inverse(gram)


def _inverse(gram: Tensor) -> Tensor:
    """The generalised inverse of `G = Bᵀ W B` (..., K, K) that is 0 for functions that depend on those before them.

    Gram and Schmidt, in coefficients: `T` has the columns of an orthonormal basis, `Tᵀ G T = 1`, and `G⁻ = T Tᵀ`.
    There is no branch, so that compilers and exporters can follow.
    """
    count = gram.shape[-1]
    unit = torch.eye(count, dtype=gram.dtype, device=gram.device).expand(gram.shape)
    least = max(DEPENDENT, 16 * torch.finfo(gram.dtype).eps)
    columns = gram.new_zeros(*gram.shape[:-1], 0)
    for k in range(count):
        column = unit[..., k : k + 1]
        # Twice, because the first time leaves a rounding error where functions are nearly dependent.
        for _ in range(2 if k else 0):
            column = column - columns @ (columns.mT @ (gram @ column))
        length2 = column.mT @ gram @ column
        adds = length2 > least * gram[..., k : k + 1, k : k + 1]
        column = torch.where(adds, column * torch.where(adds, length2, 1).rsqrt(), 0)
        columns = torch.cat([columns, column], -1)
    return columns @ columns.mT


def _weights(mask: Tensor, x: Tensor, dim: int) -> Tensor:
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
