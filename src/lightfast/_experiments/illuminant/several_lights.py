"""Pictures under several lights: training on scenes that are lit again by two, and the error over pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.data.mimo import LitPicture
from lightfast._experiments.illuminant.task import IlluminantTask
from lightfast._experiments.report.tables import markdown
from lightfast._pipelines.light_map import LightMap
from lightfast.metrics import recovery_error, summary

_ACROSS = 0.06


@dataclass(frozen=True)
class TwoLights:
    """How two lights differ, and how they meet.

    Args:
        along: standard deviation of the difference of each from white, from red to blue, in log chroma.
        sharpest: how wide the edge between them is at least, as a part of the image.
        softest: and at most.
    """

    along: float = 0.45
    sharpest: float = 0.01
    softest: float = 1.0


USUAL = TwoLights()


class SeveralLightsTask(IlluminantTask):
    """Balanced scenes, cropped and mirrored as ever, under two lights that meet at a soft or a hard edge.

    The arguments are those of :class:`IlluminantTask`, for log RGB, and `lit`, how.
    """

    def __init__(self, *args: Any, lit: TwoLights = USUAL, **more: Any) -> None:
        super().__init__(*args, **more)
        self.lit = lit

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> Any:
        """What the network sees (B, 3, S, S), the log RGB to add to its answer (B, 3), and `log light` (B, 3, S, S)."""
        encoded, offset, *_ = super().batch(indices, generator)
        assert offset is not None
        field = two_lights(len(encoded), self.encoding.size, generator, self.lit).to(encoded)
        # Back to linear light, without the softness, which is added again to what is lit.
        linear = ((-encoded).exp() - self.encoding.softness).clamp(min=0) * (-offset).exp()[:, :, None, None]
        return *self.encoding.encode(linear * field.exp()), field

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """As for one light, at every place of the network's answer; the light of a place is the mean in log RGB."""
        encoded, offset, field = batch
        answer = model(encoded).float() + offset[:, :, None, None]
        apart = -answer - F.adaptive_avg_pool2d(field, answer.shape[2:])
        relative = F.normalize((apart - apart.amax(1, keepdim=True)).exp(), dim=1)
        gap = ((relative - 3**-0.5).square().sum(1) / 2 + 1e-6).sqrt()
        degrees = torch.rad2deg(2 * torch.asin((gap.detach() / math.sqrt(2)).clamp(max=1)))
        return gap.mean(), {"reproduction": degrees.mean()}


def two_lights(count: int, size: int, generator: torch.Generator, lit: TwoLights = USUAL) -> Tensor:
    """The log RGB (count, 3, size, size) of two lights that mix over each image, relative to a common white.

    `log(m a + (1 - m) b)`, with lights `a` and `b` that differ as real ones do, mostly from red to blue, and by up to a
    stop in brightness. `m` is a logistic function of the position along a random direction; its edge is anywhere. One
    image in five is under one light.
    """
    place = (torch.arange(size, device=generator.device) + 0.5) / size - 0.5

    def normal(*shape: int) -> Tensor:
        return torch.randn((count, *shape), generator=generator, device=generator.device)

    def uniform() -> Tensor:
        return torch.rand((count, 1, 1), generator=generator, device=generator.device)

    along, across = lit.along / math.sqrt(2) * normal(2), _ACROSS / math.sqrt(6) * normal(2)
    logs = torch.stack([along - across, 2 * across, -along - across], 2) + 0.35 * normal(2, 1)
    angle, width = 2 * math.pi * uniform(), lit.sharpest * (lit.softest / lit.sharpest) ** uniform()
    position = angle.cos() * place[:, None] + angle.sin() * place
    mixed = ((position - 0.5 * (uniform() - 0.5)) / (width / 4)).sigmoid()[:, None]
    mixed = torch.where(uniform()[..., None] < 0.2, torch.ones_like(mixed), mixed)
    first, second = logs.exp()[..., None, None].unbind(1)
    return (mixed * first + (1 - mixed) * second).log()


def measure_pictures(
    answer: Callable[[LitPicture], Tensor], pictures: Sequence[LitPicture]
) -> dict[str, dict[str, float]]:
    """The recovery angle, averaged over the pixels of each picture whose light is known; its summary over pictures.

    Args:
        answer: from a picture to lights (3, H, W) or one light (3, 1, 1).
        pictures: with the light of every pixel.
    """
    means = []
    for picture in pictures:
        known = picture.known[0]
        lights = answer(picture).expand_as(picture.light)
        means.append(recovery_error(lights[:, known].T, picture.light[:, known].T).mean())
    return {"recovery": summary(torch.stack(means)).as_dict()}


def lit_twice(scenes: LitScenes, seed: int = 0, count: int = 64) -> list[LitPicture]:
    """The first scenes in white light, each lit again by :func:`two_lights`."""
    size = scenes.images.shape[2:]
    white = scenes.images[:count] / scenes.illuminants[:count, :, None, None]
    lights = two_lights(len(white), max(size), torch.Generator().manual_seed(seed)).exp()
    lights = F.interpolate(lights, size, mode="bilinear")
    return [
        LitPicture(str(number), image * light, light)
        for number, (image, light) in enumerate(zip(white, lights, strict=True))
    ]


@torch.no_grad()
def evaluate_map(
    model: LightMap, pictures: Sequence[LitPicture], device: torch.device
) -> tuple[str, dict[str, dict[str, float]]]:
    """The errors of a map of lights and of :data:`BASELINES`, as a table and by name."""
    model = model.to(device).eval()

    def answer(picture: LitPicture) -> Tensor:
        return model(picture.image[None].to(device), picture.known[None].to(device))[0].cpu()

    answers = {**BASELINES, "map of lights": answer}
    found = {name: measure_pictures(answer, pictures)["recovery"] for name, answer in answers.items()}
    rows = [[name, *(f"{errors[kind]:.2f}" for kind in ("mean", "median"))] for name, errors in found.items()]
    return markdown([["recovery error, °", "mean", "median"], *rows]), found


def _gray_world(picture: LitPicture) -> Tensor:
    from lightfast.constancy import gray_world

    return gray_world(picture.image[None], picture.known[None])[0, :, None, None]


def _best_single_light(picture: LitPicture) -> Tensor:
    """The one light whose mean angle to those of all pixels is least, knowing them: Weiszfeld's median."""
    lights = F.normalize(picture.light[:, picture.known[0]].T.double(), dim=1)
    best = F.normalize(lights.mean(0), dim=0)
    for _ in range(30):
        weights = 1 / (lights - best).norm(dim=1).clamp(min=1e-6)
        best = F.normalize((weights[:, None] * lights).sum(0), dim=0)
    return best.float()[:, None, None]


BASELINES: dict[str, Callable[[LitPicture], Tensor]] = {
    "gray world": _gray_world,
    "best single light, knowing the truth": _best_single_light,
}
"""What a map of lights has to beat."""
