"""Illuminant estimation as a task for the engine: batches made on the device from linear images, and the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._pipelines.estimator import Estimator, SceneEncoding
from lightfast.constancy import LightPrior

Batch = tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor | None, Tensor | None]

_LOG_SPREAD = -3.0, 4.5
_DARKEST = 1e-3
_MET = 96
_UNKNOWN = 0.15
"""The share of images that are learned without a prior, as those of a camera that nobody knows."""


@dataclass(frozen=True)
class SceneAugmentation:
    """What training does to an image. All of it acts on linear values, and is what a camera or a photographer may do.

    Args:
        smallest_part: of the image's area that a random crop has at least; 1 for no crops.
        aspect: the largest change of a crop's shape, as a factor.
        mirror: flip left to right at random.
        turn: flip upside down and transpose at random, too.
        exposure: stops by which an image is overexposed at most, and clipped.
        black: standard deviation of an error of the black level of each channel, as a share of the channel's mean.
        sensor: standard deviation of the entries beside the diagonal of a random 3x3 matrix that mixes the channels
            of the balanced image, and leaves white as it is: as seen by a camera with other filters.
        log_sensor: the same of a matrix that mixes the logarithms of the channels.
        mix: probability of pasting a rectangle of another balanced image of the batch.
        erase: probability of losing a rectangle of the image, which is masked.
    """

    smallest_part: float = 0.4
    aspect: float = 1.3
    mirror: bool = True
    turn: bool = True
    exposure: float = 0.0
    black: float = 0.0
    sensor: float = 0.0
    log_sensor: float = 0.0
    mix: float = 0.0
    erase: float = 0.0


class IlluminantTask:
    """Images and their light, for networks that see linear or log RGB.

    Images are balanced with their true light, which then is white; transforms that leave white alone need no care of
    it. Networks on log RGB see colors relative to their mean, so for them the light never has to be put back. For
    those on linear RGB it is.

    Args:
        scenes: to train on.
        encoding: how networks see images.
        augmentation: what training does to images.
        recovery: share of the loss that is of the recovery angle; the rest is of the reproduction angle.
        chosen: int64 (M,), which scenes; all of them by default. Tasks on parts of the same scenes share their memory.
        weights: (M,), how often each of these is seen, relative to each other; equally by default.
        confidence: how much the loss of the spread counts that networks say.
        teacher: an estimator to learn from, beside the truth.
        distill: share of the loss that is of the teacher's answer.
        prior: for a network that is made to answer with the prior of a camera: most images are learned with what some
            other images of their camera say, and some without.
    """

    def __init__(
        self,
        scenes: LitScenes,
        encoding: SceneEncoding,
        augmentation: SceneAugmentation,
        recovery: float = 0.5,
        chosen: Tensor | None = None,
        weights: Tensor | None = None,
        confidence: float = 0.0,
        teacher: Estimator | None = None,
        distill: float = 0.5,
        prior: bool = False,
    ) -> None:
        self.images, self.illuminants = scenes.images, scenes.illuminants
        self.encoding, self.augmentation, self.recovery = encoding, augmentation, recovery
        self.chosen = torch.arange(len(scenes)) if chosen is None else chosen
        self.samples = len(self.chosen)
        self.shares = None if weights is None else (weights.double() / weights.sum().double()).cumsum(0)
        self.confidence, self.teacher, self.distill = confidence, teacher, distill
        self.others = _Others.by(scenes.cameras[self.chosen]) if prior else None

    def to(self, device: Any) -> None:
        """Move images and illuminants to the device."""
        self.images, self.illuminants = self.images.to(device), self.illuminants.to(device)
        self.chosen = self.chosen.to(device)
        self.shares = None if self.shares is None else self.shares.to(device)
        self.teacher = None if self.teacher is None else self.teacher.to(device).freeze()
        self.others = None if self.others is None else self.others.to(device)

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """What the network sees (B, 3, S, S), the log RGB to add to its answer (B, 3), and the true light (B, 3).

        The log RGB is that of the balanced image, None for networks on linear RGB. Then what a teacher says of the
        balanced image (B, 3), lights of the same camera (B, K, 3), and 1 where they are known and 0 where not (B);
        None without a teacher or a prior.
        """
        how, picked = self.augmentation, self._weighed(indices, generator)
        places = self.chosen[picked]
        images, lights = self.images[places], self.illuminants[places]
        # All at once: of a step on small images, most is the launching of kernels.
        exposed, *box, mirrored, upside_down, turned = _uniform(8, images, generator)
        if how.exposure:
            images = (images * 2 ** (how.exposure * (2 * exposed - 1).clamp(min=0))).clamp(max=1)
        images = self._crop(images, box) / lights[:, :, None, None]
        if how.black:
            images = _with_other_black(images, how.black, generator)
        if how.sensor:
            images = _through_sensors(images, how.sensor, generator)
        if how.log_sensor:
            images = _through_log_sensors(images, how.log_sensor, generator)
        if how.mix:
            inside = _rectangles(images, how.mix, generator)
            pasted = images.roll(1, 0) * (0.5 * _normal(images, generator)).exp()
            images = torch.where(inside, pasted, images)
        if how.erase:
            inside = _rectangles(images, how.erase, generator)
            kept = (~inside).to(images.dtype)
            mean = (images * kept).sum((2, 3), keepdim=True) / kept.sum((2, 3), keepdim=True).clamp(min=1)
            images = torch.where(inside, mean, images)
        if how.mirror:
            images = torch.where(mirrored < 0.5, images.flip(3), images)
        if how.turn:
            images = torch.where(upside_down < 0.5, images.flip(2), images)
            images = torch.where(turned < 0.5, images.transpose(2, 3), images)
        taught = None if self.teacher is None else self.teacher.from_reduced(images)
        if self.encoding.color == "linear":
            images = images * lights[:, :, None, None]
        met = known = None
        if self.others is not None:
            met = self.illuminants[self.chosen[self.others.of(picked, generator)]]
            known = (_uniform(1, images, generator)[0].flatten() >= _UNKNOWN).to(lights)
        return *self.encoding.encode(images), lights, taught, met, known

    def _weighed(self, indices: Tensor, generator: torch.Generator) -> Tensor:
        """Indices that follow the weights: number `i` of `M` is where they sum to `(i + u) / M`, `u` in [0, 1).

        So in an epoch, a sample of weight `w` (of a sum of 1) is seen `w M` times, give or take one.
        """
        if self.shares is None:
            return indices
        within = torch.rand(indices.shape, generator=generator, device=generator.device).to(self.shares)
        return torch.searchsorted(self.shares, (indices + within) / self.samples).clamp(max=self.samples - 1)

    def _crop(self, images: Tensor, box: Sequence[Tensor]) -> Tensor:
        """A part of each image, resampled to the network's size and filled where it is masked.

        `box` has four numbers in [0, 1) for each image, (N, 1, 1, 1): area, shape, place down and across.
        """
        how = self.augmentation
        if how.smallest_part >= 1:
            return self.encoding.reduce(images)
        height, width = images.shape[2:]
        area, shape, down, across = (part.flatten() for part in box)
        side = (how.smallest_part + (1 - how.smallest_part) * area).sqrt()
        stretch = ((2 * shape - 1) * (math.log(how.aspect) / 2)).exp()
        tall, wide = (height * side * stretch).clamp(max=height), (width * side / stretch).clamp(max=width)
        top, left = down * (height - tall), across * (width - wide)
        return self.encoding.reduce(images, boxes=torch.stack([top, top + tall, left, left + wide], 1))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The square root of 1 - cosine, which is in proportion to the angle, and the angles' means in degrees.

        Networks that say what error `s` to expect, in degrees, get `log s + θ / s` too: the negative log likelihood, up
        to a constant and a factor of 2, if errors are isotropic in log chroma and their density falls exponentially
        with the angle `θ`. It is least where `s` is the mean of `θ`. Nothing of it reaches the light that they answer.
        """
        encoded, offset, lights, taught, met, known = batch
        if met is None or known is None or offset is None:
            answer = model(encoded)
        else:
            answer = model(encoded, _prior(met, known, lights, offset))
        estimate = self.encoding.decode(answer[:, :3], offset)
        white = torch.ones_like(lights)
        # Relative to the true light: of a balanced image the estimate is that already.
        relative = estimate / lights if offset is None else estimate
        reproduction, recovery = _gap(relative, white), _gap(relative * lights, lights)
        angle = _degrees(reproduction)
        values = {"reproduction": angle.mean(), "recovery": _degrees(recovery).mean()}
        loss = (1 - self.recovery) * reproduction.mean() + self.recovery * recovery.mean()
        if taught is not None:
            apart, apart_there = _gap(relative / taught, white), _gap(relative * lights, taught * lights)
            learned = (1 - self.recovery) * apart.mean() + self.recovery * apart_there.mean()
            loss = (1 - self.distill) * loss + self.distill * learned
            values["taught"] = _degrees(apart).mean()
        if answer.shape[1] > 3:
            expected = answer[:, 3].float().clamp(*_LOG_SPREAD)
            surprise = (expected + angle * (-expected).exp()).mean()
            loss = loss + self.confidence * surprise
            values["surprise"] = surprise.detach()
        return loss, values


