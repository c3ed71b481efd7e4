"""What the operations on lifted maps work on, what they keep for the backward pass, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Features(NamedTuple):
    """What a map's first channels are: so many features in `groups` equal contiguous runs; idle channels follow."""

    count: int
    groups: int


class Statistics(NamedTuple):
    """Where a normalization takes its statistics from."""

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
        u: (N, channels, *positions): C features in `groups` equal contiguous runs, and perhaps idle channels after.
        shortcut: `s`, of the shape of `u`.
        pre_bias: `b` (C,).
        weight: `γ` (C,).
        bias: `β` (C,).
        statistics: of the centered map; running ones are updated in place in training.
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
    def options(self) -> NormActOptions:
        """What the backward pass has to know of them beside tensors."""
        return NormActOptions(self.statistics.of_batch, self.shortcut is not None, self.groups, self.slope)


class NormActOptions(NamedTuple):
    """Whether statistics are the batch's, whether there is a shortcut, groups, and slope."""

    of_batch: bool
    has_shortcut: bool
    groups: int
    slope: float


class Saved(NamedTuple):
    """The tensors that the forward pass of `norm_act` keeps for the backward pass.

    Args:
        u: the map.
        z: what became of it.
        of_images: (at least 2, N, C), in float32; first, over positions, the means of `u` and of `c - μ`.
        of_features: (4, C), in float32: `γ / sqrt(σ² + ε)`, `1 / sqrt(σ² + ε)`, and, if the batch's statistics are used
            and nobody has taken them yet, its `μ` and its unbiased `σ²`.
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


class Norm(NamedTuple):
    """A batch norm with running statistics: `γ`, `β`, `μ` and `σ²` of each feature (C,), and `ε`."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    eps: float


class Folded(NamedTuple):
    """A batch norm `a v + k` of which all or nothing is in the convolution's weight already; all (C,), float32 best.

    The convolution gives `v / undo`, so that `a v = factor v / undo`.
    """

    scale: Tensor
    shift: Tensor
    undo: Tensor
    factor: Tensor
