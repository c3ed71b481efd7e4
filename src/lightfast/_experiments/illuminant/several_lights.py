"""Pictures under several lights: the error over their pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lightfast._experiments.data.mimo import LitPicture
from lightfast._experiments.report.tables import markdown
from lightfast._pipelines.estimator import Estimator
from lightfast.metrics import recovery_error, summary


def measure_pictures(answer: Callable[[LitPicture], Tensor], pictures: Sequence[LitPicture]) -> dict[str, float]:
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
    return summary(torch.stack(means)).as_dict()


@torch.no_grad()
def evaluate_pictures(
    estimator: Estimator, pictures: Sequence[LitPicture], device: torch.device
) -> tuple[str, dict[str, dict[str, float]]]:
    """The errors of an estimator, with one light and with a plane, and of :data:`BASELINES`: a table, and by name."""
    estimator = estimator.to(device).eval()

    def one_light(picture: LitPicture) -> Tensor:
        return estimator(picture.image[None].to(device), picture.known[None].to(device))[0, :, None, None].cpu()

    def plane(picture: LitPicture) -> Tensor:
        return estimator.light_plane(picture.image[None].to(device), picture.known[None].to(device))[0].cpu()

    answers = {**BASELINES, "one light": one_light, "a plane of light": plane}
    found = {name: measure_pictures(answer, pictures) for name, answer in answers.items()}
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


def _best_plane(picture: LitPicture) -> Tensor:
    """The plane in log RGB of least squares, knowing the lights of all pixels."""
    known, (height, width) = picture.known[0], picture.light.shape[1:]
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    terms = torch.stack([torch.ones_like(y), y, x], 2)
    logs = picture.light[:, known].T.clamp(min=1e-6).log()
    return (terms @ torch.linalg.lstsq(terms[known], logs).solution).permute(2, 0, 1).exp()


BASELINES: dict[str, Callable[[LitPicture], Tensor]] = {
    "gray world": _gray_world,
    "best single light, knowing the truth": _best_single_light,
    "best plane of light, knowing the truth": _best_plane,
}
"""What a plane of light has to beat."""
