"""Networks, each written once for the conventional and the equivariant vocabulary, and made by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightfast.fields import FieldSpec
from lightfast.functional import Scope
from lightfast.models._cerberus import Cerberus, LocalCerberus
from lightfast.models._chroma_histogram import ChromaHistogram
from lightfast.models._color_statistics import ColorStatistics
from lightfast.models._context_encoder import ContextEncoder
from lightfast.models._resnet import IMAGENET_LAYERS, CifarResNet, ImageNetResNet
from lightfast.models._resnet9 import ResNet9
from lightfast.models._spectral import SpectralNet
from lightfast.models._vocabulary import vocabulary

__all__ = ["create", "names"]

ESTIMATORS = {
    "cerberus": Cerberus,
    "cerberus-local": LocalCerberus,
    "chroma-histogram": ChromaHistogram,
    "color-statistics": ColorStatistics,
}
INPAINTERS: dict[str, dict[str, Any]] = {
    "context-encoder": {},
    "context-encoder-slim": {"base": 24, "bottleneck": 360},
}
CIFAR_DEPTHS = {f"resnet{depth}": depth for depth in (20, 32, 44, 56, 110)}
FAST_WIDTHS = {"resnet9": 64, "resnet9-narrow": 32, "resnet9-slim": 48, "resnet9-wide": 96}
CLASSIFIERS = [*CIFAR_DEPTHS, *FAST_WIDTHS, *IMAGENET_LAYERS]


def names() -> list[str]:
    """The names that :func:`create` knows.

    >>> "resnet20" in names()
    True
    """
    return [*CLASSIFIERS, "spectral", *ESTIMATORS, *INPAINTERS]


def create(
    name: str,
    offset_groups: int | None = 3,
    classes: int | None = None,
    scope: Scope = "image",
    constrained: bool = True,
    field: FieldSpec = 0,
    **options: Any,
) -> nn.Module:
    """A network with fresh weights.

    Args:
        name: one of :func:`names`.
        offset_groups: the number of groups, 3 for color; None for the conventional network.
        classes: the number of scores; by default 10 for CIFAR networks and 1000 for ImageNet's.
        scope: whether groups are pooled over the `image` or at each `pixel`.
        constrained: whether the weights of an equivariant network meet the paper's constraint. With pooling over the
            image a network is as equivariant without, and fits its data better (see docs/recognition.md).
        field: offsets that an equivariant network follows: 0 for those that are the same over the whole image, 1 for
            those that vary as a plane does, 2 as a quadratic, or a basis; see :mod:`lightfast.fields`. Not for networks
            that estimate one light.
        options: more arguments of networks that estimate light or fill holes, which pool over the image, and of
            `spectral` (see :class:`~lightfast.models._spectral.SpectralNet`).

    Returns:
        A module from (N, 3, H, W) to scores (N, classes). Those of an equivariant network do not change with offsets.
        `cerberus`, `cerberus-local`, `chroma-histogram` and `color-statistics` give illuminants (N, 3) instead, and
        `context-encoder` and the smaller `context-encoder-slim` the middle of an image (N, 3, 64, 64), which follow
        them.

    >>> import torch
    >>> create("resnet20", offset_groups=3)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    if name in ESTIMATORS or name in INPAINTERS:
        if classes is not None or scope != "image":
            does = "estimates light" if name in ESTIMATORS else "fills holes"
            raise ValueError(f"{name} {does} and pools over the image: it takes no classes and no other scope")
        if name in INPAINTERS:
            options = {"constrained": constrained, "field": field} | INPAINTERS[name] | options
            return ContextEncoder(offset_groups, **options)
        if field != 0:
            raise ValueError(f"{name} estimates one light for the whole image: it takes no field")
        return ESTIMATORS[name](offset_groups, constrained=constrained, **options)
    words = vocabulary(offset_groups, scope, constrained, field)
    if name == "spectral":
        return SpectralNet(words, options.pop("bands", offset_groups or 3), classes or 10, **options)
    if options and name in names():
        instead = "; the number of classes is classes=" if {"num_classes", "n_classes"} & options.keys() else ""
        taken = "offset_groups, classes, scope, constrained and field"
        raise ValueError(f"{name} takes {taken}, but no {', '.join(options)}{instead}")
    if name in CIFAR_DEPTHS:
        return CifarResNet(words, CIFAR_DEPTHS[name], classes or 10)
    if name in FAST_WIDTHS:
        return ResNet9(words, classes or 10, FAST_WIDTHS[name])
    if name in IMAGENET_LAYERS:
        return ImageNetResNet(words, name, classes or 1000)
    raise ValueError(f"there is no network {name!r}; there are {', '.join(names())}")
