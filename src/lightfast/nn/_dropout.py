"""Dropout of the map without its group means: what is dropped falls to the group's mean, not to zero."""

from __future__ import annotations

from torch import Tensor, nn

from lightfast.nn._adapter import Adapted


class _Dropout(Adapted):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if self.training else input


class Dropout(_Dropout, nn.Dropout):
    """`dropout(x - G φ(x)) + G φ(x)` in training, the identity in evaluation. Shapes: any map, unchanged."""


class Dropout1d(_Dropout, nn.Dropout1d):
    """Drops whole features of (N, m, L): `dropout1d(x - G φ(x)) + G φ(x)` in training, else the identity."""


class Dropout2d(_Dropout, nn.Dropout2d):
    """Drops whole features of (N, m, H, W): `dropout2d(x - G φ(x)) + G φ(x)` in training, else the identity."""


class Dropout3d(_Dropout, nn.Dropout3d):
    """Drops whole features of (N, m, D, H, W): `dropout3d(x - G φ(x)) + G φ(x)` in training, else the identity."""
