"""What certify knows of a value: a constant, an offset response, or nothing because an operation lost it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Space:
    """The offsets that are asked about: one Δ of `groups` numbers for each of `images` images.

    There are `images · groups` directions in which the input can move; direction `n · groups + j` adds to group `j` of
    image `n` alone. Two responses that differ by less than `tolerance`, relative to the terms that they were summed
    from, are equal.
    """

    images: int
    groups: int
    tolerance: float = 1e-9

    @property
    def directions(self) -> int:
        return self.images * self.groups


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
        if exact.shape[axis] == 1:
            continue
        first = exact.narrow(axis, 0, 1)
        if exact.stride(axis) == 0:
            exact = first
            continue
        # Most axes that vary do so at once; two slices settle the question without reading the whole tensor.
        last = exact.narrow(axis, exact.shape[axis] - 1, 1)
        if equal(first, last, space) and equal(exact, first, space):
            exact = first
    return exact if exact.any() else None


def equal(a: Tensor, b: Tensor, space: Space) -> bool:
    """Whether two responses agree to within the tolerance, relative to their own size."""
    return bool(((a - b).abs() <= space.tolerance * torch.maximum(a.abs(), b.abs())).all())
