"""Activations: of the map without its group means, which are added back; and Maxout, which needs neither."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightfast._groups import Groups, GroupSpec, resolve
from lightfast.functional import combine_offset
from lightfast.nn._adapter import Adapted


class ReLU(Adapted, nn.ReLU):
    """`max(x, G φ(x))`, which is `relu(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> ReLU(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[3., 3., 6.]])
    """

    def forward(self, input: Tensor) -> Tensor:
        return combine_offset(torch.maximum, input, self._offset(input), self.offset_groups, self.dim)


class LeakyReLU(Adapted, nn.LeakyReLU):
    """`leaky_relu(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> LeakyReLU(0.5, offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[2.0000, 2.5000, 6.0000]])
    """


class PReLU(Adapted, nn.PReLU):
    """`prelu(x - G φ(x)) + G φ(x)`, with a learned slope, shared or one per feature. Shapes: (N, m, ...), unchanged.

    >>> PReLU(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]])).detach()
    tensor([[2.5000, 2.7500, 6.0000]])
    """


class ELU(Adapted, nn.ELU):
    """`elu(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> ELU(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[2.1353, 2.3679, 6.0000]])
    """


class GELU(Adapted, nn.GELU):
    """`gelu(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> GELU(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[2.9545, 2.8413, 5.9959]])
    """


class SiLU(Adapted, nn.SiLU):
    """`silu(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> SiLU(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[2.7616, 2.7311, 5.8577]])
    """


class Tanh(Adapted, nn.Tanh):
    """`tanh(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> Tanh(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[2.0360, 2.2384, 3.9951]])
    """


class Sigmoid(Adapted, nn.Sigmoid):
    """`sigmoid(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> Sigmoid(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[3.1192, 3.2689, 3.9526]])
    """


class Hardswish(Adapted, nn.Hardswish):
    """`hardswish(x - G φ(x)) + G φ(x)`. Shapes: any map, unchanged.

    >>> Hardswish(offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[2.6667, 2.6667, 6.0000]])
    """


class Maxout(nn.Module):
    """The largest of every `pieces` features of a group: `y_i = max_p x_{i,p}`. Equivariant by itself.

    Pieces are features that follow one another within a group.

    Args:
        pieces: how many features make one.
        offset_groups: a number of equal contiguous runs, or any assignment.
        dim: the features' axis.

    Shapes: (N, m, *positions) to (N, m / pieces, *positions), assigned as `out_groups(m)` says.

    >>> Maxout(2, offset_groups=2)(torch.tensor([[1.0, 3.0, 10.0, 20.0]]))
    tensor([[ 3., 20.]])
    """

    def __init__(self, pieces: int, offset_groups: GroupSpec = 3, dim: int = 1) -> None:
        super().__init__()
        self.pieces, self.offset_groups, self.dim = pieces, offset_groups, dim

    def out_groups(self, features: int) -> Groups:
        """The assignment of the output for an input of `features` features."""
        return resolve(self.offset_groups, features).blocks(self.pieces)[1]

    def forward(self, x: Tensor) -> Tensor:
        order, _ = resolve(self.offset_groups, x.shape[self.dim]).blocks(self.pieces)
        if order is not None:
            x = x.index_select(self.dim, torch.tensor(order, device=x.device))
        return x.unflatten(self.dim, (-1, self.pieces)).amax(self.dim + 1 if self.dim >= 0 else self.dim)

    def extra_repr(self) -> str:
        return f"{self.pieces}, offset_groups={self.offset_groups}"