def _prior(met: Tensor, known: Tensor, lights: Tensor, offset: Tensor) -> Callable[[Tensor], Tensor]:
    """The log density of lights (B, K, 3) at answers (B, P, 3) for balanced images, as they were lit (B, 3).

    It is flat where `known` (B) is 0.
    """
    density, there = LightPrior(met).log_density, lights.log() - offset
    return lambda answers: known[:, None] * density(there[:, None] - answers)


class _Others(NamedTuple):
    """Other scenes by the same camera: all in order of cameras; each one's place there, and its camera's."""

    order: Tensor
    place: Tensor
    first: Tensor
    count: Tensor

    @classmethod
    def by(cls, cameras: Tensor) -> _Others:
        """For scenes by these cameras (M,), of each at least two."""
        if int(cameras.bincount()[cameras].min()) < 2:
            raise ValueError("a camera of which there is but one image has no other lights to know it by")
        order = cameras.argsort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        counts = cameras.bincount()
        return cls(order, place, (counts.cumsum(0) - counts)[cameras], counts[cameras])

    def to(self, device: Any) -> _Others:
        return _Others(*(part.to(device) for part in self))

    def of(self, picked: Tensor, generator: torch.Generator) -> Tensor:
        """Some others (B, K) of the scenes (B,), spread evenly over those of the camera; none twice if there are K."""
        start = torch.rand((len(picked), 1), generator=generator, device=generator.device).to(picked.device)
        first, others = self.first[picked][:, None], self.count[picked][:, None] - 1
        steps = torch.arange(_MET, device=picked.device) * others // _MET
        away = 1 + ((start * others).long() + steps) % others
        return self.order[first + (self.place[picked][:, None] - first + away) % (others + 1)]


