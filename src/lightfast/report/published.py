"""What the paper reports: Cotogni and Cusano, Neurocomputing 502 (2022); test error, %, by saturation of the light."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PUBLISHED"]

PUBLISHED: Mapping[str, Mapping[str, Mapping[float, float]]] = {
    "CIFAR-10": {
        "Original": {0.0: 8.67, 0.5: 12.6, 0.9: 29.0},
        "Augmentation": {0.0: 9.20, 0.5: 9.91, 0.9: 11.9},
        "Preprocessing: quasi-unsupervised": {0.0: 9.19, 0.5: 9.43, 0.9: 11.0},
        "Equivariant": {0.0: 8.88, 0.5: 8.85, 0.9: 9.29, 1.0: 28.17},
    },
}
"""By data set and strategy: ResNet-20."""
