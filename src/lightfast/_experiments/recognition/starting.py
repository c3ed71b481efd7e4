"""What a trained conventional classifier becomes before it is fine-tuned, so that it keeps what it has learned."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._convert import convert
from lightfast._experiments.lights import Images, in_batches
from lightfast._experiments.recognition.task import Augmentation, RecognitionTask
from lightfast._pipelines.classifier import Classifier, scores_in
from lightfast._pipelines.preparation import ColorSpace
from lightfast.color import ChannelNorm, FromLog, linear_to_srgb, srgb_to_linear, srgb_to_log

__all__ = ["WAYS", "DistillationTask", "Way", "start"]

_MEASURED_IMAGES = 256
"""How many images are enough for their mean color, and to fit layers to features."""

_BRIGHTEST = 4.0
"""Linear light beyond which a picture about its mean is cut: sRGB of it is about 1.8."""


@dataclass(frozen=True)
class Way:
    """A way to go on with a trained conventional classifier.

    Args:
        name: what users type.
        title: what tables show.
        make: from the classifier, and log RGB of some of its images (or None), to the one to fine-tune.
        color: the color space of its input.
        jitter: whether fine-tuning jitters colors.
        trained: whether it is fine-tuned at all.
    """

    name: str
    title: str
    make: Callable[[Classifier, Tensor | None], Classifier]
    color: ColorSpace = "log"
    jitter: bool = False
    trained: bool = True


def start(plain: Classifier, way: str, images: Images | None) -> Classifier:
    """The classifier that a way begins with, on the CPU; the conventional one is left as it is.

    Args:
        plain: a classifier on sRGB.
        way: a name from :data:`WAYS`.
        images: of the training set; labels are not asked for. None where there are none.
    """
    if plain.prepare.color != "srgb" or plain.prepare.balance is not None:
        raise ValueError("fine-tuning starts from a conventional classifier: one on sRGB, without color balance")
    some = None if images is None else _some(images)
    return WAYS[way].make(deepcopy(plain).cpu(), some).train()


def _some(images: Images) -> Tensor:
    """Log RGB of some of the images, spread over all of them, (N, 3, H, W)."""
    if isinstance(images, Tensor):
        images = images[:: max(1, len(images) // _MEASURED_IMAGES)][:_MEASURED_IMAGES]
    batch = next(batch for _, batch in in_batches(images, min(_MEASURED_IMAGES, len(images)), "cpu"))
    return srgb_to_log(batch)


def _same(plain: Classifier, some: Tensor | None) -> Classifier:
    return _around(plain, _trainable(plain), "srgb", plain.prepare.norm)


def _wrapped(plain: Classifier, some: Tensor | None) -> Classifier:
    return _around(plain, nn.Sequential(FromLog(plain.prepare.norm, some), _trainable(plain)), "log", None)


def _converted(plain: Classifier, some: Tensor | None) -> Classifier:
    example = torch.zeros(2, 3, plain.config["size"], plain.config["size"])
    network = convert(
        nn.Sequential(_FromMean(plain.prepare.norm, some), _trainable(plain)),
        example,
        keep="0",
        widths="keep",
        output="scores",
        lifted=True,
        images=None if some is None else some - some.mean((2, 3), keepdim=True),
    )
    return _around(plain, network, "log", None)


class _FromMean(nn.Module):
    """Normalized sRGB, from log RGB about its mean: `(srgb(exp(-(z + m))) - mean) / std`, with `m` the usual mean.

    Unlike :class:`~lightfast.color.FromLog` it takes no light away, which is left to the layers behind it: of a network
    that ignores the light already there would be nothing to convert.
    """

    usual: Tensor

    def __init__(self, norm: ChannelNorm, images: Tensor | None) -> None:
        super().__init__()
        self.norm = ChannelNorm(norm.mean.detach().clone(), norm.std.detach().clone())
        usual = -srgb_to_linear(norm.mean.clamp(0.01, 1)).log() if images is None else images.mean((0, 2, 3))
        self.register_buffer("usual", usual.reshape(3, 1, 1))

    def forward(self, z: Tensor) -> Tensor:
        return self.norm(linear_to_srgb((-(z + self.usual)).exp().clamp(max=_BRIGHTEST)))


def _fresh(plain: Classifier, some: Tensor | None) -> Classifier:
    example = torch.zeros(2, 3, plain.config["size"], plain.config["size"])
    network = convert(_trainable(plain), example, weights="init", widths="keep", output="scores", lifted=True)
    return _around(plain, network, "log", None if some is None else ChannelNorm(some.mean((0, 2, 3)), [1.0] * 3))


def _trainable(plain: Classifier) -> nn.Module:
    return plain.network.requires_grad_(True)


def _around(plain: Classifier, network: nn.Module, color: ColorSpace, norm: ChannelNorm | None) -> Classifier:
    classifier = Classifier(network, plain.classes, norm, color=color, size=plain.config["size"])
    classifier.about = {"from": plain.about}
    return classifier


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way("original", "Original, not fine-tuned", _same, "srgb", trained=False),
        Way("augmentation", "Fine-tuned with augmentation", _same, "srgb", jitter=True),
        Way("equivariant", "Converted", _converted),
        Way("wrapped", "Wrapped", _wrapped),
        Way("scratch", "Converted, fresh weights", _fresh),
    )
}


class DistillationTask(RecognitionTask):
    """Recognition where the conventional network, on the same part of the same picture, is a teacher.

    `(1 - a) CE(y, label) + a T² KL(softmax(t / T), softmax(y / T))`, for scores `y` and those of the teacher, `t`.

    Args:
        images: sRGB, uint8 (N, 3, H, W).
        labels: int64 (N,).
        student: the classifier that is trained.
        teacher: the conventional one, on sRGB.
        augmentation: what training does to images.
        share: `a`.
        temperature: `T`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        student: Classifier,
        teacher: Classifier,
        augmentation: Augmentation,
        share: float,
        temperature: float = 2.0,
    ) -> None:
        super().__init__(images, labels, student.prepare, augmentation)
        self.teacher, self.share, self.temperature = deepcopy(teacher).freeze(), share, temperature

    def to(self, device: Any) -> None:
        super().to(device)
        self.teacher = self.teacher.to(device)

    def encode(self, images: Tensor) -> Tensor:
        # Six channels, which are cut and mirrored together.
        return torch.cat([super().encode(images), self.teacher.prepare(images)], 1)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss above, and the share of images that are wrong as `error`, in per cent."""
        x, labels = batch
        with torch.no_grad():
            wanted = (self.teacher.network(x[:, 3:]).float() / self.temperature).log_softmax(1)
        scores = scores_in(model(x[:, :3])).float()
        given = (scores / self.temperature).log_softmax(1)
        apart = F.kl_div(given, wanted, reduction="batchmean", log_target=True) * self.temperature**2
        loss = (1 - self.share) * F.cross_entropy(scores, labels) + self.share * apart
        wrong = (scores.detach().argmax(1) != labels).float().mean()
        return loss, {"error": 100 * wrong}
