"""Networks, each written once for the conventional and the equivariant vocabulary, and made by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightfast.functional import Scope
from lightfast.models.cerberus import Cerberus, LocalCerberus
from lightfast.models.resnet import IMAGENET_LAYERS, CifarResNet, ImageNetResNet
from lightfast.models.vocabulary import vocabulary

__all__ = ["create", "names"]

ESTIMATORS = {"cerberus": Cerberus, "cerberus-local": LocalCerberus}
CIFAR_DEPTHS = {f"resnet{depth}": depth for depth in (20, 32, 44, 56, 110)}


def names() -> list[str]:
    """The names that :func:`create` knows.

    >>> "resnet20" in names()
    True
    """
    return [*CIFAR_DEPTHS, *IMAGENET_LAYERS, *ESTIMATORS]


def create(
    name: str,
    offset_groups: int | None = 3,
    classes: int | None = None,
    scope: Scope = "image",
    constrained: bool = True,
    **options: Any,
) -> nn.Module:
    """A network with fresh weights.

    Args:
        name: one of :func:`names`.
        offset_groups: the number of groups, 3 for colour; None for the conventional network.
        classes: the number of scores; by default 10 for CIFAR networks and 1000 for ImageNet's.
        scope: whether groups are pooled over the `image` or at each `pixel`.
        constrained: whether the weights of an equivariant network meet the paper's constraint. With pooling over the
            image a network is as equivariant without, and fits its data better (see docs/recognition.md).
        options: more arguments of :class:`Cerberus` and :class:`LocalCerberus`, which pool over the image.

    Returns:
        A module from (N, 3, H, W) to scores (N, classes). Those of an equivariant network do not change with offsets.
        `cerberus` and `cerberus-local` give illuminants (N, 3) instead, which follow them.

    >>> import torch
    >>> create("resnet20", offset_groups=3)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    if name in ESTIMATORS:
        if classes is not None or scope != "image":
            raise ValueError(f"{name} estimates light and pools over the image: it takes no classes and no other scope")
        return ESTIMATORS[name](offset_groups, constrained=constrained, **options)
    if options:
        raise ValueError(f"{name!r} has no {', '.join(options)}: these are for {', '.join(ESTIMATORS)}")
    words = vocabulary(offset_groups, scope, constrained)
    if name in CIFAR_DEPTHS:
        return CifarResNet(words, CIFAR_DEPTHS[name], classes or 10)
    if name in IMAGENET_LAYERS:
        return ImageNetResNet(words, name, classes or 1000)
    raise ValueError(f"there is no network {name!r}; there are {', '.join(names())}")
