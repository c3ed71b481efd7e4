"""What experiments with classifiers share: the ways of coping with colored light, as data, and the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._pipelines.classifier import Classifier, scores_in
from lightfast._pipelines.preparation import Balance, ColorSpace
from lightfast.color import ChannelNorm, srgb_to_log
from lightfast.functional import Scope


@dataclass(frozen=True)
class Strategy:
    """What the network sees, which network it is, and what training adds.

    Args:
        title: what tables show.
        color: the color space of the network's input.
        offset_groups: 3 for an equivariant network.
        scope: of its group pooling.
        balance: automatic color balance of training and test images.
        jitter: whether training jitters colors.
        group_dropout: whether training drops whole color groups.
        fill: whether a dark color group takes the pattern of the others.
        constrained: whether an equivariant network's weights meet the paper's constraint.
        field: how light may vary over the image without being seen: as a plane (1) or a quadratic (2); 0 for not.
    """

    title: str
    color: ColorSpace = "srgb"
    offset_groups: int | None = None
    scope: Scope = "image"
    balance: Balance | None = None
    jitter: bool = False
    group_dropout: bool = False
    fill: bool = False
    constrained: bool = True
    field: int = 0

    def norm(self, images: Any) -> ChannelNorm:
        """The statistics of sRGB images, or batches of them, in the strategy's color space."""
        return ChannelNorm.fit(images, srgb_to_log if self.color == "log" else None)

    def classifier(
        self, model: str, classes: Sequence[str], norm: ChannelNorm, size: int, seed: int, about: Any = None
    ) -> Classifier:
        """A fresh classifier for images of this size; `about` is what is to be known of its training."""
        torch.manual_seed(seed)
        classifier = Classifier(
            model,
            classes,
            norm,
            color=self.color,
            offset_groups=self.offset_groups,
            scope=self.scope,
            balance=self.balance,
            fill=self.fill,
            constrained=self.constrained,
            field=self.field,
            size=size,
        )
        classifier.about = {**(about or {}), "seed": seed}
        return classifier


STRATEGIES: dict[str, Strategy] = {
    "original": Strategy("Original"),
    "augmentation": Strategy("Augmentation", jitter=True),
    "gray-world": Strategy("Preprocessing: gray world", balance="gray-world"),
    "shades-of-gray": Strategy("Preprocessing: shades of gray", balance="shades-of-gray"),
    "quasi-unsupervised": Strategy("Preprocessing: quasi-unsupervised", balance="quasi-unsupervised"),
    "equivariant": Strategy("Equivariant", "log", 3),
    "wrapped": Strategy("Wrapped", "log"),
    "wrapped-plane": Strategy("Wrapped, plane", "log", field=1),
    "wrapped-quadratic": Strategy("Wrapped, quadratic", "log", field=2),
    "wrapped-plane-fill": Strategy(
        "Wrapped, plane + group dropout, dark groups filled", "log", field=1, group_dropout=True, fill=True
    ),
    "group-dropout": Strategy("Equivariant + group dropout", "log", 3, group_dropout=True),
    "equivariant-pixel": Strategy("Equivariant, pooling per pixel", "log", 3, "pixel"),
    "group-fill": Strategy("Equivariant + group dropout, dark groups filled", "log", 3, group_dropout=True, fill=True),
    "equivariant-free": Strategy("Equivariant, free weights", "log", 3, constrained=False),
    "equivariant-plane": Strategy("Equivariant, plane", "log", 3, field=1),
    "equivariant-plane-free": Strategy("Equivariant, plane, free weights", "log", 3, constrained=False, field=1),
    "free-group-fill": Strategy(
        "Equivariant, free weights + group dropout, dark groups filled",
        "log",
        3,
        group_dropout=True,
        fill=True,
        constrained=False,
    ),
}
"""By the names that users type."""


class ClassificationTask:
    """Images in memory and their labels, as a task for the engine; `batch` is each experiment's own.

    Args:
        images: (N, ...).
        labels: int64, (N,) or more: -1 where nothing is known.
        prepare: what brings images to the network's input, and is moved with them.
        augmentation: what training does to images; its `label_smoothing` is of the loss.
    """

    def __init__(self, images: Tensor, labels: Tensor, prepare: Any, augmentation: Any) -> None:
        if len(images) != len(labels):
            raise ValueError(f"there are {len(images)} images, but {len(labels)} labels")
        self.images, self.labels, self.prepare, self.augmentation = images, labels, prepare.eval(), augmentation
        self.samples = len(labels)

    def to(self, device: Any) -> None:
        """Move everything to the device."""
        self.images, self.labels = self.images.to(device), self.labels.to(device)
        self.prepare = self.prepare.to(device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy where there are labels, and the share of them that is wrong as `error`, in per cent."""
        x, labels = batch
        scores, known = scores_in(model(x)).float(), labels >= 0
        smoothing = self.augmentation.label_smoothing
        loss = F.cross_entropy(scores, labels, ignore_index=-1, label_smoothing=smoothing)
        wrong = ((scores.detach().argmax(1) != labels) & known).sum() / known.sum().clamp(min=1)
        return loss, {"error": 100 * wrong}
