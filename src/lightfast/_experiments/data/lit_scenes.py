"""Linear images with the light in each, of one data set or of several, each with its cameras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lightfast._experiments.data.same_scene import same_scene
from lightfast._pipelines.resample import area_weights

_EACH = ("images", "illuminants", "cameras", "scenes", "folds", "sets")
_FAINT = 0.02


@dataclass(frozen=True)
class LitScenes:
    """Linear images of one size and the light in each.

    Attributes:
        name: of the data set, or of all of them.
        images: float32 (N, 3, H, W), camera RGB in [0, 1], linear in light; pixels that are 0 in all channels are
            masked.
        illuminants: float32 (N, 3), of norm 1, in the same camera's RGB.
        camera_names: of the cameras.
        cameras: int64 (N,), which of them took the image.
        scenes: int64 (N,), the number of the scene in the index.
        folds: int64 (N,), from 1 on: the published split, which has the same scenes on both sides.
        set_names: of the data sets; by default there is one, with the name of the whole.
        sets: int64 (N,), which of them an image is from.
    """

    name: str
    images: Tensor
    illuminants: Tensor
    camera_names: tuple[str, ...]
    cameras: Tensor
    scenes: Tensor
    folds: Tensor
    set_names: tuple[str, ...] = ()
    sets: Tensor = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        """One set, unless it is said."""
        if not self.set_names:
            object.__setattr__(self, "set_names", (self.name,))
            object.__setattr__(self, "sets", torch.zeros(len(self.cameras), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> LitScenes:
        """The same with images and illuminants on the device."""
        return replace(self, images=self.images.to(device), illuminants=self.illuminants.to(device))

    @cached_property
    def shown(self) -> Tensor:
        """int64 (N,): which scene an image shows, found by :func:`~lightfast._experiments.data.same_scene.same_scene`.

        In NUS the numbers of the index count each camera's images. Cameras took different numbers of them, so that the
        same number is mostly another scene, and the same scene has other numbers. No two sets share a scene.
        """
        shown = torch.empty(len(self), dtype=torch.int64)
        first = 0
        for number in self.sets.unique().tolist():
            places = torch.where(self.sets == number)[0]
            shown[places] = first + same_scene(self.images[places.to(self.images.device)])
            first = int(shown[places].max()) + 1
        return shown

    def subset(self, indices: Tensor | Sequence[int]) -> LitScenes:
        """The scenes at `indices`, in that order."""
        chosen = torch.as_tensor(indices)
        return replace(self, **{name: getattr(self, name)[chosen] for name in _EACH})


def join_scenes(parts: Sequence[LitScenes]) -> LitScenes:
    """Several data sets as one, with the cameras and the sets of all of them.

    Images of different sizes are brought to the smallest height and the smallest width among them, by area over the
    pixels that are not masked; sides are squeezed, not cut. Parts of a set of one name are one set, and so are cameras
    of one name in one set; a camera of two sets counts as two, with the sets' names before its own.

    >>> from lightfast._experiments.data.generated_scenes import draw_scenes
    >>> small, large = draw_scenes(3, 2, size=(16, 16)), replace(draw_scenes(3, 1, seed=1), name="others", set_names=())
    >>> both = join_scenes([small, large])
    >>> both.images.shape, both.set_names, both.sets.bincount().tolist()
    (torch.Size([9, 3, 16, 16]), ('drawn scenes', 'others'), [6, 3])
    """
    if len(parts) == 1:
        return parts[0]
    size = min(part.images.shape[2] for part in parts), min(part.images.shape[3] for part in parts)
    set_names = tuple(dict.fromkeys(name for part in parts for name in part.set_names))
    sets = torch.cat([torch.tensor([set_names.index(name) for name in part.set_names])[part.sets] for part in parts])
    taken = [
        (part.set_names[of_set], part.camera_names[camera])
        for part in parts
        for of_set, camera in zip(part.sets.tolist(), part.cameras.tolist(), strict=True)
    ]
    pairs = sorted(dict.fromkeys(taken), key=lambda pair: (set_names.index(pair[0]), pair[1]))
    names = [camera for _, camera in pairs]
    place = {pair: number for number, pair in enumerate(pairs)}
    return LitScenes(
        " + ".join(set_names),
        torch.cat([_resized(part.images, size) for part in parts]),
        torch.cat([part.illuminants for part in parts]),
        tuple(f"{of_set} {name}" if names.count(name) > 1 else name for of_set, name in pairs),
        torch.tensor([place[pair] for pair in taken]),
        torch.cat([part.scenes for part in parts]),
        torch.cat([part.folds for part in parts]),
        set_names,
        sets,
    )


def _resized(images: Tensor, size: tuple[int, int], batch: int = 512) -> Tensor:
    """By area over what is not masked, (N, 3, *size); a cell with next to nothing in it is masked."""
    if images.shape[2:] == size:
        return images
    rows, columns = (
        area_weights(images.new_zeros(1), images.new_full((1,), pixels), cells, pixels)[0]
        for pixels, cells in zip(images.shape[2:], size, strict=True)
    )
    parts = []
    for some in images.split(batch):
        seen = (some > 0).any(1, keepdim=True).to(some.dtype)
        sums = rows @ torch.cat([some * seen, seen], 1) @ columns.T
        weight = sums[:, 3:]
        parts.append(torch.where(weight > _FAINT * rows.sum(1).amax() * columns.sum(1).amax(), sums[:, :3] / weight, 0))
    return torch.cat(parts)
