"""The light from statistics of an image's colors about their mean: the classical estimators, and how to weigh them.

Gray world, shades of gray, white patch and gray edge are each a statistic of an image. A small network learns how the
light follows from such statistics (as Cheng et al. 2015 do with regression trees). They are taken about the image's
mean color, so no light changes them, and the network's answer is relative to the mean color.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from lightfast.models._mean_color import about_mean_color
from lightfast.models._spread import log_spread_layer

_POWERS = (2, 4, 8, 16)
_EDGE_POWERS = (1, 2, 6)
_BRIGHTNESS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0)
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST_DEVIATIONS = 3.0


class ColorStatistics(nn.Module):
    """Two hidden layers on :func:`color_statistics`, each in deviations from its mean, and no more than 3 of them.

    What no training image had, another camera's images may have: the bound keeps the network from going on in a
    straight line there.

    Args:
        offset_groups: 3; statistics of colors have no conventional twin.
        hidden: width of both layers.
        dropout: share of what leaves them that is dropped in training.
        spread: also say how sure the answer is: a fourth output, the log of the reproduction error to expect, in
            degrees. It comes from what no offset changes.
        constrained: for the sake of other networks; there is nothing to constrain, as nothing but the mean color
            answers to offsets.

    Shapes: (N, 3, H, W) to (N, 3), or (N, 4) with a spread, for any H and W of at least 2.

    >>> ColorStatistics()(torch.rand(2, 3, 64, 48)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        offset_groups: int | None = 3,
        hidden: int = 96,
        dropout: float = 0.0,
        spread: bool = False,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        if offset_groups != 3:
            raise ValueError(f"statistics of colors have 3 groups, not {offset_groups}")
        features = color_statistics(torch.zeros(1, 3, 16, 16)).shape[1]
        self.norm = nn.BatchNorm1d(features, affine=False)
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout),
        )  # fmt: skip
        self.light = nn.Linear(hidden, 3)
        nn.init.normal_(self.light.weight, std=0.01)
        nn.init.zeros_(self.light.bias)
        self.spread = log_spread_layer(hidden) if spread else None

    def forward(self, images: Tensor) -> Tensor:
        z, mean_color = about_mean_color(images)[:2]
        assert mean_color is not None
        if min(z.shape[2:]) < 2:
            raise ValueError(f"neighbors are compared: images must have 2 x 2 pixels, but got {tuple(images.shape)}")
        statistics = color_statistics(z).to(self.light.weight.dtype)
        known = self.norm(statistics).clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)
        hidden = self.layers(known)
        light = mean_color + self.light(hidden).to(mean_color.dtype)
        return light if self.spread is None else torch.cat([light, self.spread(hidden).to(light.dtype)], 1)


def color_statistics(z: Tensor) -> Tensor:
    """Statistics (N, F) of images (N, 3, H, W) in log RGB about their mean color.

    Log chroma of power means of colors and of differences between neighbors, of the geometric mean, and of the mean
    of the darkest to the brightest pixels; quantiles, deviations and covariance of log chroma; the spread of
    brightness, and the share of pixels twice as bright as the mean.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    logs = -z.flatten(2)
    linear = logs.exp()
    brightness = linear.mean(1)
    red, blue = _chroma(logs).chunk(2, 1)
    statistics = [
        *(_chroma(_log_power_mean(logs, power)) for power in _POWERS),
        *(_chroma(_log_power_mean(_log_edges(z), power)) for power in _EDGE_POWERS),
        _chroma(logs.mean(2)),
        *_by_brightness(linear, brightness),
        *_quantiles(red.squeeze(1)),
        *_quantiles(blue.squeeze(1)),
        red.std(2),
        blue.std(2),
        ((red - red.mean(2, keepdim=True)) * (blue - blue.mean(2, keepdim=True))).mean(2),
        brightness.log1p().std(1, keepdim=True),
        (brightness > 2).to(z.dtype).mean(1, keepdim=True),
    ]
    return torch.cat(statistics, 1)


def _chroma(logs: Tensor) -> Tensor:
    """Log RGB (N, 3, ...) to `(r - g, b - g)`, (N, 2, ...)."""
    return logs[:, ::2] - logs[:, 1:2]


def _log_power_mean(logs: Tensor, power: float) -> Tensor:
    """`log (mean x^p)^(1/p)` of `x = exp(logs)`, (N, 3, P) to (N, 3)."""
    return ((power * logs).logsumexp(2) - math.log(logs.shape[2])) / power


def _log_edges(z: Tensor) -> Tensor:
    """The log of how much neighbors differ, in hundredths of the mean color, (N, 3, P)."""
    # In hundredths, since exporters to ONNX leave out an addition of 1e-8.
    x = 100 * (-z).exp()
    across, down = x[..., 1:, 1:] - x[..., 1:, :-1], x[..., 1:, 1:] - x[..., :-1, 1:]
    return (across.square() + down.square() + 1e-4).log().flatten(2) / 2


def _by_brightness(linear: Tensor, brightness: Tensor) -> list[Tensor]:
    """Log chroma of the mean of the pixels between two quantiles of brightness, for each pair of neighbors."""
    order = brightness.argsort(1)
    ordered, pixels = linear.gather(2, order[:, None].expand_as(linear)), order.shape[1]
    places = [min(int(share * pixels), pixels - 1) for share in _BRIGHTNESS[:-1]] + [pixels]
    return [
        _chroma(ordered[..., first : max(last, first + 1)].mean(2).clamp(min=1e-6).log())
        for first, last in pairwise(places)
    ]


def _quantiles(values: Tensor) -> list[Tensor]:
    """(N, P) to the quantiles, each (N, 1)."""
    ordered = values.sort(1).values
    return [ordered[:, place : place + 1] for place in (int(share * values.shape[1]) for share in _QUANTILES)]
