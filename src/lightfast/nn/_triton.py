"""What the modules that launch Triton kernels share."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

__all__ = ["available", "power_of_two"]


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def power_of_two(n: int) -> int:
    """The least one that is not less.

    >>> power_of_two(33), power_of_two(1)
    (64, 1)
    """
    return 1 << max(0, n - 1).bit_length()
