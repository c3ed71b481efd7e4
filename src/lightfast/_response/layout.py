"""How an equivariant value is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightfast._groups import Groups
from lightfast._response.value import Response, Space


@dataclass(frozen=True)
class Layout:
    """Where an equivariant value holds what: the axis of images, that of features, and to which groups those belong.

    `owners` says to which image each element of the axis of images belongs, since windows of an image may share it.
    """

    images: int
    features: int
    groups: Groups
    owners: tuple[int, ...]

    def response(self, shape: tuple[int, ...], space: Space) -> Response:
        """The response of a value of this shape that is laid out so."""
        rank = len(shape)
        owners = torch.eye(space.images, dtype=torch.float64)[:, list(self.owners)]
        sizes, features = [1] * rank, [1] * rank
        sizes[self.images], features[self.features] = len(self.owners), self.groups.features
        images = owners.reshape(space.images, 1, *sizes)
        matrix = self.groups.matrix(dtype=torch.float64).T.reshape(1, space.groups, *features)
        moved = (images * matrix).flatten(0, 1)
        if not space.varies:
            return Response(shape, moved)
        sizes = [1 if axis in (self.images, self.features) else size for axis, size in enumerate(shape)]
        values = space.basis([size for axis, size in enumerate(shape) if axis not in (self.images, self.features)])
        return Response(shape, (moved[:, None] * values.reshape(-1, *sizes)).flatten(0, 1))


def layout_of(value: Any, space: Space) -> Layout | None:
    """The layout of a value, if it is equivariant: each element follows one group's offset of one image."""
    if not isinstance(value, Response) or value.map is None or len(value.shape) < 2:
        return None
    moved = value.map
    if not bool(((moved - moved.round()).abs() <= space.tolerance).all()) or not bool(
        (moved.round().sum(0) == 1).all()
    ):
        return None
    winner = moved.argmax(0)
    image, group = winner // space.groups, winner % space.groups
    image_axes = [axis for axis in range(image.dim()) if _varies(image, axis)]
    group_axes = [axis for axis in range(group.dim()) if _varies(group, axis)]
    if len(image_axes) != 1 or len(group_axes) > 1 or image_axes == group_axes:
        return None
    images = image_axes[0]
    others = [axis for axis in (1, *reversed(range(len(value.shape)))) if axis != images and axis < len(value.shape)]
    features = group_axes[0] if group_axes else others[0]
    owners = image.movedim(images, 0).flatten(1)[:, 0].tolist()
    assignment = group.movedim(features, 0).flatten(1)[:, 0].expand(value.shape[features]).tolist()
    return Layout(images, features, Groups(assignment, space.groups), tuple(owners))


def _varies(ids: Tensor, axis: int) -> bool:
    return ids.shape[axis] > 1 and bool((ids != ids.narrow(axis, 0, 1)).any())
