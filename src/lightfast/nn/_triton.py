"""What the modules that launch Triton kernels share."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from importlib.util import find_spec
from typing import Any

from torch import Tensor

__all__ = ["available", "launch", "power_of_two"]

_compiled: dict[Hashable, tuple[Any, tuple[str, ...]]] = {}


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], x: Tensor, *others: Tensor | float, **constants: Any) -> None:
    """`kernel[grid](x, *others, **constants)`, where the device of `x` is the current one.

    To find what it compiled for such arguments takes Triton several times as long as to launch it, and longer than most
    kernels take. So that is kept here, by what Triton compiles for: all constants, and what it looks at in arguments.
    """
    arguments = (x, *others)
    key = (kernel, x.get_device(), *map(_looked_at, arguments), *constants.items())
    known = _compiled.get(key)
    if known is not None:
        compiled, names = known
        compiled[(*grid, 1, 1)[:3]](*arguments, *[constants[name] for name in names])
        return
    compiled = kernel[grid](*arguments, **constants)
    # Triton's interpreter compiles nothing.
    if compiled is not None:
        _compiled[key] = compiled, tuple(kernel.arg_names[len(arguments) :])


def _looked_at(x: Tensor | float) -> Hashable:
    """Of a tensor type and alignment; of an integer, whether it is 1, a multiple of 16, or large; of a float nothing.

    >>> _looked_at(48) == _looked_at(64) != _looked_at(1), _looked_at(0.5) == _looked_at(2.0)
    (True, True)
    """
    if isinstance(x, Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    return (x == 1, x % 16 == 0, x >= 2**31) if isinstance(x, int) else float


def power_of_two(n: int) -> int:
    """The least one that is not less.

    >>> power_of_two(33), power_of_two(1)
    (64, 1)
    """
    return 1 << max(0, n - 1).bit_length()
