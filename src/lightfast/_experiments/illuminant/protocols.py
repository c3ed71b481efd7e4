"""Which scenes to train on and which to test on: the protocols of illuminant estimation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightfast._experiments.data.nus import LitScenes

__all__ = ["PROTOCOLS", "Protocol", "Split", "held_out_scenes", "splits_of"]


@dataclass(frozen=True)
class Protocol:
    """How a protocol divides the scenes.

    Attributes:
        name: what users type.
        title: what reports show.
        explanation: in a sentence.
    """

    name: str
    title: str
    explanation: str


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "pooled",
            "pooled three-fold",
            "All cameras together, in the three published folds, which have the same scenes on both sides.",
        ),
        Protocol(
            "scene-disjoint",
            "scene-disjoint three-fold",
            "All cameras together, in three folds that share no number of a scene in the index.",
        ),
        Protocol(
            "content-disjoint",
            "content-disjoint three-fold",
            "All cameras together, in three folds that share no scene, found by what images show: in NUS the same "
            "number is mostly another scene.",
        ),
        Protocol(
            "per-camera",
            "per-camera three-fold",
            "Each camera by itself, in the three published folds; the geometric mean over cameras.",
        ),
        Protocol(
            "leave-one-camera-out",
            "leave one camera out",
            "Trained on all cameras but one and tested on that one; the geometric mean over cameras. The scenes of the "
            "test were seen through the other cameras.",
        ),
        Protocol(
            "new-camera",
            "new cameras and new scenes",
            "Cameras and scenes (by what images show) are divided in four. Each part in turn is held out: trained on "
            "the other scenes by the other cameras, and tested on the held-out scenes by the held-out cameras.",
        ),
    )
}


@dataclass(frozen=True)
class Split:
    """A training and a test set, as indices.

    Attributes:
        name: fit for the name of a folder.
        train: int64 (M,).
        test: int64 (K,).
    """

    name: str
    train: Tensor
    test: Tensor


def splits_of(scenes: LitScenes, protocol: str, seed: int = 0) -> list[Split]:
    """The splits of a protocol; no image is in two test sets, and but for `new-camera` every image is in one.

    Args:
        scenes: to divide.
        protocol: a name from :data:`PROTOCOLS`.
        seed: which scenes go into which scene-disjoint fold.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"the protocol is one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    cameras, folds = scenes.cameras, scenes.folds
    if protocol == "leave-one-camera-out":
        return [
            _split(f"without-{name}", cameras != number, cameras == number)
            for number, name in enumerate(scenes.camera_names)
        ]
    if protocol == "per-camera":
        return [
            _split(f"{name}-{fold}", (cameras == number) & (folds != fold), (cameras == number) & (folds == fold))
            for number, name in enumerate(scenes.camera_names)
            for fold in folds.unique().tolist()
        ]
    if protocol == "new-camera":
        parts = min(4, len(scenes.camera_names))
        of_scenes, of_cameras = held_out_scenes(scenes.shown, parts, seed), cameras % parts
        return [
            _split(f"part-{n}", (of_scenes != n) & (of_cameras != n), (of_scenes == n) & (of_cameras == n))
            for n in range(parts)
        ]
    if protocol == "scene-disjoint":
        folds = held_out_scenes(scenes.scenes, 3, seed) + 1
    if protocol == "content-disjoint":
        folds = held_out_scenes(scenes.shown, 3, seed) + 1
    return [_split(f"fold-{fold}", folds != fold, folds == fold) for fold in folds.unique().tolist()]


def held_out_scenes(scenes: Tensor, parts: int, seed: int = 0) -> Tensor:
    """For each image, which of `parts` equal parts of the scenes it belongs to; the same for all images of a scene.

    >>> held_out_scenes(torch.tensor([5, 7, 5, 9]), 3, seed=0).tolist()
    [1, 2, 1, 0]
    """
    names, numbers = scenes.unique(return_inverse=True)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(names))
    return (place % parts)[numbers]


def _split(name: str, train: Tensor, test: Tensor) -> Split:
    if not bool(train.any()) or not bool(test.any()):
        raise ValueError(f"the split {name} has no images to train or to test on: this data does not suit the protocol")
    return Split(name, torch.where(train)[0], torch.where(test)[0])
