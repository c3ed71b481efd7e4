"""How far estimates are from the truth, in the light the images were taken in and under added light."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.lights import evaluation_lights
from lightfast._pipelines.estimator import Estimator
from lightfast.constancy import CLASSICAL, LightPrior
from lightfast.light import von_kries
from lightfast.metrics import recovery_error, reproduction_error, summary

LIT_SATURATIONS = (*(round(0.1 * step, 1) for step in range(10)), 0.99)
"""0, 0.1, ..., 0.9, and 0.99; at 1 the true light has a channel that is 0."""

_ERRORS = {"reproduction": reproduction_error, "recovery": recovery_error}


def added_lights(scenes: LitScenes, saturations: Sequence[float] = LIT_SATURATIONS, seed: int = 0) -> Tensor:
    """The lights (S, N, 3) that are added; an image has the same hue at every saturation."""
    return torch.stack(evaluation_lights(len(scenes), saturations, seed))


@torch.no_grad()
def estimates_under_light(
    estimator: Callable[[Tensor, Tensor | None], Tensor],
    scenes: LitScenes,
    chosen: Tensor,
    lights: Tensor,
    batch_size: int = 256,
) -> Tensor:
    """Estimates (S, K, 3), on the CPU, for the images at `chosen` (K,) under each of `lights` (S, N, 3).

    Images are relit as they are, and nothing is rounded or clipped; masked pixels stay 0.
    """
    device = scenes.images.device
    parts = []
    for places in chosen.split(batch_size):
        images = scenes.images[places.to(device)]
        mask = (images > 0).any(1, keepdim=True)
        relit = [estimator(von_kries(images, light[places].to(device)), mask).float().cpu() for light in lights]
        parts.append(torch.stack(relit))
    return torch.cat(parts, 1)


@torch.no_grad()
def confident_estimates(
    estimator: Estimator, scenes: LitScenes, chosen: Tensor, prior: LightPrior | None = None, batch_size: int = 64
) -> tuple[Tensor, Tensor]:
    """The light of each image at `chosen` (K,) and the error to expect in degrees: (K, 3) and (K,), on the CPU."""
    batches = (scenes.images[places.to(scenes.images.device)] for places in chosen.split(batch_size))
    answers = zip(*(estimator.confident(images, prior=prior) for images in batches), strict=True)
    lights, spread = (torch.cat(parts).float().cpu() for parts in answers)
    return lights, spread


def classical_estimates(scenes: LitScenes, chosen: Tensor) -> dict[str, Tensor]:
    """What each classical estimator says under each light, (S, N, 3), of the scenes at `chosen`: gray of the others."""
    lights, found = added_lights(scenes), {}
    for name, each in CLASSICAL.items():
        found[name] = torch.full((len(lights), len(scenes), 3), 3**-0.5)
        found[name][:, chosen] = estimates_under_light(each, scenes, chosen, lights)
    return found


def mean_light(estimates: Sequence[Tensor], weights: Tensor | None = None) -> Tensor:
    """The mean in log RGB of several estimates (..., 3) of norm 1: what an ensemble answers.

    The weights, where there are any, are (M, ...) for M estimates, and sum to 1 over them.
    """
    logs = torch.stack([estimate.double().clamp(min=1e-12).log() for estimate in estimates])
    mean = logs.mean(0) if weights is None else (weights * logs).sum(0)
    return torch.nn.functional.normalize(mean.exp(), dim=-1).float()


def measure(scenes: LitScenes, estimates: Tensor, lights: Tensor, chosen: Tensor | None = None) -> dict[str, Any]:
    """All numbers that a table may want, as JSON can hold them.

    Args:
        scenes: with the true illuminants.
        estimates: (S, N, 3), under each of the lights, for all scenes or for those at `chosen`.
        lights: (S, N, 3), the lights that were added to each scene.
        chosen: int64 (K,), which scenes the estimates are of.

    Returns:
        For each kind of error (`reproduction`, `recovery`) and each light: the summary over all images (`all`), over
        those of each camera (`cameras`), and the geometric mean of the latter (`geometric_mean`); of several data sets
        the same for each (`sets`). `drift` is, for each light, how far the estimate of any image is at most from that
        without added light, relit alike: the reproduction angle between them.
    """
    chosen = torch.arange(len(scenes)) if chosen is None else chosen
    truth = scenes.illuminants.cpu()[chosen]
    cameras, sets = scenes.cameras[chosen], scenes.sets[chosen]
    parts = {scenes.set_names[number]: sets == number for number in sets.unique().tolist()}
    found: dict[str, Any] = {}
    for name, error in _ERRORS.items():
        found[name] = []
        for light, estimate in zip(lights, estimates, strict=True):
            angles = error(estimate, truth * light[chosen])
            over = _over_cameras(angles, cameras, scenes.camera_names)
            if len(parts) > 1:
                over["sets"] = {
                    part: _over_cameras(angles[here], cameras[here], scenes.camera_names)
                    for part, here in parts.items()
                }
            found[name].append(over)
    found["drift"] = [
        round(float(reproduction_error(estimate, estimates[0] * light[chosen]).max()), 5)
        for light, estimate in zip(lights / lights[:1], estimates, strict=True)
    ]
    return found


def _over_cameras(angles: Tensor, cameras: Tensor, names: Sequence[str]) -> dict[str, Any]:
    by_camera = {names[n]: summary(angles[cameras == n]).as_dict() for n in cameras.unique().tolist()}
    return {
        "all": _rounded(summary(angles).as_dict()),
        "geometric_mean": _rounded(geometric_mean(list(by_camera.values()))),
        "cameras": {camera: _rounded(numbers) for camera, numbers in by_camera.items()},
    }


def geometric_mean(summaries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each number of several summaries.

    >>> geometric_mean([{"mean": 1.0}, {"mean": 4.0}])
    {'mean': 2.0}
    """
    return {
        name: math.exp(sum(math.log(max(numbers[name], 1e-12)) for numbers in summaries) / len(summaries))
        for name in summaries[0]
    }


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(number, 4) for name, number in numbers.items()}
