"""What is known of a camera: its test images together, with how wide a light is, or lights of other images of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast.constancy import LightPrior, pull_together
from lightfast.metrics import recovery_error

WIDTHS = (0.02, 0.03, 0.04, 0.06, 0.08)
"""Of a light in log chroma: those among which one is chosen."""

_ENOUGH = 300


def groups_by_camera(cameras: Tensor, places: Tensor, size: int | None = None) -> list[Tensor]:
    """The places (K,), int64, of each camera; with a `size`, in groups of so many at random, the last perhaps smaller.

    >>> groups_by_camera(torch.tensor([0, 0, 1, 0, 1]), torch.tensor([1, 2, 3, 4]))
    [tensor([1, 3]), tensor([2, 4])]
    """
    whole = [places[cameras[places] == camera] for camera in cameras[places].unique()]
    if size is None:
        return whole
    generator = torch.Generator().manual_seed(0)
    return [part for each in whole for part in each[torch.randperm(len(each), generator=generator)].split(size)]


def pulled(lights: Tensor, spread: Tensor, groups: Sequence[Tensor], width: float) -> Tensor:
    """Lights (N, 3), those of each group pulled together."""
    lights = lights.clone()
    for places in groups:
        lights[places] = pull_together(lights[places], spread[places], width)
    return lights


def errors_of_widths(lights: Tensor, spread: Tensor, truth: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """The sum of the recovery errors over these groups for each of :data:`WIDTHS`.

    Of each group some hundred images are enough.
    """
    some = [places[:: -(-len(places) // _ENOUGH)] for places in groups]
    chosen = torch.cat(some)

    def error(width: float) -> Tensor:
        return recovery_error(pulled(lights, spread, some, width)[chosen], truth[chosen]).sum()

    return torch.stack([error(width) for width in WIDTHS])


def with_prior(
    scenes: LitScenes, lights: Tensor, spread: Tensor, count: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Estimates (N, 3) for all scenes, each with the prior of the true lights of its camera's other published folds.

    With a `count`, so many of these at random, or all if there are no more. Networks need not have been trained on
    these images, nor on the camera: its lights are all that is known of it. Second is the error to expect now, (N,).
    """
    lights, spread = lights.clone(), spread.clone()
    for places, prior in priors(scenes, torch.arange(len(scenes)), count, seed):
        lights[places], spread[places] = prior.posterior(lights[places], spread[places])
    return lights, spread


def priors(
    scenes: LitScenes, chosen: Tensor, count: int | None = None, seed: int = 0
) -> Iterator[tuple[Tensor, LightPrior]]:
    """The scenes at `chosen`, by camera and published fold, with the prior of the camera's lights in other folds."""
    generator, truth = torch.Generator().manual_seed(seed), scenes.illuminants.cpu()
    for own in groups_by_camera(scenes.cameras, torch.arange(len(scenes))):
        for fold in scenes.folds[own].unique():
            here = scenes.folds[own] == fold
            others = own[~here]
            others = others[torch.randperm(len(others), generator=generator)[:count]]
            places = own[here][torch.isin(own[here], chosen)]
            if len(places) and len(others) > 1:
                yield places, LightPrior(truth[others])
