"""Names for responses: equivariant, invariant, uniform, scaled, affine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightfast._groups import Groups
from lightfast._response.value import Constant, Lost, Response, Space, Value, equal

Kind = Literal["equivariant", "invariant", "uniform", "scaled", "affine", "constant", "broken"]


@dataclass(frozen=True)
class Description:
    """A response in words and numbers.

    Args:
        kind: its name.
        matrix: `R` (features x groups) of one image, where it varies along at most one axis; (0, g) otherwise. Where
            offsets are fields: what each feature follows of each group's, at the positions of the value's own pixels.
        images_axis: the axis of images, where each answers to its own offset alone.
        features_axis: the axis along which `R` varies; axis 1 (or the last) where it varies along none.
        groups: the assignment, of an equivariant or scaled value.
    """

    kind: Kind
    matrix: Tensor
    images_axis: int | None = None
    features_axis: int | None = None
    groups: Groups | None = None

    @property
    def is_invariant(self) -> bool:
        """Whether the value stays as it is."""
        return self.kind in ("invariant", "constant")

    @property
    def is_sound(self) -> bool:
        """Whether the value follows offsets as the input does, or not at all."""
        return self.is_invariant or self.kind == "equivariant"

    def __str__(self) -> str:
        return self.kind


def describe(value: Value, space: Space) -> Description:
    """Name the response of a value."""
    nothing = torch.zeros(0, space.groups, dtype=torch.float64)
    if isinstance(value, Lost):
        return Description("broken", nothing)
    if isinstance(value, Constant):
        return Description("constant", nothing)
    if value.map is None:
        return Description("invariant", torch.zeros(1, space.groups, dtype=torch.float64))
    images = _images_axis(value, space)
    if images is None:
        return Description("affine", nothing)
    own = value.map.reshape(space.images, -1, *value.map.shape[1:])[0].select(images + 1, 0)
    axes = [axis for axis in range(len(value.shape)) if axis != images]
    if space.varies:
        return _describe_field(own, [value.shape[axis] for axis in axes], axes, images, space)
    varying = [axis for axis, size in zip(axes, own.shape[1:], strict=True) if size > 1]
    if len(varying) > 1:
        return Description("affine", nothing, images)
    candidates = [*varying, *(axis for axis in axes if axis == 1), *reversed(axes)]
    features = candidates[0] if candidates else None
    count = 1 if features is None else value.shape[features]
    return _describe_matrix(own.reshape(space.groups, -1).T, images, features, count, space)


def ignores_constants(value: Value, space: Space) -> bool:
    """Whether no offset that is the same over the whole image moves a value, though a field may."""
    if not isinstance(value, Response) or value.map is None:
        return not isinstance(value, Lost)
    functions = space.basis(space.size).flatten(1).T
    constant = torch.linalg.pinv(functions).sum(1)
    in_span = torch.allclose(functions @ constant, torch.ones((), dtype=torch.float64))
    moved = (value.map.unflatten(0, (-1, space.functions)).movedim(1, -1) * constant).sum(-1)
    return in_span and bool((moved.abs() <= space.tolerance * value.map.abs().max()).all())


def _describe_field(own: Tensor, shape: list[int], axes: list[int], images: int, space: Space) -> Description:
    """Name the response to fields of one image: (directions, *shape), with size 1 where it does not vary.

    A value that follows fields has `R = S ⊗ B`: features follow `S` (features x groups) of the fields at the value's
    own positions, or of their means where it has no positions.
    """
    nothing = torch.zeros(0, space.groups, dtype=torch.float64)
    for place in sorted(range(len(axes)), key=lambda place: (axes[place] != 1, -place)):
        size = shape[:place] + shape[place + 1 :]
        rows = own.movedim(place + 1, 1).unflatten(0, (space.groups, space.functions))
        for values in _references(size, space):
            matrix = _followed(rows, values, space)
            if matrix is not None:
                return _describe_matrix(matrix, images, axes[place], shape[place], space)
    return Description("uniform" if own[0].numel() == 1 else "affine", nothing, images)


def _describe_matrix(matrix: Tensor, images: int, features: int | None, count: int, space: Space) -> Description:
    """Name `R` (features x groups), or its one row that all of `count` features share."""
    kind, groups = _kind_of_matrix(matrix, space)
    if groups is not None and len(matrix) < count:
        groups = Groups(groups.assignment * count, space.groups)
        matrix = matrix.expand(count, -1)
    return Description(kind, matrix, images, features, groups)


def _references(size: list[int], space: Space) -> list[Tensor]:
    """What the functions are, (K, *size), at the positions of a map; their means where there is but one."""
    means = space.basis(space.size).flatten(1).mean(1).reshape(-1, *[1] * len(size))
    at_positions = [space.basis(size)] if len(size) == len(space.size) else []
    return [*at_positions, means] if math.prod(size) == 1 else at_positions


def _followed(rows: Tensor, values: Tensor, space: Space) -> Tensor | None:
    """`S` (features x groups) with `rows` (g, K, features, *size) equal to `S ⊗ values` (K, *size); None if none is."""
    values = values.unsqueeze(1)
    over = [axis for axis in range(1, rows.dim()) if axis != 2]
    size2 = values.square().sum()
    factor = (rows * values).sum(over, keepdim=True) / size2
    rest = (rows - factor * values).abs()
    # Relative to what a feature follows at all: rounding leaves more than nothing where a function is zero.
    largest = (factor.abs().amax(0) * values.abs().amax()).unsqueeze(0)
    return factor.flatten(1).T if bool((rest <= space.tolerance * largest).all()) else None


def _images_axis(value: Response, space: Space) -> int | None:
    """The axis along which element `n` answers to the offset of image `n` alone, and all images answer alike."""
    by_image = value.moving.reshape(space.images, -1, *value.moving.shape[1:])
    for axis, size in enumerate(value.shape):
        if size != space.images or (space.images > 1 and value.moving.shape[axis + 1] != size):
            continue
        blocks = by_image.movedim(axis + 2, 1).expand(space.images, space.images, *[-1] * (by_image.dim() - 2))
        own = blocks[range(space.images), range(space.images)]
        others = blocks.clone()
        others[range(space.images), range(space.images)] = 0
        if not others.any() and equal(own, own[:1], space):
            return axis
    return None


def _kind_of_matrix(matrix: Tensor, space: Space) -> tuple[Kind, Groups | None]:
    """The name of `R` (features x groups), which is not all zero."""
    tolerance = space.tolerance
    largest, group = matrix.abs().max(1)
    one_each = bool((matrix.abs().sum(1) - largest <= tolerance * largest).all() and (largest > 0).all())
    if one_each:
        entries = matrix.gather(1, group[:, None])[:, 0]
        groups = Groups(group.tolist(), space.groups)
        if bool(((entries - 1).abs() <= tolerance).all()):
            return "equivariant", groups
        by_group = [entries[group == j] for j in range(space.groups)]
        alike = all(not len(e) or bool(((e - e[0]).abs() <= tolerance * e[0].abs()).all()) for e in by_group)
        if alike and matrix.shape[0] > 1:
            return "scaled", groups
    if equal(matrix, matrix[:1], space):
        return "uniform", None
    return "affine", None
