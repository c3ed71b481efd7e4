"""What is known of one camera: which lights it meets how often, measured or found from estimates of them."""

from __future__ import annotations

import math
from itertools import repeat

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST = 4
"""Photographs that say something of their camera."""

_MOST_PLACES = 1024
_ROUNDS = 30
_NARROWEST = 0.02
_UNKNOWN = 0.1
_LEAST = 1e-9
_MOST_AT_ONCE = 2**23
_RED, _GREEN = 2**-0.5, 6**-0.5
_WIDTH = 0.06
"""Of a light: what was best on data sets that were not trained on (`width` in results/illuminant/leave-one-set-out)."""

_DEGREES = math.sqrt(3) * math.sqrt(2 / math.pi) / math.degrees(1)
"""From the mean of a reproduction angle, in degrees, to the standard deviation of each component of log chroma.

For small angles log chroma is `sqrt(3)` times the angle; the mean distance of a Gaussian is `sqrt(π / 2)` deviations.
"""


def pull_together(lights: Tensor, spread: Tensor, width: float = _WIDTH) -> Tensor:
    """Estimates of the lights of one camera, each pulled to where all of them together say that its lights are.

    The same few kinds of light come back in the photographs of a camera, and lie close to a curve in log chroma. Their
    density is found from the estimates, as the one whose lights, each off by its own error, most likely gave these
    estimates (see :meth:`LightPrior.from_estimates`). It then is the prior of each: empirical Bayes (Robbins 1956).
    ``Estimator.for_camera`` does the same with the prior inside its networks, where it is worth more.

    Args:
        lights: (N, 3), of norm 1; fewer than four are left as they are.
        spread: (N,), the error to expect of each, in degrees: the sure ones hardly move.
        width: of the Gaussians that make up the density, in log chroma.

    Returns:
        (N, 3), of norm 1. If all lights are multiplied by the same color, so are these.

    >>> lights = F.normalize(torch.rand(20, 3) + 0.5)
    >>> pulled = pull_together(lights, torch.full((20,), 3.0))
    >>> pulled.shape, bool((pulled - lights).abs().max() > 0)
    (torch.Size([20, 3]), True)
    """
    if len(lights) < FEWEST:
        return lights
    return LightPrior.from_estimates(lights, spread, width)(lights, spread)


