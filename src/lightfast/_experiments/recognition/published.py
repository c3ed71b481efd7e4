"""What the paper reports: Cotogni and Cusano, Neurocomputing 502 (2022); test error, %, by saturation of the light."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Published", "published_for"]


class Published(NamedTuple):
    """A table of the paper.

    Attributes:
        title: network and data.
        errors: by strategy and saturation.
    """

    title: str
    errors: Mapping[str, Mapping[float, float]]


_CIFAR10 = Published(
    "ResNet-20",
    {
        "Original": {0.0: 8.67, 0.5: 12.6, 0.9: 29.0},
        "Augmentation": {0.0: 9.20, 0.5: 9.91, 0.9: 11.9},
        "Preprocessing: quasi-unsupervised": {0.0: 9.19, 0.5: 9.43, 0.9: 11.0},
        "Equivariant": {0.0: 8.88, 0.5: 8.85, 0.9: 9.29, 1.0: 28.17},
    },
)
_ILSVRC12 = Published(
    "ResNet-50 on the whole of ILSVRC-12, batch 48",
    {
        "Original": {0.0: 24.59, 0.5: 26.09, 0.9: 31.17},
        "Augmentation": {0.0: 28.09, 0.5: 29.21, 0.9: 33.91},
        "Preprocessing: quasi-unsupervised": {0.0: 24.95, 0.5: 25.32, 0.9: 26.53},
        "Equivariant": {0.0: 24.85, 0.5: 24.92, 0.9: 25.71},
    },
)


def published_for(settings: Mapping[str, Any]) -> Published | None:
    """The table of the paper to set beside a comparison with these settings, if there is one."""
    if settings["data"] == "CIFAR-10":
        return _CIFAR10
    return _ILSVRC12 if settings["plan"]["name"].startswith("imagenet") else None
