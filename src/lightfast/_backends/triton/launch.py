"""Launching Triton kernels with little of Python between: what is the same each time is worked out once.

Triton looks its compiled kernel up by the types and values of some twenty arguments at each launch, which takes longer
than the kernel. Here everything but the tensors belongs to a :class:`Launch`, which is made once for maps of one shape,
so that tensors are all that has to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Launch", "interpreted", "power_of_two"]


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def power_of_two(n: int) -> int:
    """The least one that is not less.

    >>> power_of_two(33), power_of_two(1)
    (64, 1)
    """
    return 1 << max(0, n - 1).bit_length()


class Launch:
    """A kernel with its grid and every argument but the tensors, which come first.

    Args:
        kernel: a function of Triton.
        grid: how many programs, along up to three axes.
        numbers: the arguments after the tensors, in their order.
        constants: those that are known to the compiler, by name, and `num_warps`.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], *numbers: float, **constants: Any) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self._known: dict[Hashable, Callable[..., Any]] = {}
        names = kernel.arg_names
        self._rest = (*numbers, *(constants[name] for name in names if name in constants))
        self._direct = not interpreted()

    def __call__(self, *tensors: Tensor) -> None:
        """Launch it on the current stream of the current device, which must be that of the tensors."""
        pointers = [x.data_ptr() for x in tensors]
        together = 0
        for pointer in pointers:
            together |= pointer
        if together & 15 or not self._direct:
            # Kernels are compiled for what lies at multiples of 16 bytes, or not, each tensor for itself.
            self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            return
        device = tensors[0].get_device()
        kind = (device, *[x.dtype for x in tensors])
        run = self._known.get(kind)
        if run is None:
            self._known[kind] = self._first(tensors)
            return
        run(torch._C._cuda_getCurrentRawStream(device), *pointers)

    def known(self, device: int, *dtypes: torch.dtype) -> Callable[..., Any] | None:
        """What launches it on tensors in these precisions, from a stream and their addresses; None before it has run.

        All addresses must be multiples of 16 bytes, and the device the current one.
        """
        return self._known.get((device, *dtypes))

    def _first(self, tensors: tuple[Tensor, ...]) -> Callable[..., Any]:
        """Launch it by Triton, which compiles it, and keep what it compiled."""
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
        x, y, z = (*self.grid, 1, 1)[:3]
        launch, function, metadata, rest = compiled.run, compiled.function, compiled.packed_metadata, self._rest

        def run(stream: int, *pointers: int) -> None:
            launch(x, y, z, stream, function, metadata, None, None, None, *pointers, *rest)

        return run
