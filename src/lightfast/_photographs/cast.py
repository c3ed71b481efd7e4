"""Has a camera balanced this picture already, and if not, how far is it off? A small network that looks at its colors.

It knows pictures as cameras render them, and that most of what is white in them is neutral, so it does not follow the
light as estimators do, knowingly: what it is asked cannot be answered from colors relative to each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._pipelines.estimator import SceneEncoding
from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.saving import read_model
from lightfast.color import linear_to_srgb

__all__ = ["CHROMA_AXES", "CastReader", "cast_reader", "chroma_maps", "light_of_chroma", "log_chroma"]

CHROMA_AXES = torch.tensor([[2**-0.5, -(6**-0.5)], [0.0, 2 * 6**-0.5], [-(2**-0.5), -(6**-0.5)]])
"""(3, 2), from log RGB to log chroma: red against blue, and green against both."""

_MAPS, _CHANNELS = 5, 5
_SOFT, _REACH = 0.2, 2.8
_DARKEST = 1e-3


class CastReader(Pipeline):
    """Linear rendered pictures (N, 3, H, W) of any size to (N, 4): their cast, its spread, and whether there is one.

    The first two numbers are the cast in log chroma (:data:`CHROMA_AXES`), if there is one; the third the logarithm of
    how far it is from the truth in the mean; the last the logarithm of how likely it is that there is one, over how
    likely it is that there is none, where both are seen equally often.

    The network sees the picture itself, and histograms of log chroma, not relative to any color: of all pixels, of the
    brightest 3 % and 20 %, of dark ones, and of differences between neighbors. Bins are narrow near gray, by `asinh`.

    Args:
        size: of the square to which pictures are averaged.
        bins: along each axis of the histograms.
        doubt: the last number of pictures that are left as they are, and of those that are changed in full; between
            the two, in part. Fitted to pictures that were not trained on.
        believed: of a change, the share that is as this network says; the rest is as an estimator does. Likewise.

    >>> CastReader()(torch.rand(2, 3, 40, 60)).shape
    torch.Size([2, 4])
    """

    output_name = "cast"
    dynamic_size = True

    def __init__(
        self, *, size: int = 32, bins: int = 32, doubt: Sequence[float] = (1.0, 2.0), believed: float = 0.5
    ) -> None:
        super().__init__()
        self.doubt, self.believed = tuple(doubt), believed
        self.encoding = SceneEncoding("log", size)
        self.network = _Reader(bins)

    def forward(self, linear_images: Tensor) -> Tensor:
        return self.network(self.encoding.reduce(linear_images))

    def set_fit(self, doubt: Sequence[float], believed: float) -> None:
        """Other numbers for what follows from the answers: see the arguments."""
        self.doubt, self.believed = tuple(doubt), believed
        self.config |= {"doubt": list(doubt), "believed": believed}


@cache
def cast_reader() -> CastReader:
    """The trained one in the package."""
    reader: Any = read_model(Path(__file__).with_name("weights"), "cast", known=True)
    return reader


class _Reader(nn.Module):
    """Linear pictures (N, 3, H, W) to (N, 4): convolutions over histograms and over the picture, and two layers."""

    place: Tensor

    def __init__(
        self,
        bins: int,
        histograms: Sequence[int] = (16, 24, 32, 32),
        picture: Sequence[int] = (16, 32, 64),
        hidden: int = 96,
    ) -> None:
        super().__init__()
        self.bins = bins
        self.histograms = nn.Sequential(*_halving((_MAPS + 2, *histograms)))
        self.picture = nn.Sequential(*_halving((_CHANNELS, *picture), twice=True))
        side = -(-bins // 2 ** len(histograms))
        features = histograms[-1] * side * side + 2 * picture[-1]
        self.answer = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, 4)
        )
        at = torch.linspace(-1, 1, bins)
        self.register_buffer("place", torch.stack(torch.meshgrid(at, at, indexing="ij")), persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        maps = chroma_maps(pictures, self.bins)
        # Of a histogram, most bins hold next to nothing.
        maps = torch.cat([8 * maps, self.place.expand(len(maps), -1, -1, -1)], 1)
        shown = self.picture(torch.cat([linear_to_srgb(pictures.clamp(0, 1)), _chroma(pictures).transpose(0, 1)], 1))
        return self.answer(torch.cat([self.histograms(maps).flatten(1), shown.mean((2, 3)), shown.amax((2, 3))], 1))


def _halving(channels: Sequence[int], twice: bool = False) -> Iterator[nn.Module]:
    """Convolutions that halve the map, each followed by another one if `twice`."""
    for inputs, outputs in itertools.pairwise(channels):
        yield from (nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        if twice:
            yield from (nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def chroma_maps(images: Tensor, bins: int) -> Tensor:
    """Square roots of histograms of log chroma, (N, 3, H, W) to (N, 5, bins, bins)."""
    colors = images.flatten(2)
    seen = (colors.amin(1) > _DARKEST).to(colors.dtype)
    logs = colors.clamp(min=_DARKEST).log()
    brightness = torch.where(seen > 0, colors.mean(1), -1.0)
    rank = brightness.argsort(1, descending=True).argsort(1) / seen.sum(1, keepdim=True).clamp(min=1)
    parts = [seen, seen * (rank < 0.03), seen * ((rank >= 0.03) & (rank < 0.2)), seen * (rank > 0.6)]
    maps = [_histogram(logs, part, bins) for part in parts]
    steps = F.pad(images.diff(dim=3).abs(), (0, 1)) + F.pad(images.diff(dim=2).abs(), (0, 0, 0, 1))
    steps = steps.flatten(2) + 1e-4
    maps.append(_histogram(steps.log(), seen * steps.mean(1), bins))
    return torch.stack(maps, 1).sqrt()


def _histogram(logs: Tensor, weights: Tensor, bins: int) -> Tensor:
    """Of log RGB (N, 3, P) with weights (N, P): (N, bins, bins), of sum 1; between bins, both count in part."""
    at = ((_squeezed(logs) + 1) * bins / 2 - 0.5).clamp(0, bins - 1 - 1e-3)
    low, share = at.floor().long(), at.frac()
    counts = weights.new_zeros(len(weights), bins * bins)
    for first, first_share in ((low[0], 1 - share[0]), (low[0] + 1, share[0])):
        for second, second_share in ((low[1], 1 - share[1]), (low[1] + 1, share[1])):
            counts.scatter_add_(1, first * bins + second, weights * first_share * second_share)
    counts = counts / counts.sum(1, keepdim=True).clamp(min=1e-6)
    return counts.unflatten(1, (bins, bins))


def _chroma(images: Tensor) -> Tensor:
    """Of linear images (N, 3, H, W), how red and how blue they are against green: (2, N, H, W), 0 for gray."""
    return _squeezed(images.clamp(min=_DARKEST).log())


def _squeezed(logs: Tensor) -> Tensor:
    """Log RGB (N, 3, ...) to (2, N, ...), mostly within -1 and 1, with much room for what is nearly gray."""
    return torch.asinh(torch.stack([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 1]]) / _SOFT) / _REACH


def log_chroma(lights: Tensor) -> Tensor:
    """Of lights (..., 3): (..., 2), float64."""
    return lights.double().clamp(min=1e-6).log() @ CHROMA_AXES.to(lights.device, torch.float64)


def light_of_chroma(chroma: Tensor) -> Tensor:
    """And back, of norm 1; no two channels differ by more than a factor of 8."""
    log = chroma @ CHROMA_AXES.to(chroma).T
    reach = (log.amax(-1, keepdim=True) - log.amin(-1, keepdim=True)).clamp(min=1e-12)
    return F.normalize((log * (math.log(8) / reach).clamp(max=1)).exp(), dim=-1)
