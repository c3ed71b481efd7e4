"""Color Cerberus: from an image to the color of its light, written once for plain and for lifted maps.

The equivariant networks answer in log RGB. They hold every map as `z + G o` (see :mod:`lightfast.nn._lifted`), where
`o` starts as the log RGB of the image's mean color: `o = -log mean exp(-x)` over the pixels. So their answer is the
gray world's, plus what the network adds to it, which no light can change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast.models._spread import log_spread_conv
from lightfast.models._vocabulary import ColorVocabulary, color_vocabulary

_CHANNELS = (16, 32, 64, 128)


class Cerberus(nn.Module):
    """The network of the paper: pixels joined with the image's average, four times convolution and pooling, two layers.

    Args:
        offset_groups: 3 for the equivariant network, on log RGB; None for the conventional one.
        estimates: k, how many illuminants are given.
        rectify: end with a ReLU, as light has no negative color: for a conventional network on linear RGB. On log RGB,
            with one output per group, the equivariant ReLU does nothing.
        size: height and width of the images, a multiple of 16.
        channels: of the four convolutions; an equivariant network has the nearest multiples of the groups.
        hidden: width of the last but one layer, likewise.
        dropout: share of what enters the last two layers that is dropped in training.
        constrained: whether an equivariant network's weights meet the paper's constraint. It follows offsets without,
            since its maps are lifted.

    Shapes: (N, 3, size, size) to (N, 3), or (N, k, 3) for several estimates.

    >>> sum(p.numel() for p in Cerberus(None).parameters()), sum(p.numel() for p in Cerberus(3).parameters())
    (203939, 196668)
    """

    on_lifted_maps = True

    def __init__(
        self,
        offset_groups: int | None = 3,
        estimates: int = 1,
        rectify: bool = True,
        size: int = 64,
        channels: Sequence[int] = _CHANNELS,
        hidden: int = 400,
        dropout: float = 0.0,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        if size < 16 or size % 16:
            raise ValueError(f"the network halves images four times: their size must be a multiple of 16, not {size}")
        words = self.words = color_vocabulary(offset_groups, constrained)
        self.estimates, self.size, self.rectify = estimates, size, rectify and offset_groups is None
        widths = [6, *(words.width(features) for features in channels)]
        self.stages = nn.ModuleList(_conv(words, inputs, outputs, 3) for inputs, outputs in pairwise(widths))
        self.squeeze = _conv(words, widths[-1], words.width(16), 1)
        flat, hidden = self.squeeze.out_channels * (size // 16) ** 2, words.width(hidden)
        self.first, self.second = words.linear(flat, hidden), words.linear(hidden, 3 * estimates)
        self.dropout = words.dropout(dropout)
        _start_small(self.second)
        if self.rectify:
            # A light of norm 1 is about 0.6 in each channel; from 0, half of the outputs would start dead.
            nn.init.constant_(self.second.bias, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.size, self.size):
            raise ValueError(f"expected images of {self.size} x {self.size} pixels, but got {tuple(images.shape)}")
        words: Any = self.words
        x = _joined(words, images)
        for stage in self.stages:
            x = words.conv_relu(stage, x, halve=True)
        x = words.conv_relu(self.squeeze, x, flat=True)
        x = words.linear_relu(self.first, self.dropout(x))
        colors = words.colors(self.second, self.dropout(x))
        colors = F.relu(colors) if self.rectify else colors
        return colors[:, 0] if self.estimates == 1 else colors


class LocalCerberus(nn.Module):
    """Estimates at many places, averaged by confidence (as FC4 of Hu et al. 2017 does), and kept equivariant.

    The convolutions of :class:`Cerberus`; then at each place `p` a light `e_p` and a confidence `c_p`. The answer is
    `Σ w_p e_p` with `w = softmax(c)`. Confidences come from what no offset changes and the weights sum to 1, so the
    answer follows offsets as each estimate does.

    Args:
        offset_groups: 3 for the equivariant network, on log RGB; None for the conventional one.
        channels: of the convolutions; each but the first follows a halving. An equivariant network has the nearest
            multiples of the groups.
        hidden: width of the layer before estimates and confidences, likewise.
        dropout: share of what enters that layer and what leaves it that is dropped in training.
        norm: whether batch norm follows each convolution.
        spread: also say how sure the answer is: a fourth output, the log of the reproduction error to expect, in
            degrees. It comes from what no offset changes.
        constrained: as for :class:`Cerberus`.

    Shapes: (N, 3, H, W) to (N, 3), or (N, 4) with a spread, for any H and W of at least 2 to the number of
    convolutions.

    >>> LocalCerberus(3)(torch.rand(2, 3, 64, 96)).shape
    torch.Size([2, 3])
    """

    on_lifted_maps = True

    def __init__(
        self,
        offset_groups: int | None = 3,
        channels: Sequence[int] = _CHANNELS,
        hidden: int = 128,
        dropout: float = 0.0,
        norm: bool = False,
        spread: bool = False,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        words = self.words = color_vocabulary(offset_groups, constrained)
        *before, hidden = [6, *(words.width(features) for features in (*channels, hidden))]
        stage = _NormedStage if norm else _Stage
        stages = [stage(words, inputs, outputs) for inputs, outputs in pairwise(before)]
        self.mix = stage(words, before[-1], hidden, halve=False)
        self.stages = nn.Sequential(*stages)
        self.light, self.confidence = _conv(words, hidden, 3, 1), nn.Conv2d(hidden, 1, 1)
        self.dropout = words.dropout(dropout, whole=True)
        _start_small(self.light)
        _start_small(self.confidence)
        self.spread = log_spread_conv(hidden) if spread else None

    def forward(self, images: Tensor) -> Tensor:
        words, start = self.words, _joined(self.words, images)
        # A map without its offset answers to no light, so any function of it is fit for a confidence, or to be added to
        # the mean color: what the layers take out of it on the way need not come back.
        x = self.dropout(self.stages(words.without_offset(start)))
        x = self.dropout(self.mix(x))
        weights = words.convolve(self.confidence, x).flatten(2).softmax(2)
        light = (words.convolve(self.light, x).flatten(2) * weights).sum(2)
        light = words.with_offset(light, start)
        if self.spread is None:
            return light
        spread = (words.convolve(self.spread, x).flatten(2) * weights).sum(2)
        return torch.cat([light, spread.to(light.dtype)], 1)


class _Stage(nn.Module):
    """A 3x3 convolution and ReLU, and 2x2 max pooling where maps are to be halved."""

    def __init__(self, words: ColorVocabulary, inputs: int, outputs: int, halve: bool = True) -> None:
        super().__init__()
        self.words, self.halve, self.conv = words, halve, _conv(words, inputs, outputs, 3)

    def forward(self, x: Any) -> Any:
        return self.words.conv_relu(self.conv, x, self.halve)


class _NormedStage(nn.Sequential):
    """The same with batch norm after the convolution."""

    def __init__(self, words: ColorVocabulary, inputs: int, outputs: int, halve: bool = True) -> None:
        pool = words.max_pool(2, 2, 0) if halve else nn.Identity()
        super().__init__(OrderedDict(body=words.chain(inputs, outputs, 3), pool=pool))


def _joined(words: ColorVocabulary, images: Tensor) -> Any:
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"expected images (N, 3, H, W), but got {tuple(images.shape)}")
    return words.join_average(images)


def _conv(words: ColorVocabulary, inputs: int, outputs: int, kernel: int) -> Any:
    conv = words.conv(inputs, outputs, kernel)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv


def _start_small(layer: Any) -> None:
    """Let training begin from the mean color, or from equal confidence."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