def even_weights(scenes: LitScenes, chosen: Tensor, share: float, width: float = 0.1) -> Tensor:
    """How often to see the scenes at `chosen` (M,) so that cameras, and the lights of each, are seen more evenly.

    `w_i ~ n_c^-share d_i^-share`, with `n_c` how many images the camera `c` took, and `d_i` the density of its lights
    in log chroma at that of the image: a mean of Gaussians of the given `width`. A share of 0 leaves all as they are,
    and 1 makes them even. Within a camera none counts more than five times the mean. The mean is 1.
    """
    logs = scenes.illuminants.cpu()[chosen].clamp(min=1e-6).log()
    chroma, cameras = logs[:, ::2] - logs[:, 1:2], scenes.cameras[chosen]
    weights = torch.empty(len(chosen))
    for camera in cameras.unique():
        here = torch.where(cameras == camera)[0]
        density = (-torch.cdist(chroma[here], chroma[here]).square() / (2 * width**2)).exp().mean(1)
        rarity = density**-share
        weights[here] = (rarity / rarity.mean()).clamp(max=5) * len(here) ** -share
    return weights / weights.mean()


def _gap(a: Tensor, b: Tensor) -> Tensor:
    """`sqrt(1 - cos)` of the angle between colors (N, 3): `|a - b| / sqrt(2)` of unit vectors, smooth at 0."""
    difference = F.normalize(a, dim=1) - F.normalize(b, dim=1)
    return (difference.square().sum(1) / 2 + 1e-6).sqrt()


