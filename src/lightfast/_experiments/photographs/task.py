"""Training of the network that tells whether a picture is off: rendered pictures, and what was done to each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.photographs.render import linear_of, render
from lightfast._photographs.cast import CastReader, log_chroma
from lightfast._pipelines.estimator import SceneEncoding

__all__ = ["CastTask", "fit_reader", "held_out"]

# Degrees: up to where a picture counts as right, the casts of those that are not, and from where on these are far off.
_RIGHT, _WRONG, _FAR = 1.0, (2.5, 24.5), 10.0
_FIFTH, _FEW, _ROW = 5, 2000, 20
_BATCH = 256


def held_out(scenes: LitScenes) -> Tensor:
    """Which scenes are not trained on, boolean (N,): every fifth, with all pictures of it.

    Finding which pictures show the same takes the square of their number, so of large sets it is every fifth row of
    pictures that follow each other.
    """
    numbers = torch.empty(len(scenes), dtype=torch.int64)
    for number in scenes.sets.unique().tolist():
        places = torch.where(scenes.sets == number)[0]
        few = len(places) <= _FEW
        numbers[places] = scenes.subset(places).shown if few else torch.arange(len(places)) // _ROW
    return numbers % _FIFTH == 0


class CastTask:
    """Scenes as cameras render them, anew for each batch; their casts, and whether they are off.

    The loss is twice the cross-entropy of whether a picture is off, and for those that are, the negative log likelihood
    of a Laplace distribution of the cast, `|c - ĉ| / σ + 2 log σ`. Pictures that are far off count more in the first,
    in proportion, since more is lost with them.

    Args:
        scenes: to render.
        encoding: what the network sees of a picture.
    """

    def __init__(self, scenes: LitScenes, encoding: SceneEncoding) -> None:
        self.images, self.illuminants, self.encoding = scenes.images, scenes.illuminants, encoding
        self.samples = len(scenes)

    def to(self, device: torch.device) -> None:
        self.images, self.illuminants = self.images.to(device), self.illuminants.to(device)

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Pictures (B, 3, S, S) as the network sees them, their casts in log chroma (B, 2), and in degrees (B,).

        Half of them are right or nearly so, half show a part of the scene, half are mirrored.
        """
        images = self.images[indices]
        chance = torch.rand(6, len(images), generator=generator, device=generator.device).to(images.device)
        wrong, size, mirrored, share, down, across = chance
        share = (1.5 - share).clamp(max=1)
        top, left = (first * (1 - share) * side for first, side in zip((down, across), images.shape[2:], strict=True))
        boxes = torch.stack([top, top + share * images.shape[2], left, left + share * images.shape[3]], 1)
        off = _WRONG[0] + size * (_WRONG[1] - _WRONG[0])
        cast = torch.where(wrong < 0.5, (_RIGHT * (2 * size - 1)).clamp(min=0), off)
        scenes = self.encoding.reduce(images, boxes=boxes)
        renders = render(scenes, self.illuminants[indices], cast, generator, right=False, compress=_rounded)
        pictures = self.encoding.reduce(linear_of(renders.pictures))
        pictures = torch.where(mirrored[:, None, None, None] < 0.5, pictures, pictures.flip(3))
        return pictures, log_chroma(renders.gray).float(), cast

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        pictures, chroma, cast = batch
        answer = model(pictures).float()
        log_spread = answer[:, 2].clamp(-5, 1)
        apart = (answer[:, :2] - chroma).square().sum(1).add(1e-6).sqrt()
        wrong = (cast > _RIGHT).float()
        unlikely = (wrong * (apart / log_spread.exp() + 2 * log_spread)).sum() / wrong.sum().clamp(min=1)
        weight = torch.where(cast > _RIGHT, cast * (2 / sum(_WRONG)), 1.0)
        told = F.binary_cross_entropy_with_logits(answer[:, 3], wrong, weight)
        return 2 * told + unlikely, {"told": told.detach()}


def _rounded(pictures: Tensor) -> Tensor:
    return (255 * pictures).round() / 255


@torch.no_grad()
def fit_reader(
    reader: CastReader, scenes: LitScenes, estimator: Any, shares: tuple[float, float], rounds: int, estimates: int
) -> dict[str, float]:
    """Fit what follows from the answers of a trained reader to scenes that it was not trained on; what was found.

    Args:
        reader: its `doubt` and `believed` are set.
        scenes: not trained on.
        estimator: that answers together with it. Scenes of a set that it was trained on would flatter it, and are not
            asked about: where there are no others, the reader is believed alone.
        shares: of pictures that are right, how many may be changed in part, and in full.
        rounds: how many times each scene is rendered.
        estimates: how many pictures to ask the estimator about.
    """
    task, generator = CastTask(scenes, reader.encoding), torch.Generator().manual_seed(1)
    task.to(next(reader.parameters()).device)
    places = torch.arange(len(scenes)).repeat(rounds)
    pictures, chroma, cast = (
        torch.cat(part) for part in zip(*(task.batch(part, generator) for part in places.split(_BATCH)), strict=True)
    )
    answers = torch.cat([reader.network(part) for part in pictures.split(_BATCH)]).double().cpu()
    pictures, chroma, cast = pictures.cpu(), chroma.cpu(), cast.cpu()
    wrong, sure = cast > _RIGHT, answers[:, 3]
    low, high = (float(sure[~wrong].quantile(1 - share)) for share in shares)
    unseen = torch.tensor([name not in str(estimator.about.get("data")) for name in scenes.set_names])
    asked = torch.where(wrong & (sure > low) & unseen[scenes.sets[places]])[0][:estimates]
    believed = 1.0
    if len(asked):
        own, truth = answers[asked, :2], chroma[asked].double()
        other = log_chroma(torch.cat([estimator(part) for part in pictures[asked].split(16)]))
        errors = {
            tenths / 10: float((torch.lerp(other, own, tenths / 10) - truth).norm(dim=1).mean()) for tenths in range(11)
        }
        believed = min(errors, key=errors.__getitem__)
    reader.set_fit((low, max(high, low + 0.1)), believed)
    far = cast > _FAR
    return {
        "right_left": 100 * float((sure[~wrong] < low).double().mean()),
        "wrong_told": 100 * float((sure[wrong] > low).double().mean()),
        "far_told": 100 * float((sure[far] > low).double().mean()),
        "doubt": low,
        "believed": believed,
    }
