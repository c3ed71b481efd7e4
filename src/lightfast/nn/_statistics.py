"""What a normalisation of the library hands to the functions that compute it, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

__all__ = ["Gradients", "How", "Operands", "Passed", "Statistics"]


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


class Operands(NamedTuple):
    """What `norm_act` works on, in its terms.

    Args:
        u: (N, C, *positions), in `groups` equal contiguous runs of features; for the kernels, with idle channels after.
        shortcut: `s`, of the shape of `u`.
        pre_bias: `b` (C,).
        weight: `γ` (C,).
        bias: `β` (C,).
        statistics: of `c`; running ones are updated in place in training.
        groups: g.
        slope: 0 for ReLU, 1 for no activation.
    """

    u: Tensor
    shortcut: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    statistics: Statistics
    groups: int
    slope: float

    @property
    def how(self) -> How:
        """What the way back has to know of them beside tensors."""
        return How(self.statistics.of_batch, self.shortcut is not None, self.groups, self.slope)


class How(NamedTuple):
    """Whether statistics are the batch's, whether there is a shortcut, groups, and slope."""

    of_batch: bool
    has_shortcut: bool
    groups: int
    slope: float


class Passed(NamedTuple):
    """The tensors that the forward passes leave for the way back: of the operands, and of their own.

    Args:
        u: the map.
        z: what became of it.
        of_images: over positions, the means of `u` and of `c - μ` (2, N, C).
        of_features: `γ / sqrt(σ² + ε)`, `1 / sqrt(σ² + ε)`, and, if the batch's statistics are used, its `μ` and its
            unbiased `σ²` (4, C).
        pre_bias: as it was given, and so are `weight` and `bias`.
    """

    u: Tensor
    z: Tensor
    of_images: Tensor
    of_features: Tensor
    pre_bias: Tensor | None
    weight: Tensor
    bias: Tensor


class Gradients(NamedTuple):
    """Those of the map, the shortcut, the convolution's bias, and the norm's weight and bias."""

    u: Tensor
    shortcut: Tensor | None
    pre_bias: Tensor | None
    weight: Tensor
    bias: Tensor
