"""Image recognition in one module: from sRGB images to scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightfast import models
from lightfast._pipelines.network import AnyNetwork
from lightfast._pipelines.preparation import BALANCES, Balance, ColorSpace, Preparation
from lightfast._wrap import Wrapped
from lightfast.color import ChannelNorm
from lightfast.functional import Scope

__all__ = ["Classifier"]


class Classifier(AnyNetwork):
    """Image recognition in one module: sRGB images in [0, 1], (N, 3, H, W), to scores (N, classes).

    Args:
        model: a name that :func:`lightfast.models.create` knows; or any module from images (N, 3, H, W), as `color` and
            `norm` prepare them, to scores (N, classes), such as what :func:`lightfast.convert` returns.
        classes: the names of the classes.
        norm: mean and standard deviation of the training images, in the color space.
        color: what the network sees: `srgb`, or `log` RGB; by default `log` for what :func:`lightfast.convert` or
            :func:`lightfast.wrap` returned, and else `srgb`.
        offset_groups: 3 for an equivariant network, None for a conventional one. A conventional network on log RGB is
            wrapped: it sees each channel less its mean, so no light changes its scores either.
        scope: of the equivariant network's group pooling.
        constrained: whether the equivariant network's weights meet the paper's constraint.
        balance: automatic color balance before everything else, a name from :data:`BALANCES`.
        fill: on log RGB, give a channel that the light left dark the pattern of the others.
        field: on log RGB, light whose logarithm varies over the image as a plane (1) or a quadratic (2) changes no
            score either; 0 for light that is the same everywhere.
        size: height and width of the images that it was trained on; photographs are brought to it. Saving a module
            needs it.

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
        color: ColorSpace | None = None,
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
        if color is None:
            color = "log" if isinstance(model, Wrapped) or hasattr(model, "conversion") else "srgb"
            # A kind of classifier of its own may have a constructor without it.
            self.config |= {"color": color} if "color" in self.config else {}
        norm = ChannelNorm([0.0] * 3, [1.0] * 3) if norm is None else norm
        self.prepare = Preparation(norm, color, None if balance is None else BALANCES[balance](), fill, field=field)
        self._is_own = isinstance(model, nn.Module)
        if isinstance(model, nn.Module):
            self._check_own(offset_groups, scope, constrained)
            self.config["model"], self.network = type(model).__name__, model
            return
        # Training moves and cuts what was prepared, after which an equivariant network takes the field away once more.
        own = field if offset_groups is not None and scope == "image" else 0
        self.network = models.create(model, offset_groups, len(self.classes), scope, constrained, own)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                f"expected sRGB images (N, 3, H, W) in [0, 1], but got {images.dtype} of shape {tuple(images.shape)}"
            )
        return self._scores(self.prepare(images))

    @property
    def from_log(self) -> nn.Module | None:
        """What follows log RGB, (N, 3, H, W), where light is an offset: the part that `lf.certify` proves things of."""
        return _AfterLog(self) if self.prepare.color == "log" else None

    def _scores(self, prepared: Tensor) -> Tensor:
        # A network in low precision gets what was prepared, and centered, in the precision of the images.
        first = next(self.network.parameters(), prepared)
        scores = scores_in(self.network(prepared.to(first.dtype)))
        if scores.shape[1:] != (len(self.classes),):
            raise ValueError(
                f"the network gives {tuple(scores.shape[1:])} numbers for each image, but there are "
                f"{len(self.classes)} classes: give as many names as it has scores"
            )
        return scores

    def _check_own(self, offset_groups: int | None, scope: str, constrained: bool) -> None:
        if (offset_groups, scope, constrained) != (None, "image", True):
            raise ValueError(
                "offset_groups, scope and constrained are for networks that a name makes: give lf.convert those that "
                "your own network should have"
            )

    def _example(self) -> Tensor | None:
        size = self.image_size
        return None if size is None else torch.zeros(2, 3, *size)

    def extra_repr(self) -> str:
        return f"{self.config['model']!r}, {len(self.classes)} classes"


def scores_in(returned: Any) -> Tensor:
    """The scores in what a network returned: the tensor itself, the only one in a sequence, or `logits` by name.

    >>> scores_in({"logits": torch.zeros(2, 10), "hidden": torch.zeros(2, 5)}).shape
    torch.Size([2, 10])
    """
    found = returned.get("logits") if isinstance(returned, Mapping) else returned
    if isinstance(found, Sequence) and len(found) == 1:
        found = found[0]
    if not isinstance(found, Tensor):
        raise TypeError(
            f"a classifier's network returns scores, but this one gave {type(returned).__name__}: put it in a module "
            "that returns the tensor of scores alone"
        )
    return found


class _AfterLog(nn.Module):
    """A classifier from log RGB on."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier, self.training = classifier, classifier.training

    def forward(self, log: Tensor) -> Tensor:
        return self.classifier._scores(self.classifier.prepare.from_log(log))