class LightPrior:
    """Which lights a known camera meets: a density in log chroma, to be multiplied onto estimates.

    A mean of Gaussians, one about each measured light, and a wide one for the light that was not measured yet, which
    counts as one of them (Laplace). The answer is the mean of the posterior: with `x` the estimate and `σ` its standard
    deviation, the Gaussian about `μ_k` of standard deviation `h_k` and share `π_k` counts by
    `π_k N(x; μ_k, h_k² + σ²)`, and puts the light at `(σ² μ_k + h_k² x) / (σ² + h_k²)`.

    Estimates with a prior no longer follow the light: what lies beside all that the camera met is doubted. That is what
    a prior is for, and the exact equivariance of the estimator is given up knowingly.

    Args:
        lights: (K, 3), measured with this camera: those of a gray card in a dozen places or more. Or (N, K, 3), for
            estimates of N cameras.
        width: `h`, in log chroma; by default each light's distance to the nearest other one (Breiman et al. 1977).

    >>> daylight = torch.tensor([[0.4, 0.8, 0.5], [0.45, 0.8, 0.45], [0.5, 0.8, 0.4]])
    >>> prior = LightPrior(daylight)
    >>> estimate = F.normalize(torch.tensor([[0.6, 0.6, 0.6]]))
    >>> sure, unsure = (prior(estimate, torch.tensor([spread])) for spread in (0.1, 5.0))
    >>> bool((sure - estimate).norm() < (unsure - estimate).norm())
    True
    """

    def __init__(self, lights: Tensor, width: float | None = None) -> None:
        if lights.ndim not in (2, 3) or lights.shape[-1] != 3 or lights.shape[-2] < 2:
            raise ValueError(f"a prior is made from at least two lights (K, 3), but got {tuple(lights.shape)}")
        chroma = _chroma(lights)
        if width is None:
            distance = (chroma[..., None, :] - chroma[..., None, :, :]).square().sum(-1)
            own = torch.eye(chroma.shape[-2], dtype=torch.bool, device=chroma.device)
            widths = distance.masked_fill(own, torch.inf).amin(-1).sqrt().clamp(min=_NARROWEST)
        else:
            widths = torch.full_like(chroma[..., 0], width)
        unknown = (4 * chroma.var(-2).sum(-1, keepdim=True) + _UNKNOWN**2).sqrt()
        self._set(torch.cat([chroma, chroma.mean(-2, keepdim=True)], -2), torch.cat([widths, unknown], -1))

    def _set(self, chroma: Tensor, widths: Tensor, shares: Tensor | None = None) -> LightPrior:
        self.chroma, self.widths = chroma, widths
        self.shares = torch.full_like(widths, 1 / widths.shape[-1]) if shares is None else shares
        return self

    @classmethod
    def from_estimates(cls, lights: Tensor, spread: Tensor, width: float = _WIDTH) -> LightPrior:
        """The prior of a camera none of whose lights is measured, from estimates (N, 3) and their errors (N,), degrees.

        The Gaussians are about the estimates themselves, about a thousand of them at most. Their shares are those of
        the greatest likelihood, by expectation maximization: `π_k <- π_k mean_i N_ik / Σ_l π_l N_il`, with `N_ik` as
        above. So where estimates are blurred by their errors, the density is not. A color that multiplies all
        estimates moves the density with them.
        """
        if not len(lights):
            raise ValueError("no light at all says nothing of a camera: give estimates (N, 3) of at least one")
        places = _chroma(lights[:: -(-len(lights) // _MOST_PLACES)])
        prior = cls.__new__(cls)._set(places, places.new_full((len(places),), width))
        near = prior._near(_chroma(lights), _variance(spread))
        for _ in range(_ROUNDS):
            prior.shares = prior.shares * (near.T @ (near @ prior.shares).reciprocal()) / len(near)
        return prior

    def to(self, device: torch.device | str) -> LightPrior:
        """The same on another device."""
        return LightPrior.__new__(LightPrior)._set(*(part.to(device) for part in self._parts))

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.chroma, self.widths, self.shares

    def log_density(self, logs: Tensor) -> Tensor:
        """The log of the density, but for a constant, at lights (N, P, 3) given by their log RGB, (N, P).

        Computed in float32 at least, under autocast too; distances are of coordinates about the middle of the lights.
        """
        middle = self.chroma.mean(-2, keepdim=True)
        kind = {"dtype": torch.promote_types(logs.dtype, torch.float32), "device": logs.device}
        x = _axes(logs.to(**kind)) - middle.to(**kind)
        chroma, widths, shares = (part.to(**kind) for part in (self.chroma - middle, self.widths, self.shares))
        precision = widths.square().reciprocal()
        heights = shares * precision

        def summed(x: Tensor, chroma: Tensor, precision: Tensor, heights: Tensor) -> Tensor:
            # In products of matrices, as there are many places and Gaussians.
            distance = x.square().sum(-1, keepdim=True) + chroma.square().sum(-1)[..., None, :] - 2 * x @ chroma.mT
            near = (-0.5 * distance.clamp(min=0) * precision[..., None, :]).exp()
            return (near @ heights[..., None]).squeeze(-1)

        images = max(1, _MOST_AT_ONCE // (logs.shape[1] * widths.shape[-1]))
        places = x.split(images)
        each = (
            part.split(images) if self.chroma.ndim > 2 else repeat(part, len(places))
            for part in (chroma, precision, heights)
        )
        with torch.autocast(logs.device.type, enabled=False):
            parts = [summed(*of_camera) for of_camera in zip(places, *each, strict=True)]
        return torch.cat(parts).clamp(min=_LEAST).log()

    def posterior(self, lights: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates (N, 3), of norm 1, with the error to expect of each in degrees, (N,); both with the prior."""
        x, variance = _chroma(lights), _variance(spread)
        chroma, widths, shares = (part.to(x.device) for part in self._parts)
        counts = F.normalize(self._near(x, variance) * shares, p=1, dim=1)
        # Each Gaussian's answer is between its center and the estimate.
        own = widths.square() / (variance + widths.square())
        answers = torch.lerp(chroma, x[:, None], own[..., None])
        mean = (counts[..., None] * answers).sum(1)
        each = variance * own + (answers - mean[:, None]).square().sum(2) / 2
        expected = (counts * each).sum(1).sqrt() / _DEGREES
        return _light(mean).to(lights), expected.to(spread)

    def __call__(self, lights: Tensor, spread: Tensor) -> Tensor:
        """The first of :meth:`posterior`: estimates (N, 3) with the prior."""
        return self.posterior(lights, spread)[0]

    def _near(self, x: Tensor, variance: Tensor) -> Tensor:
        """`N(x_i; μ_k, h_k² + σ_i²)`, (N, K), each row relative to its largest; x is (N, 2), the variance (N, 1)."""
        chroma, widths, _ = (part.to(x.device) for part in self._parts)
        total = variance + widths.square()
        log = -(x[:, None] - chroma).square().sum(2) / (2 * total) - total.log()
        return (log - log.amax(1, keepdim=True)).exp()


def _variance(spread: Tensor) -> Tensor:
    """Expected errors (N,) in degrees to variances of each component of log chroma, (N, 1)."""
    return (spread.double() * _DEGREES).square()[:, None]


def _chroma(lights: Tensor) -> Tensor:
    """Lights (N, 3) to log chroma (N, 2): see :func:`_axes`."""
    return _axes(lights.double().clamp(min=1e-12).log())


def _axes(logs: Tensor) -> Tensor:
    """Log RGB (..., 3) to orthonormal coordinates (..., 2) of it less its mean: red and blue, green and both."""
    red, green, blue = logs.unbind(-1)
    return torch.stack([_RED * (red - blue), _GREEN * (2 * green - red - blue)], -1)


def _light(chroma: Tensor) -> Tensor:
    """And back, (N, 2) to (N, 3) of norm 1."""
    red, green = (_RED * chroma[:, 0], _GREEN * chroma[:, 1])
    return F.normalize(torch.stack([red - green, 2 * green, -red - green], 1).exp(), dim=1)
