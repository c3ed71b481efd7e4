"""Which scenes to train on and which to test on: the protocols of illuminant estimation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightfast._experiments.data.lit_scenes import LitScenes


class Protocol(NamedTuple):
    """How a protocol divides the scenes: what reports show, and in a sentence."""

    title: str
    explanation: str


PROTOCOLS: dict[str, Protocol] = {
    "pooled": Protocol(
        "pooled three-fold",
        "All cameras together, in the three published folds, which have the same scenes on both sides.",
    ),
    "scene-disjoint": Protocol(
        "scene-disjoint three-fold",
        "All cameras together, in three folds that share no number of a scene in the index.",
    ),
    "content-disjoint": Protocol(
        "content-disjoint three-fold",
        "All cameras together, in three folds that share no scene, found by what images show: in NUS the same "
        "number is mostly another scene.",
    ),
    "per-camera": Protocol(
        "per-camera three-fold",
        "Each camera by itself, in the three published folds; the geometric mean over cameras.",
    ),
    "leave-one-camera-out": Protocol(
        "leave one camera out",
        "Trained on all cameras but one and tested on that one; the geometric mean over cameras. The scenes of the "
        "test were seen through the other cameras.",
    ),
    "new-camera": Protocol(
        "new cameras and new scenes",
        "Cameras and scenes (by what images show) are divided in four. Each part in turn is held out: trained on "
        "the other scenes by the other cameras, and tested on the held-out scenes by the held-out cameras.",
    ),
    "leave-one-set-out": Protocol(
        "leave one data set out",
        "Trained on all data sets but one and tested on that one: other cameras and other scenes.",
    ),
}
"""By the names that users type."""


class Split(NamedTuple):
    """A training and a test set, as indices, int64 (M,) and (K,); its name is fit for that of a folder."""

    name: str
    train: Tensor
    test: Tensor


def splits_of(
    scenes: LitScenes, protocol: str, seed: int = 0, tested: Sequence[str] = (), alone: bool = False
) -> list[Split]:
    """The splits of a protocol; no image is in two test sets, and but for `new-camera` every image is in one.

    Args:
        scenes: to divide.
        protocol: a name from :data:`PROTOCOLS`.
        seed: which scenes go into which scene-disjoint fold.
        tested: the data sets that are divided, all by default. The others are added to the training of every split.
        alone: do not add them.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"the protocol is one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    unknown = [name for name in tested if name not in scenes.set_names]
    if unknown:
        raise ValueError(f"there is no data set {unknown[0]!r}; there are {', '.join(scenes.set_names)}")
    numbers = [number for number, name in enumerate(scenes.set_names) if name in (tested or scenes.set_names)]
    if protocol == "leave-one-set-out":
        return [_split(_without(scenes.set_names[n]), scenes.sets != n, scenes.sets == n) for n in numbers]
    divided = torch.isin(scenes.sets, torch.tensor(numbers))
    if divided.all():
        return [_split(*each) for each in _divisions(scenes, protocol, seed)]
    splits, places = [], torch.where(divided)[0]
    for name, *masks in _divisions(scenes.subset(places), protocol, seed):
        train, test = (torch.zeros_like(divided) for _ in masks)
        train[places], test[places] = masks
        splits.append(_split(name, train if alone else train | ~divided, test))
    return splits


def left_out(scenes: LitScenes, split: Split) -> str:
    """The split of `leave-one-set-out` that has seen no scene of this one, whose scenes are of one set."""
    number, *more = scenes.sets[torch.cat([split.train, split.test])].unique().tolist()
    if more:
        raise ValueError("networks that have not seen a data set are gone on with on that one alone: name it as tested")
    return _without(scenes.set_names[number])


def _without(name: str) -> str:
    return f"without-{_plain(name)}"


def _divisions(scenes: LitScenes, protocol: str, seed: int) -> list[tuple[str, Tensor, Tensor]]:
    """Name, training and test images of each split, as masks (N,)."""
    cameras, folds = scenes.cameras, scenes.folds
    taken = cameras.unique().tolist()
    if protocol == "leave-one-camera-out":
        return [(_without(scenes.camera_names[number]), cameras != number, cameras == number) for number in taken]
    if protocol == "per-camera":
        return [
            (
                f"{_plain(scenes.camera_names[number])}-{fold}",
                (cameras == number) & (folds != fold),
                (cameras == number) & (folds == fold),
            )
            for number in taken
            for fold in folds.unique().tolist()
        ]
    if protocol == "new-camera":
        parts = min(4, len(taken))
        of_scenes = held_out_scenes(scenes.shown, parts, seed)
        of_cameras = cameras.unique(return_inverse=True)[1] % parts
        return [
            (f"part-{n}", (of_scenes != n) & (of_cameras != n), (of_scenes == n) & (of_cameras == n))
            for n in range(parts)
        ]
    if protocol == "scene-disjoint":
        folds = held_out_scenes(scenes.scenes, 3, seed) + 1
    if protocol == "content-disjoint":
        folds = held_out_scenes(scenes.shown, 3, seed) + 1
    return [(f"fold-{fold}", folds != fold, folds == fold) for fold in folds.unique().tolist()]


def _plain(name: str) -> str:
    """Fit for the name of a folder."""
    return name.replace(" ", "-").replace("/", "-")


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
