"""What a normalisation of the library hands to the functions that compute it, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

__all__ = ["Gradients", "Passed", "Statistics"]


class Statistics(NamedTuple):
    """Where the normalisation takes its statistics from."""

    training: bool
    running_mean: Tensor | None
    running_var: Tensor | None
    momentum: float
    eps: float
    share: Callable[[Tensor], Tensor] | None = None
    """The mean of a tensor over all processes that train together, each with as many images; None for one process."""

    @property
    def of_batch(self) -> bool:
        """Whether it takes them from the batch."""
        return self.training or self.running_mean is None or self.running_var is None


class Passed(NamedTuple):
    """What the forward passes of `norm_act` leave for the way back, in its terms.

    Args:
        u: the map.
        z: what became of it.
        of_images: over positions, the means of `u` and of `c - μ` (2, N, C).
        of_features: `γ / sqrt(σ² + ε)`, `1 / sqrt(σ² + ε)`, and, if the batch's statistics are used, its `μ` and its
            unbiased `σ²` (4, C).
    """

    u: Tensor
    z: Tensor
    of_images: Tensor
    of_features: Tensor


class Gradients(NamedTuple):
    """Those of the map, the shortcut, the convolution's bias, and the norm's weight and bias."""

    u: Tensor
    shortcut: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor
    bias: Tensor
