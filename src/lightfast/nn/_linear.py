"""The linear layer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends import applied_weight
from lightfast._groups import check_features
from lightfast.nn._constrained import Constrained, InOutGroups


class Linear(Constrained, nn.Linear):
    """`y = W x + b` with `W G_m = G_n`; the bias is free.

    Args:
        in_features: m.
        out_features: n.
        bias: whether there is a bias.
        device: as in torch.
        dtype: as in torch.
        offset_groups: a number of equal contiguous runs, an assignment, or a pair (of the input, of the output).

    Shapes: (..., m) to (..., n).

    >>> import lightfast as lf, torch
    >>> layer, x, offset = Linear(6, 3), torch.randn(2, 6), torch.tensor([1.0, 2.0, 3.0])
    >>> moved = layer(lf.functional.add_offset(x, offset, 3))
    >>> torch.allclose(moved - layer(x), offset.expand(2, 3), atol=1e-5)
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset_groups: InOutGroups = 3,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._constrain(offset_groups, in_features, out_features)

    def forward(self, input: Tensor) -> Tensor:
        check_features(self.in_groups, input.shape[-1])
        return F.linear(input, applied_weight(self), self.bias)
