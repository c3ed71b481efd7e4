"""When to leave a photograph as it is: what an estimate of its light means if a camera has balanced it already."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["SPREAD", "likely_light", "wrong_probability"]

SPREAD = 0.105
"""Of estimates about the truth in rendered pictures, in log chroma: the scale of a t distribution with 2 degrees.

Fitted by maximum likelihood to the packaged estimator on renders of scenes that it was not trained on; their cameras
are those of `lightfast reproduce photographs`, the scenes are not.
"""

# Of pictures that cameras have balanced, so many are nearly right. Casts of half of the others have this spread in log
# chroma; those of the other half are anything within a distance of 1.2.
_RIGHT, _CAST, _FAR = 0.95, 0.3, 1.2
# The largest ratio of two gains.
_LARGEST = 8.0


def wrong_probability(chroma: Tensor, spread: float = SPREAD) -> Tensor:
    """How likely a picture is wrong, given that its light was estimated as `chroma` (..., 2) from white, in log chroma.

    `P = (1 - r) w / ((1 - r) w + r t(chroma; s))`, with `r` the share of pictures that are right, `t(.; s)` the t
    distribution with 2 degrees of freedom and scale `s` in two dimensions, `s` the spread of estimates, and
    `w = (t(chroma; sqrt(s² + 0.3²)) + 1 / (1.2² π)) / 2` what casts are like.
    """
    squared = (chroma**2).sum(-1)
    right = _RIGHT * _density(squared, spread)
    wrong = (1 - _RIGHT) * (_density(squared, math.hypot(spread, _CAST)) + 1 / (_FAR**2 * math.pi)) / 2
    return wrong / (right + wrong)


def _density(squared: Tensor, scale: float) -> Tensor:
    return (1 + squared / (2 * scale**2)) ** -2 / (2 * math.pi * scale**2)


def likely_light(estimate: Tensor, spread: float = SPREAD) -> Tensor:
    """The light (3,), of norm 1, to take out of a rendered picture, for an estimate (3,) of it.

    In log chroma, `u = (log R/G, log B/G)`, the answer is the mean of what is known afterwards: 0 if the picture is
    right and `u` if it is wrong, so `P u`. No gain is more than 8 times another.

    >>> white = torch.full((3,), 3**-0.5)
    >>> torch.equal(likely_light(white), white)
    True
    """
    log = estimate.double().clamp(min=1e-6).log()
    # Differences of any two channels count alike.
    offset = log - log.mean()
    chroma = torch.stack([log[0] - log[1], log[2] - log[1]])
    tempered = wrong_probability(chroma, spread) * offset
    reach = float(tempered.max() - tempered.min())
    tempered = tempered * min(1.0, math.log(_LARGEST) / reach) if reach > 0 else tempered
    return torch.nn.functional.normalize(tempered.exp(), dim=0)
