"""The functions of the position that fields are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor


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

    >>> from lightfast.fields import remove_field
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


def check_field(field: FieldSpec) -> FieldSpec:
    """The field, if it is one; else an error that says what is."""
    function_of(field)
    return field


def function_of(field: FieldSpec) -> Callable[[Tensor], Tensor]:
    """The functions that `field` names."""
    if isinstance(field, int):
        return Polynomial(field)
    if not callable(field):
        raise TypeError(f"a field is 0, 1, 2 or a function from positions (P, d) to values (P, K), not {field!r}")
    return field


def is_constant(field: FieldSpec) -> bool:
    return field == 0 if isinstance(field, int) else field in (Polynomial(0), Cosines(0))


def _check_order(order: int) -> None:
    if order < 0:
        raise ValueError(f"the order of a field is 0 (a constant), 1 (a plane), 2 (a quadratic) or higher, not {order}")


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
