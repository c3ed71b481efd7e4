"""Training of the network that tells whether a picture is off: rendered pictures, and what was done to each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.photographs.render import linear_of, render
from lightfast._photographs.cast import CastReader, log_chroma

__all__ = ["CastTask", "fit_reader", "held_out", "rendered_pool"]

_GROUP = 16
# Degrees: up to where a picture counts as right, and the casts of those that are not.
_RIGHT, _WRONG = 2.0, (2.5, 24.5)
_FIFTH = 5


def held_out(scenes: LitScenes) -> Tensor:
    """Which scenes are not trained on, boolean (N,): every fifth, with all pictures of it."""
    return scenes.shown % _FIFTH == 0


def rendered_pool(scenes: LitScenes, rounds: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Every scene rendered so many times, half of them right or nearly so, every other time a part of the scene.

    Returns:
        `linear` (M, 3, 64, 64), what estimators see; `chroma` (M, 2), the cast in log chroma; `wrong` (M,), whether it
        is one; and `scene` (M,), the number of the scene.
    """
    parts: dict[str, list[Tensor]] = {"linear": [], "chroma": [], "wrong": [], "scene": []}

    def uniform() -> float:
        return float(torch.rand((), generator=generator))

    for number in range(rounds):
        for places in torch.randperm(len(scenes), generator=generator).split(_GROUP):
            some = scenes.subset(places)
            images = some.images
            if number % 2:
                images = _part(images, 0.5 + 0.5 * uniform(), uniform(), uniform())
            right = uniform() < 0.5
            cast = (_RIGHT * max(0.0, uniform() - 0.5)) if right else _WRONG[0] + uniform() * (_WRONG[1] - _WRONG[0])
            renders = render(images, some.illuminants, cast, generator, right=False)
            parts["linear"].append(F.interpolate(linear_of(renders.pictures), (64, 64), mode="area").half())
            parts["chroma"].append(log_chroma(renders.gray).float())
            parts["wrong"].append(torch.full((len(places),), not right))
            parts["scene"].append(places)
    return {name: torch.cat(values) for name, values in parts.items()}


def _part(images: Tensor, share: float, down: float, across: float) -> Tensor:
    height, width = (max(16, int(share * side)) for side in images.shape[2:])
    top, left = int(down * (images.shape[2] - height)), int(across * (images.shape[3] - width))
    return images[:, :, top : top + height, left : left + width].contiguous()


class CastTask:
    """Histograms of rendered pictures, their casts, and whether they are off.

    The loss is twice the cross-entropy of whether a picture is off, and for those that are, the negative log likelihood
    of a Laplace distribution of the cast, `|c - ĉ| / σ + 2 log σ`.

    Args:
        scenes: to render.
        reader: how pictures are seen.
        rounds: how many times each is rendered.
        seed: of the renders.
    """

    def __init__(self, scenes: LitScenes, reader: CastReader, rounds: int, seed: int = 0) -> None:
        pool = rendered_pool(scenes, rounds, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            self.maps = torch.cat([reader.maps(part.float()).half() for part in pool["linear"].split(256)])
        self.chroma, self.wrong = pool["chroma"], pool["wrong"]
        self.samples = len(self.maps)

    def to(self, device: torch.device) -> None:
        self.maps, self.chroma, self.wrong = (x.to(device) for x in (self.maps, self.chroma, self.wrong))

    def batch(self, indices: Any, generator: torch.Generator) -> Any:
        return self.maps[indices], self.chroma[indices], self.wrong[indices]

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        maps, chroma, wrong = batch
        answer = model(maps).float()
        log_spread = answer[:, 2].clamp(-5, 1)
        apart = (answer[:, :2] - chroma).square().sum(1).add(1e-6).sqrt()
        weight = wrong.float()
        unlikely = (weight * (apart / log_spread.exp() + 2 * log_spread)).sum() / weight.sum().clamp(min=1)
        told = F.binary_cross_entropy_with_logits(answer[:, 3], weight)
        return 2 * told + unlikely, {"told": told.detach()}


@torch.no_grad()
def fit_reader(
    reader: CastReader, scenes: LitScenes, estimator: Any, shares: tuple[float, float], rounds: int, estimates: int
) -> dict[str, float]:
    """Fit what follows from the answers of a trained reader to scenes that it was not trained on; what was found.

    Args:
        reader: its `doubt` and `believed` are set.
        scenes: not trained on.
        estimator: that answers together with it. Scenes of a set that it was trained on flatter it, and are asked
            about only where there are no others.
        shares: of pictures that are right, how many may be changed in part, and in full.
        rounds: how many times each scene is rendered.
        estimates: how many pictures to ask the estimator about.
    """
    pool = rendered_pool(scenes, rounds, torch.Generator().manual_seed(1))
    answers = torch.cat([reader(part.float()) for part in pool["linear"].split(256)]).double()
    wrong, sure = pool["wrong"], answers[:, 3]
    low, high = (float(sure[~wrong].quantile(1 - share)) for share in shares)
    seen_by_estimator = torch.tensor([name in str(estimator.about.get("data")) for name in scenes.set_names])
    useful = wrong & (sure > low)
    unseen = useful & ~seen_by_estimator[scenes.sets[pool["scene"]]]
    places = torch.where(unseen if unseen.any() else useful)[0][:estimates]
    own, truth = answers[places, :2], pool["chroma"][places].double()
    joint = {1.0: own}
    if len(places):
        other = log_chroma(torch.cat([estimator(part.float()) for part in pool["linear"][places].split(16)]))
        joint = {share / 10: share / 10 * own + (1 - share / 10) * other for share in range(11)}
    errors = {share: float((chroma - truth).norm(dim=1).mean()) for share, chroma in joint.items()}
    believed = min(errors, key=errors.__getitem__)
    reader.set_fit((low, max(high, low + 0.1)), believed)
    return {
        "right_left": 100 * float((sure[~wrong] < low).double().mean()),
        "wrong_told": 100 * float((sure[wrong] > low).double().mean()),
        "doubt": low,
        "believed": believed,
    }
