"""What a normalisation of the library hands to the functions that compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

__all__ = ["Statistics"]


class Statistics(NamedTuple):
    """Where the normalisation takes its statistics from."""

    training: bool
    running_mean: Tensor | None
    running_var: Tensor | None
    momentum: float
    eps: float
    share: Callable[[Tensor], Tensor] | None = None
    """The mean of a tensor over all processes that train together, each with as many images; None for one process."""
