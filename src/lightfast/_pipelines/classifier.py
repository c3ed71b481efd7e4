"""Image recognition in one module: from sRGB images to scores."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lightfast import models
from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.preparation import BALANCES, Balance, ColorSpace, Preparation
from lightfast.color import ChannelNorm
from lightfast.functional import Scope

__all__ = ["Classifier"]


class Classifier(Pipeline):
    """Image recognition in one module: sRGB images in [0, 1], (N, 3, H, W), to scores (N, classes).

    Args:
        model: a name that :func:`lightfast.models.create` knows; or a network of your own, from prepared images
            (N, 3, H, W) to scores (N, classes). Files hold its weights but not its code: give it to
            :func:`lightfast.load` again.
        classes: the names of the classes.
        norm: mean and standard deviation of the training images, in the color space.
        color: what the network sees: `srgb`, or `log` RGB.
        offset_groups: 3 for an equivariant network, None for a conventional one. A conventional network on log RGB is
            wrapped: it sees each channel less its mean, so no light changes its scores either.
        scope: of the equivariant network's group pooling.
        constrained: whether the equivariant network's weights meet the paper's constraint.
        balance: automatic color balance before everything else, a name from :data:`BALANCES`.
        fill: on log RGB, give a channel that the light left dark the pattern of the others.
        field: on log RGB, light whose logarithm varies over the image as a plane (1) or a quadratic (2) changes no
            score either; 0 for light that is the same everywhere.
        size: height and width of the images that it was trained on; photographs are brought to it.

    Attributes:
        classes: the names of the classes.
        config: what the pipeline is made from.
        prepare: the :class:`Preparation`, from images to the network's input.
        network: the network.

    >>> import torch
    >>> norm = ChannelNorm([2.0] * 3, [1.0] * 3)
    >>> classifier = Classifier("resnet20", ["cat", "dog"], norm, color="log", offset_groups=3).eval()
    >>> images, light = torch.rand(2, 3, 32, 32) / 2 + 0.5, torch.tensor([1.0, 0.7, 0.4])
    >>> from lightfast.light import relight
    >>> with torch.no_grad():
    ...     torch.allclose(classifier(images), classifier(relight(images, illuminants=light)), atol=1e-4)
    True
    """

    output_name = "scores"
    hub_task = "image-classification"

    def __init__(
        self,
        model: str | nn.Module,
        classes: Sequence[str],
        norm: ChannelNorm | None = None,
        *,
        color: ColorSpace = "srgb",
        offset_groups: int | None = None,
        scope: Scope = "image",
        constrained: bool = True,
        balance: Balance | None = None,
        fill: bool = False,
        field: int = 0,
        size: int | None = None,
    ) -> None:
        super().__init__()
        if len(classes) < 2:
            raise ValueError(f"a classifier needs at least two classes to choose from, not {list(classes)}")
        if balance is not None and balance not in BALANCES:
            raise ValueError(f"there is no color balance {balance!r}; there are {', '.join(BALANCES)}")
        self.classes = list(classes)
        norm = ChannelNorm([0.0] * 3, [1.0] * 3) if norm is None else norm
        self.prepare = Preparation(norm, color, None if balance is None else BALANCES[balance](), fill, field=field)
        # Training moves and cuts what was prepared, after which an equivariant network takes the field away once more.
        own = field if offset_groups is not None and scope == "image" else 0
        if isinstance(model, str):
            self.network = models.create(model, offset_groups, len(self.classes), scope, constrained, own)
        elif (offset_groups, scope, constrained) != (None, "image", True):
            raise ValueError(
                "offset_groups, scope and constrained say how a network is made, but you give one that is made: "
                "leave them out; with color='log' no light changes its scores"
            )
        else:
            self.network = model

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                f"expected sRGB images (N, 3, H, W) in [0, 1], but got {images.dtype} of shape {tuple(images.shape)}"
            )
        return self._scores(self.prepare(images))

    @property
    def from_log(self) -> nn.Module | None:
        """What follows log RGB, (N, 3, H, W), where light is an offset: the part that `lf.certify` proves things of."""
        return _FromLog(self) if self.prepare.color == "log" else None

    def _scores(self, prepared: Tensor) -> Tensor:
        # A network in low precision gets what was prepared, and centered, in the precision of the images.
        weights = next(self.network.parameters(), prepared)
        scores = self.network(prepared.to(weights.dtype))
        if scores.ndim != 2 or scores.shape[1] != len(self.classes):
            raise ValueError(
                f"expected a score for each of the {len(self.classes)} classes, (N, {len(self.classes)}), but the "
                f"network gave {tuple(scores.shape)}: give as many classes as it has outputs"
            )
        return scores

    def extra_repr(self) -> str:
        model = self.config["model"]
        return f"{model if isinstance(model, str) else model['own']!r}, {len(self.classes)} classes"


class _FromLog(nn.Module):
    """A classifier from log RGB on."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier, self.training = classifier, classifier.training

    def forward(self, log: Tensor) -> Tensor:
        return self.classifier._scores(self.classifier.prepare.from_log(log))
