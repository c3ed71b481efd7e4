"""Normalization: of the map without its group means, which are added back."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightfast._groups import GroupSpec
from lightfast.nn._adapter import Adapted


class _FeatureNorm(Adapted):
    """Normalization that knows its number of features."""

    num_features: int

    def _known_features(self) -> int | None:
        return self.num_features


class BatchNorm1d(_FeatureNorm, nn.BatchNorm1d):
    """`BN(x - G φ(x)) + G φ(x)`: batch statistics of the centered map. Scale and shift per feature are free.

    Takes torch's arguments and `offset_groups`, `pool`, `scope`, `dim`. Shapes: (N, m) or (N, m, L), unchanged.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = BatchNorm1d(6)
    >>> equivariance_error(layer, torch.randn(8, 6, 5)) < 1e-12
    True
    """


class BatchNorm2d(_FeatureNorm, nn.BatchNorm2d):
    """`BN(x - G φ(x)) + G φ(x)`: batch statistics of the centered map. Scale and shift per feature are free.

    Takes torch's arguments and `offset_groups`, `pool`, `scope`, `dim`. Shapes: (N, m, H, W), unchanged.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = BatchNorm2d(6)
    >>> equivariance_error(layer, torch.randn(8, 6, 4, 4)) < 1e-12
    True
    """


class BatchNorm3d(_FeatureNorm, nn.BatchNorm3d):
    """`BN(x - G φ(x)) + G φ(x)`: batch statistics of the centered map. Scale and shift per feature are free.

    Takes torch's arguments and `offset_groups`, `pool`, `scope`, `dim`. Shapes: (N, m, D, H, W), unchanged.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = BatchNorm3d(6)
    >>> equivariance_error(layer, torch.randn(4, 6, 3, 3, 3)) < 1e-12
    True
    """


class InstanceNorm1d(_FeatureNorm, nn.InstanceNorm1d):
    """`IN(x - G φ(x)) + G φ(x)`. Takes torch's arguments and `offset_groups`, `pool`, `scope`. Shapes: (N, m, L).

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = InstanceNorm1d(6)
    >>> equivariance_error(layer, torch.randn(2, 6, 5)) < 1e-12
    True
    """


class InstanceNorm2d(_FeatureNorm, nn.InstanceNorm2d):
    """`IN(x - G φ(x)) + G φ(x)`. Takes torch's arguments and `offset_groups`, `pool`, `scope`. Shapes: (N, m, H, W).

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = InstanceNorm2d(6)
    >>> equivariance_error(layer, torch.randn(2, 6, 4, 4)) < 1e-12
    True
    """


class InstanceNorm3d(_FeatureNorm, nn.InstanceNorm3d):
    """`IN(x - G φ(x)) + G φ(x)`. Takes torch's arguments, `offset_groups`, `pool`, `scope`. Shapes: (N, m, D, H, W).

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = InstanceNorm3d(6)
    >>> equivariance_error(layer, torch.randn(2, 6, 3, 3, 3)) < 1e-12
    True
    """


class GroupNorm(Adapted, nn.GroupNorm):
    """`GN(x - G φ(x)) + G φ(x)`; torch's `num_groups` need not be the offset groups.

    Takes torch's arguments and `offset_groups`, `pool`, `scope`. Shapes: (N, m, *positions), unchanged.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = GroupNorm(2, 6)
    >>> equivariance_error(layer, torch.randn(2, 6, 4, 4)) < 1e-12
    True
    """

    def _known_features(self) -> int | None:
        return self.num_channels


class LayerNorm(Adapted, nn.LayerNorm):
    """`LN(x - G φ(x)) + G φ(x)`, with features on the first of the normalized axes.

    Takes torch's arguments and `offset_groups`, `pool`, `scope`. Shapes: (N, ..., m) for tokens, with
    `normalized_shape = m`, or (N, ..., m, H, W) with `normalized_shape = (m, H, W)`; unchanged.

    >>> import torch
    >>> from lightfast import equivariance_error
    >>> layer = LayerNorm(6)
    >>> equivariance_error(layer, torch.randn(2, 5, 6), dim=-1) < 1e-12
    True
    """

    def __init__(self, normalized_shape: Any, *args: Any, offset_groups: GroupSpec = 3, **kwargs: Any) -> None:
        axes = 1 if isinstance(normalized_shape, int) else len(normalized_shape)
        super().__init__(normalized_shape, *args, offset_groups=offset_groups, dim=-axes, **kwargs)

    def _known_features(self) -> int | None:
        return self.normalized_shape[0]
