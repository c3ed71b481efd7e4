"""Dropout of the map without its group means: what is dropped falls to the group's mean, not to zero."""

from __future__ import annotations

from torch import Tensor, nn

from lightfast.nn._adapter import Adapted


class _Dropout(Adapted):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if self.training else input


class Dropout(_Dropout, nn.Dropout):
    """`dropout(x - G φ(x)) + G φ(x)` in training, the identity in evaluation. Shapes: any map, unchanged.

    >>> import torch
    >>> Dropout(1.0, offset_groups=1)(torch.tensor([[1.0, 2.0, 6.0]]))  # all that is dropped becomes the mean
    tensor([[3., 3., 3.]])
    """


class Dropout1d(_Dropout, nn.Dropout1d):
    """Drops whole features of (N, m, L): `dropout1d(x - G φ(x)) + G φ(x)` in training, else the identity.

    >>> import torch
    >>> Dropout1d(1.0, offset_groups=1)(torch.tensor([[[1.0, 3.0], [5.0, 7.0]]]))
    tensor([[[4., 4.],
             [4., 4.]]])
    """


class Dropout2d(_Dropout, nn.Dropout2d):
    """Drops whole features of (N, m, H, W): `dropout2d(x - G φ(x)) + G φ(x)` in training, else the identity.

    >>> import torch
    >>> Dropout2d(1.0, offset_groups=1)(torch.tensor([[[[1.0, 3.0]], [[5.0, 7.0]]]])).flatten()
    tensor([4., 4., 4., 4.])
    """


class Dropout3d(_Dropout, nn.Dropout3d):
    """Drops whole features of (N, m, D, H, W): `dropout3d(x - G φ(x)) + G φ(x)` in training, else the identity.

    >>> import torch
    >>> Dropout3d(1.0, offset_groups=1)(torch.tensor([[[[[1.0, 3.0]]], [[[5.0, 7.0]]]]])).flatten()
    tensor([4., 4., 4., 4.])
    """
