"""The light from a histogram of log chroma about the mean color: convolutional color constancy, kept equivariant.

A change of light shifts the histogram of log chroma (Barron 2015; a U-Net on it is Afifi et al. 2021). Here the
histogram is taken about the image's mean color, so no light changes it, and the network's answer is relative to the
mean color. It sees which colors there are but not where, so it cannot learn scenes by heart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast.models._mean_color import about_mean_color
from lightfast.models._spread import log_spread_layer

_MAPS = 5


class ChromaHistogram(nn.Module):
    """Histograms of log chroma, a U-Net on them, and the mean place under the softmax of its map.

    With `z` the image in log RGB about its mean color, its chroma is `(z_r - z_g, z_b - z_g)`. There are histograms
    of pixels, of pixels weighed by the square of their brightness, and of differences between neighbors, weighed by
    their size; each is normalized, and its square root taken. Two more maps say where each bin lies. A color between
    bins counts for both in part, so the histograms, and the answer, are continuous.

    Args:
        offset_groups: 3; a histogram of colors has no conventional twin.
        bins: along each axis, a multiple of 2 to the number of `channels`, less 1.
        reach: the largest chroma; what lies beyond counts at the border.
        channels: of the U-Net, from fine to coarse.
        dropout: share of the coarsest features that is dropped in training.
        spread: also say how sure the answer is: a fourth output, the log of the reproduction error to expect, in
            degrees. It comes from what no offset changes.
        prior: made to answer with the prior of a camera, which its U-Net sees as well: a sixth map, flat without one.
        constrained: for the sake of other networks; there is nothing to constrain, as nothing but the mean color
            answers to offsets.

    Shapes: (N, 3, H, W) to (N, 3), or (N, 4) with a spread, for any H and W of at least 4.

    >>> ChromaHistogram()(torch.rand(2, 3, 64, 48)).shape
    torch.Size([2, 3])
    """

    centers: Tensor

    def __init__(
        self,
        offset_groups: int | None = 3,
        bins: int = 64,
        reach: float = 1.6,
        channels: Sequence[int] = (8, 16, 32, 64),
        dropout: float = 0.0,
        spread: bool = False,
        prior: bool = False,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        if offset_groups != 3:
            raise ValueError(f"a histogram of chroma is of colors, which have 3 groups, not {offset_groups}")
        if bins % 2 ** (len(channels) - 1):
            raise ValueError(f"{bins} bins cannot be halved {len(channels) - 1} times")
        self.bins, self.reach, self.sees_prior = bins, reach, prior
        self.register_buffer("centers", reach * (2 * (torch.arange(bins) + 0.5) / bins - 1), persistent=False)
        self.down = nn.ModuleList(_block(inputs, outputs) for inputs, outputs in pairwise((_MAPS + prior, *channels)))
        finer = list(pairwise(channels))[::-1]
        self.up = nn.ModuleList(_block(coarse + fine, fine) for fine, coarse in finer)
        self.dropout = nn.Dropout2d(dropout) if dropout else nn.Identity()
        self.place = nn.Conv2d(channels[0], 1, 1)
        nn.init.normal_(self.place.weight, std=0.01)
        self.spread = log_spread_layer(channels[-1] + 1) if spread else None

    def forward(self, images: Tensor, prior: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The lights; with a `prior` the mean of the posterior.

        A prior gives the log of its density, (N, P), at answers (N, P, 3). It is added to the map that the softmax is
        taken of, as by Bayes, and what comes of it no longer follows offsets.
        """
        z, mean_color = about_mean_color(images)[:2]
        assert mean_color is not None
        x, known = self._maps(z), self._known(mean_color, prior)
        if self.sees_prior:
            # Where nothing is known all lights are as likely, as with a density that is the same everywhere.
            flat = mean_color.new_zeros(len(z), self.bins**2)
            seen_of_it = self.bins / 4 * (flat if known is None else known).softmax(1).sqrt()
            x = torch.cat([x, seen_of_it.reshape_as(x[:, :1]).to(x.dtype)], 1)
        seen = []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2))
            seen.append(x)
        coarse = x = self.dropout(seen.pop())
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), seen.pop()], 1))
        score = self.place(x).flatten(1).to(mean_color.dtype)
        score = score if known is None else score + known
        centers = self.centers.to(score.dtype)
        likely = score.softmax(1).unflatten(1, (self.bins, self.bins))
        red, blue = (likely.sum(2) * centers).sum(1), (likely.sum(1) * centers).sum(1)
        light = mean_color + torch.stack([red, torch.zeros_like(red), blue], 1)
        if self.spread is None:
            return light
        # How wide the map is says most of how sure the network is.
        second = (likely.sum(2) * centers.square()).sum(1) + (likely.sum(1) * centers.square()).sum(1)
        width = (second - red.square() - blue.square()).clamp(min=1e-4).log()[:, None].to(coarse.dtype)
        return torch.cat([light, self.spread(torch.cat([coarse.mean((2, 3)), width], 1)).to(light.dtype)], 1)

    def _known(self, mean_color: Tensor, prior: Callable[[Tensor], Tensor] | None) -> Tensor | None:
        """What the prior says of each bin, (N, bins * bins)."""
        if prior is None:
            return None
        red, blue = torch.meshgrid(self.centers, self.centers, indexing="ij")
        bins = torch.stack([red, torch.zeros_like(red), blue], 2).flatten(0, 1).to(mean_color.dtype)
        return prior(mean_color[:, None] + bins)

    def _maps(self, z: Tensor) -> Tensor:
        """What the U-Net sees, (N, 5, bins, bins), of images about their mean color."""
        linear = F.avg_pool2d((-z).exp(), 2)
        across, down = linear[..., 1:, 1:] - linear[..., 1:, :-1], linear[..., 1:, 1:] - linear[..., :-1, 1:]
        # Below a thousandth of the mean color a difference is noise, and has no chroma.
        differences = (across.square() + down.square() + 1e-6).sqrt()
        brightness, size = linear.mean(1).flatten(1), differences.mean(1).flatten(1)
        colors, edges = -linear.log().flatten(2), -differences.log().flatten(2)
        histograms = [
            self._histogram(colors, torch.ones_like(brightness)),
            self._histogram(colors, brightness.square()),
            self._histogram(edges, size),
        ]
        where = (self.centers / self.reach).to(z.dtype).expand(z.shape[0], self.bins, self.bins)
        # The square root has no gradient at 0, where most bins are. Of counts in ten thousand, since exporters to ONNX
        # leave out an addition of 1e-8.
        roots = [self.bins / 400 * (1e4 * part + 1e-4).sqrt() for part in histograms]
        return torch.stack([*roots, where.mT, where], 1)

    def _histogram(self, colors: Tensor, weights: Tensor) -> Tensor:
        """Of chroma: colors (N, 3, P) in log RGB with weights (N, P) to (N, bins, bins), which sum to 1."""
        red, green, blue = colors.unbind(1)
        weighed = self._shares(blue - green) * weights[..., None]
        counts = self._shares(red - green).mT @ weighed
        return counts / counts.sum((1, 2), keepdim=True).clamp(min=1e-6)

    def _shares(self, chroma: Tensor) -> Tensor:
        """How much each of the bins gets of a value: (N, P) to (N, P, bins), at most two of which are not 0."""
        centers = self.centers.to(chroma.dtype)
        last = self.reach * (1 - 1 / self.bins)
        inside = chroma.clamp(-last, last)[..., None]
        return (1 - (inside - centers).abs() * (self.bins / (2 * self.reach))).clamp(min=0)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)
