"""Has a camera balanced this picture already, and if not, how far is it off? A small network that looks at its colors.

It knows pictures as cameras render them, and that most of what is white in them is neutral, so it does not follow the
light as estimators do, knowingly: what it is asked cannot be answered from colors relative to each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._pipelines.estimator import SceneEncoding
from lightfast._pipelines.pipeline import Pipeline
from lightfast._pipelines.saving import read_model

__all__ = ["CHROMA_AXES", "CastReader", "cast_reader", "chroma_maps", "light_of_chroma", "log_chroma"]

CHROMA_AXES = torch.tensor([[2**-0.5, -(6**-0.5)], [0.0, 2 * 6**-0.5], [-(2**-0.5), -(6**-0.5)]])
"""(3, 2), from log RGB to log chroma: red against blue, and green against both."""

_MAPS = 5
_SOFT, _REACH = 0.2, 2.8
_DARKEST = 1e-3


class CastReader(Pipeline):
    """Linear rendered pictures (N, 3, H, W) of any size to (N, 4): their cast, its spread, and whether there is one.

    The first two numbers are the cast in log chroma (:data:`CHROMA_AXES`), if there is one; the third the logarithm of
    how far it is from the truth in the mean; the last the logarithm of how likely it is that there is one, over how
    likely it is that there is none, where both are seen equally often.

    The network sees histograms of log chroma, not relative to any color: of all pixels, of the brightest 3 % and 20 %,
    of dark ones, and of differences between neighbors. Bins are narrow near gray, by `asinh`.

    Args:
        bins: along each axis of the histograms.
        doubt: the last number of pictures that are left as they are, and of those that are changed in full; between
            the two, in part. Fitted to pictures that were not trained on.
        believed: of a change, the share that is as this network says; the rest is as an estimator does. Likewise.

    >>> CastReader()(torch.rand(2, 3, 40, 60)).shape
    torch.Size([2, 4])
    """

    output_name = "cast"
    dynamic_size = True

    def __init__(self, *, bins: int = 32, doubt: Sequence[float] = (1.0, 2.0), believed: float = 0.5) -> None:
        super().__init__()
        self.doubt, self.believed = tuple(doubt), believed
        self.encoding = SceneEncoding("log", 64)
        self.network = _Reader(bins)

    def forward(self, linear_images: Tensor) -> Tensor:
        return self.network(self.maps(linear_images))

    def maps(self, linear_images: Tensor) -> Tensor:
        """What the network sees: (N, 5, bins, bins)."""
        return chroma_maps(self.encoding.reduce(linear_images), self.network.bins)

    def set_fit(self, doubt: Sequence[float], believed: float) -> None:
        """Other numbers for what follows from the answers: see the arguments."""
        self.doubt, self.believed = tuple(doubt), believed
        self.config |= {"doubt": list(doubt), "believed": believed}


@cache
def cast_reader() -> CastReader:
    """The trained one in the package."""
    reader: Any = read_model(Path(__file__).with_name("weights"), "cast")
    return reader


class _Reader(nn.Module):
    """(N, 5, bins, bins) to (N, 4): convolutions that halve the map, and two layers."""

    place: Tensor

    def __init__(self, bins: int, channels: tuple[int, ...] = (16, 24, 32, 32), hidden: int = 48) -> None:
        super().__init__()
        self.bins, side, inputs, layers = bins, bins, _MAPS + 2, []
        for outputs in channels:
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
            inputs, side = outputs, -(-side // 2)
        self.convolutions = nn.Sequential(*layers)
        self.answer = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(inputs * side * side, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, 4)
        )
        at = torch.linspace(-1, 1, bins)
        self.register_buffer("place", torch.stack(torch.meshgrid(at, at, indexing="ij")), persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        # Of a histogram, most bins hold next to nothing.
        seen = torch.cat([8 * maps.float(), self.place.expand(len(maps), -1, -1, -1)], 1)
        return self.answer(self.convolutions(seen).flatten(1))


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
    chroma = torch.stack([logs[:, 0] - logs[:, 1], logs[:, 2] - logs[:, 1]])
    at = ((torch.asinh(chroma / _SOFT) / _REACH + 1) * bins / 2 - 0.5).clamp(0, bins - 1 - 1e-3)
    low, share = at.floor().long(), at.frac()
    counts = weights.new_zeros(len(weights), bins * bins)
    for first, first_share in ((low[0], 1 - share[0]), (low[0] + 1, share[0])):
        for second, second_share in ((low[1], 1 - share[1]), (low[1] + 1, share[1])):
            counts.scatter_add_(1, first * bins + second, weights * first_share * second_share)
    counts = counts / counts.sum(1, keepdim=True).clamp(min=1e-6)
    return counts.unflatten(1, (bins, bins))


def log_chroma(lights: Tensor) -> Tensor:
    """Of lights (..., 3): (..., 2), float64."""
    return lights.double().clamp(min=1e-6).log() @ CHROMA_AXES.to(lights.device, torch.float64)


def light_of_chroma(chroma: Tensor) -> Tensor:
    """And back, of norm 1; no two channels differ by more than a factor of 8."""
    log = chroma @ CHROMA_AXES.to(chroma).T
    reach = (log.amax(-1, keepdim=True) - log.amin(-1, keepdim=True)).clamp(min=1e-12)
    return F.normalize((log * (math.log(8) / reach).clamp(max=1)).exp(), dim=-1)
