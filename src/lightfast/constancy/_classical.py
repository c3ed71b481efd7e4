"""The estimators that need no training, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from lightfast.constancy._edges import gray_edge, max_rgb, principal_color, white_patch
from lightfast.constancy._statistics import gray_world, shades_of_gray


@dataclass(frozen=True)
class ClassicalEstimator:
    """An estimator without weights: called with linear images (N, 3, H, W) and an optional mask (N, 1, H, W).

    Attributes:
        title: what tables call it.
        function: what it does.
    """

    title: str
    function: Callable[..., Tensor]

    def __call__(self, linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
        """Illuminants (N, 3) of norm 1."""
        return self.function(linear_images, mask)


CLASSICAL: Mapping[str, ClassicalEstimator] = {
    "gray-world": ClassicalEstimator("Gray world", gray_world),
    "white-patch": ClassicalEstimator("White patch", white_patch),
    "max-rgb": ClassicalEstimator("Max-RGB, 99th percentile", max_rgb),
    "shades-of-gray": ClassicalEstimator("Shades of gray, p = 6", shades_of_gray),
    "gray-edge-1": ClassicalEstimator("Gray edge, first order", gray_edge),
    "gray-edge-2": ClassicalEstimator("Gray edge, second order", partial(gray_edge, order=2)),
    "pca": ClassicalEstimator("PCA of Cheng et al.", principal_color),
}
"""By the names that users type."""
