"""What certify knows of a value: a constant, an offset response, or nothing because an operation lost it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lightfast.fields import FieldSpec, field_map, project_field


@dataclass(frozen=True)
class Space:
    """The offsets that are asked about: a field for each of `groups` groups of each of `images` images.

    A field is a sum of `functions` functions of the position over an input of `size` pixels; by default there is one,
    the constant, and an offset is a number. There are `images · groups · functions` directions in which the input can
    move; direction `(n · groups + j) · functions + k` adds function `k` to group `j` of image `n` alone. Two responses
    that differ by less than `tolerance`, relative to the terms that they were summed from, are equal.
    """

    images: int
    groups: int
    tolerance: float = 1e-9
    field: FieldSpec = 0
    size: tuple[int, ...] = ()

    @property
    def varies(self) -> bool:
        """Whether offsets vary over the image."""
        return self.field != 0

    @property
    def directions(self) -> int:
        return self.images * self.groups * self.functions

    @cached_property
    def functions(self) -> int:
        return project_field(torch.zeros(1, 1, *self.size), 1, self.field).shape[2]

    def basis(self, size: Sequence[int]) -> Tensor:
        """The functions at each pixel of a map of that size: (K, *size), in float64."""
        return field_map(torch.eye(self.functions, dtype=torch.float64)[None], self.field, size)[0]

    def check(self) -> None:
        """Raise a sentence if the functions are so nearly the same that rounding could hide one behind the others."""
        values = self.basis(self.size).flatten(1)
        shares = torch.linalg.svdvals(values / values.norm(dim=1, keepdim=True).clamp(min=1e-300))
        if bool(((shares > 1e-12 * shares[0]) & (shares < 1e-4 * shares[0])).any()):
            raise ValueError(
                f"at {' x '.join(map(str, self.size))} pixels some functions of the field {self.field} are nearly sums "
                "of others, and no proof could tell them apart: choose functions that are nearly orthogonal, such as "
                "those of lightfast.fields"
            )


@dataclass(frozen=True)
class Constant:
    """A value that depends on parameters alone, computed in float64."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass(frozen=True)
class Response:
    """`y(x + G Δ) = y(x) + R Δ`, for all inputs `x` and all offsets `Δ`, one per image.

    Where offsets are fields, `Δ` are their coefficients. No rule may rely on a response that is constant over pixels,
    unless it looks: `R` may vary along any axis.

    Args:
        shape: the value's.
        map: `R` as (directions, *shape), with size 1 on every axis along which it does not vary; None where it is zero,
            so that the value is invariant.
    """

    shape: tuple[int, ...]
    map: Tensor | None = None

    @property
    def moving(self) -> Tensor:
        """`R` of a value that is known to have one."""
        assert self.map is not None
        return self.map

    def is_flat(self, axes: int) -> bool:
        """Whether `R` is the same along the last so many axes."""
        return all(size == 1 for size in self.moving.shape[-axes:])


@dataclass(frozen=True)
class Lost:
    """A value whose answer to an offset depends on the input, because of the operations at `causes`."""

    causes: tuple[str, ...] = field(default=())


Value = Constant | Response | Lost


class NoResponse(Exception):
    """Raised by a rule: the operation's output has no response.

    Args:
        why: in words, with `{value}` for the operand that has a response, if the sentence is about it.
        instead: what to use instead.
    """

    def __init__(self, why: str, instead: str) -> None:
        self.template, self.instead = why, instead
        super().__init__(self.why())

    def why(self, value: str = "a value with response") -> str:
        """The reason, with the operand called so."""
        return self.template.format(value=value)


def full(value: Response, axes: Sequence[int] | None = None) -> Tensor:
    """`R` with the given axes of the value (all of them by default) at their real size, as a view."""
    if axes is None:
        return value.moving.expand(-1, *value.shape)
    sizes = list(value.moving.shape)
    for axis in axes:
        sizes[axis + 1] = value.shape[axis]
    return value.moving.expand(sizes)


def align(value: Value, rank: int, space: Space) -> Tensor:
    """`R` with `rank` value axes, for arithmetic that broadcasts; zeros for a constant or an invariant value."""
    if isinstance(value, Response) and value.map is not None:
        missing = rank - len(value.shape)
        return value.map.reshape(value.map.shape[0], *[1] * missing, *value.map.shape[1:])
    return torch.zeros(space.directions, *[1] * rank, dtype=torch.float64)


def settle(exact: Tensor, size: Tensor, space: Space) -> Tensor:
    """`exact`, with 0 where terms of magnitude `size` canceled to within the tolerance."""
    return exact.masked_fill(exact.abs() <= space.tolerance * size, 0)


def collapse(exact: Tensor, space: Space) -> Tensor | None:
    """`R` with size 1 on each axis along which it is constant to within the tolerance; None if it is zero."""
    for axis in range(1, exact.dim()):
        if exact.stride(axis) == 0:
            exact = exact.narrow(axis, 0, 1)
    for axis in range(1, exact.dim()):
        if exact.shape[axis] == 1:
            continue
        first = exact.narrow(axis, 0, 1)
        # Most axes that vary do so at once; two slices settle the question without reading the whole tensor.
        last = exact.narrow(axis, exact.shape[axis] - 1, 1)
        if equal(first, last, space) and equal(exact, first, space):
            exact = first
    return exact if exact.any() else None


def equal(a: Tensor, b: Tensor, space: Space) -> bool:
    """Whether two responses agree to within the tolerance, relative to their own size."""
    if bool((a == b).all()):
        # The usual case, read once; what is infinite agrees with nothing.
        return bool(b.isfinite().all())
    return bool(((a - b).abs() <= space.tolerance * torch.maximum(a.abs(), b.abs())).all())