def _degrees(gap: Tensor) -> Tensor:
    return torch.rad2deg(2 * torch.asin((gap.detach() / math.sqrt(2)).clamp(max=1)))


def _with_other_black(images: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Images whose black level is off by about `spread` times each channel's mean; no light is less than none."""
    error = spread * torch.randn((*images.shape[:2], 1, 1), generator=generator, device=generator.device).to(images)
    return (images + error * images.mean((2, 3), keepdim=True)).clamp(min=0)


def _through_sensors(balanced: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Balanced images seen by other sensors: times a matrix for each whose rows sum to 1, so that white stays white."""
    seen = (_mixing(balanced, spread, generator) @ balanced.flatten(2)).reshape(balanced.shape)
    # A real sensor answers no color with less than nothing.
    return torch.maximum(seen, 0.02 * balanced)


def _through_log_sensors(balanced: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Balanced images `exp(M log x)`, with a matrix `M` for each image whose rows sum to 1: gray stays gray.

    With `x` in log RGB, `o` the mean color and `w` white, all that an equivariant network sees is `x - o`, and all that
    it has to find is `w - o`. The matrix takes both to `M (x - o)` and `M (w - o)`. Here `w = 0` stays where it is; a
    matrix about the mean color, `o + M (x - o)`, is the same but for an offset, that is, for the light.
    """
    dark = _DARKEST * balanced.mean((1, 2, 3), keepdim=True)
    logs = torch.maximum(balanced, dark).clamp(min=torch.finfo(balanced.dtype).tiny).log()
    return (_mixing(balanced, spread, generator) @ logs.flatten(2)).reshape(balanced.shape).exp()


def _mixing(images: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Matrices near the identity whose rows sum to 1, (N, 3, 3)."""
    mixing = spread * torch.randn((len(images), 3, 3), generator=generator, device=generator.device).to(images)
    away = mixing - torch.diag_embed(mixing.diagonal(dim1=1, dim2=2))
    return torch.eye(3, device=images.device) + away - torch.diag_embed(away.sum(2))


def _rectangles(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """True inside a random rectangle of each image, (N, 1, H, W); with this probability, else nowhere."""
    height, width = images.shape[2:]
    chosen, down, across, tall, wide = _uniform(5, images, generator)
    tall, wide = 0.2 + 0.6 * tall, 0.2 + 0.6 * wide
    top, left = down * (1 - tall), across * (1 - wide)
    y = ((torch.arange(height, device=images.device) + 0.5) / height)[:, None]
    x = (torch.arange(width, device=images.device) + 0.5) / width
    return (y > top) & (y < top + tall) & (x > left) & (x < left + wide) & (chosen < probability)


def _uniform(count: int, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
    """So many times a number in [0, 1) for each image, (N, 1, 1, 1)."""
    numbers = torch.rand((count, len(images), 1, 1, 1), generator=generator, device=generator.device)
    return numbers.to(images).unbind()


def _normal(images: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn((len(images), 1, 1, 1), generator=generator, device=generator.device).to(images)
