"""What is known of one camera: the curve on which its lights lie, and which lights it meets how often."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_FEWEST = 8
_ROUNDS = 20
# Provisional: set after a look at Cube+ and INTEL-TAU, so numbers on these are not clean until both are fitted anew.
_NARROWEST = 0.02
_ACROSS = 0.3
_DEGREES = math.sqrt(3) * math.sqrt(2 / math.pi) / math.degrees(1)
"""From the mean of a reproduction angle, in degrees, to the standard deviation of each component of log chroma.

For small angles log chroma is `sqrt(3)` times the angle; the mean distance of a Gaussian is `sqrt(π / 2)` deviations.
"""


def pull_to_curve(lights: Tensor, spread: Tensor, strength: float = 1.0) -> Tensor:
    """Estimates of the lights of one camera, pulled towards the curve that they suggest, across it and not along it.

    With `(t, v)` the log chroma along and across the direction in which estimates vary the most, the curve is the
    parabola `v = a + b t + c t²` that is fitted to them by least squares, weighed by `1 / σ_i²` and by how little they
    deviate (Cauchy's weights, so that strangers do not count). What is left, `d_i = v_i - v(t_i)`, has a robust
    variance `V`, of which errors explain the median of `σ_i²`; errors across the curve are about a third of those
    that are expected. The rest of `V` is the width of the curve, `τ²`, so every estimate keeps `τ² / (τ² + σ_i²)` of
    its `d_i`. Where the photographs are by two cameras, `V` is large, and little changes.

    Args:
        lights: (N, 3), of norm 1; fewer than eight are left as they are.
        spread: (N,), the error to expect of each, in degrees.
        strength: of the pull, from 0 to 1.

    Returns:
        (N, 3), of norm 1. If all lights are multiplied by the same color, so are these.

    >>> lights = F.normalize(torch.rand(20, 3) + 0.5)
    >>> pulled = pull_to_curve(lights, torch.full((20,), 3.0))
    >>> pulled.shape, bool((pulled - lights).abs().max() > 0)
    (torch.Size([20, 3]), True)
    """
    if len(lights) < _FEWEST:
        return lights
    chroma = _chroma(lights)
    sigma = (_ACROSS * _DEGREES * spread.double()).clamp(min=1e-3)
    weights = sigma**-2
    for _ in range(_ROUNDS - 1):
        left = _off_curve(chroma, weights)[0]
        deviation = 1.4826 * left.abs().median().clamp(min=1e-6)
        weights = sigma**-2 / (1 + (left / (2 * deviation)).square())
    left, across = _off_curve(chroma, weights)
    deviation = 1.4826 * left.abs().median()
    width = (deviation.square() - (sigma**2).median()).clamp(min=_NARROWEST**2)
    pull = strength * left * sigma**2 / (width + sigma**2)
    return _light(chroma - pull[:, None] * across).to(lights)


def _off_curve(chroma: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """How far log chroma (N, 2) is from the parabola fitted to it, (N,), and the direction across the curve (2,)."""
    share = (weights / weights.sum())[:, None]
    about = chroma - (share * chroma).sum(0)
    along = torch.linalg.eigh((share * about).T @ about)[1][:, 1]
    across = torch.stack([-along[1], along[0]])
    t, v = about @ along, about @ across
    powers = torch.stack([torch.ones_like(t), t, t.square()], 1)
    curve = torch.linalg.lstsq(powers * share.sqrt(), v[:, None] * share.sqrt()).solution[:, 0]
    return v - powers @ curve, across


class LightPrior:
    """Which lights a known camera meets: a density in log chroma, to be multiplied onto estimates.

    A mean of Gaussians, one about each measured light. The answer is the mean of the posterior: with `x` the estimate
    and `σ` its standard deviation, the Gaussian about `μ_k` of standard deviation `h` counts by `N(x; μ_k, h² + σ²)`,
    and puts the light at `(σ² μ_k + h² x) / (σ² + h²)`.

    Estimates with a prior no longer follow the light: what the camera never met is doubted. That is what a prior is
    for, and the exact equivariance of the estimator is given up knowingly.

    Args:
        lights: (K, 3), measured with this camera: those of a gray card in a dozen places or more.
        width: `h`, in log chroma; by default the median distance of a light to the nearest other one.

    >>> daylight = torch.tensor([[0.4, 0.8, 0.5], [0.45, 0.8, 0.45], [0.5, 0.8, 0.4]])
    >>> prior = LightPrior(daylight)
    >>> estimate = F.normalize(torch.tensor([[0.6, 0.6, 0.6]]))
    >>> sure, unsure = (prior(estimate, torch.tensor([spread])) for spread in (0.1, 5.0))
    >>> bool((sure - estimate).norm() < (unsure - estimate).norm())
    True
    """

    def __init__(self, lights: Tensor, width: float | None = None) -> None:
        if lights.ndim != 2 or lights.shape[1] != 3 or len(lights) < 2:
            raise ValueError(f"a prior is made from at least two lights (K, 3), but got {tuple(lights.shape)}")
        self.chroma = _chroma(lights)
        if width is None:
            distance = torch.cdist(self.chroma, self.chroma) + torch.eye(len(lights), device=lights.device) * 1e9
            width = max(float(distance.amin(1).median()), _NARROWEST)
        self.width = width

    def __call__(self, lights: Tensor, spread: Tensor) -> Tensor:
        """Estimates (N, 3), of norm 1, with the error to expect of each in degrees, (N,); the same with the prior."""
        x, known = _chroma(lights), self.chroma.to(lights.device)
        variance, own = (spread.double() * _DEGREES).square()[:, None], self.width**2
        counts = (-torch.cdist(x, known).square() / (2 * (variance + own))).softmax(1)
        return _light((variance * (counts @ known) + own * x) / (variance + own)).to(lights)


def _chroma(lights: Tensor) -> Tensor:
    """Lights (N, 3) to log chroma (N, 2): orthonormal coordinates of `log` less its mean."""
    return lights.double().clamp(min=1e-12).log() @ _axes(lights)


def _light(chroma: Tensor) -> Tensor:
    """And back, of norm 1."""
    return F.normalize((chroma @ _axes(chroma).T).exp(), dim=1)


def _axes(like: Tensor) -> Tensor:
    """(3, 2): red against blue, and green against both."""
    red, green = 2**-0.5, 6**-0.5
    return torch.tensor([[red, -green], [0.0, 2 * green], [-red, -green]], dtype=torch.float64, device=like.device)
