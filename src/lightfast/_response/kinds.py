"""Names for responses: equivariant, invariant, uniform, scaled, affine."""

from __future__ import annotations

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
        matrix: `R` (features x groups) of one image, where it varies along at most one axis; (0, g) otherwise.
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
    own = value.map.reshape(space.images, space.groups, *value.map.shape[1:])[0].select(images + 1, 0)
    axes = [axis for axis in range(len(value.shape)) if axis != images]
    varying = [axis for axis, size in zip(axes, own.shape[1:], strict=True) if size > 1]
    if len(varying) > 1:
        return Description("affine", nothing, images)
    candidates = [*varying, *(axis for axis in axes if axis == 1), *reversed(axes)]
    features = candidates[0] if candidates else None
    matrix = own.reshape(space.groups, -1).T
    kind, groups = _kind_of_matrix(matrix, space)
    if groups is not None and not varying and features is not None:
        groups = Groups(groups.assignment * value.shape[features], space.groups)
        matrix = matrix.expand(value.shape[features], -1)
    return Description(kind, matrix, images, features, groups)


def _images_axis(value: Response, space: Space) -> int | None:
    """The axis along which element `n` answers to the offset of image `n` alone, and all images answer alike."""
    by_image = value.moving.reshape(space.images, space.groups, *value.moving.shape[1:])
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
