"""Padding that keeps offsets: the border repeats, mirrors or wraps the map, and never holds a constant."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PADDING_MODES", "pad", "refuse_zero_padding"]

PADDING_MODES = ("replicate", "reflect", "circular", "mean")


def pad(x: Tensor, amounts: Sequence[int], mode: str) -> Tensor:
    """Pad the last axes by `amounts`, in the order of `torch.nn.functional.pad`: last axis first, before and after."""
    if mode != "replicate" or not torch.compiler.is_compiling():
        return F.pad(x, list(amounts), mode)
    # The replicate padding of torch crashes in the compiled backward pass; an index does not.
    for axis, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if before or after:
            size = x.shape[-1 - axis]
            index = torch.arange(-before, size + after, device=x.device).clamp(0, size - 1)
            x = x.index_select(x.dim() - 1 - axis, index)
    return x


def refuse_zero_padding(layer: str) -> ValueError:
    """The error for zero padding of an equivariant map."""
    return ValueError(
        f"{layer} would pad an equivariant map with zeros, which do not follow an offset: use padding_mode "
        + ", ".join(map(repr, PADDING_MODES))
    )
