"""When to leave a photograph as it is: what an estimate of its light means if a camera has balanced it already."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["SPREAD", "likely_light", "wrong_probability"]

SPREAD = 0.105
"""Of estimates about the truth in rendered pictures, in log chroma: the scale of a t distribution with 2 degrees.

Fitted once, by hand, by maximum likelihood to the packaged estimator on renders of scenes that it was not trained on.
Provisional: it is to be fitted by `lightfast reproduce photographs`, or replaced by the estimator's own confidence.
"""

# Of pictures that cameras have balanced, so many are nearly right. Casts of the others spread so far in log chroma from
# cold to warm and from green to magenta: cameras miss the temperature of the light more often than its tint, and what
# seems to lie much farther away is a picture of red doors or of the sea. Chosen by hand on a hundred renders and a few
# photographs, so likewise provisional.
_RIGHT, _WARM, _TINT = 0.93, 0.35, 0.2
# The largest ratio of two gains.
_LARGEST = 8.0


def wrong_probability(chroma: Tensor, spread: float = SPREAD) -> Tensor:
    """How likely a picture is wrong, given that its light was estimated as `chroma` (..., 2) from white, in log chroma.

    `P = (1 - r) n / ((1 - r) n + r t)`, with `r` the share of pictures that are right, `t` the density of the t
    distribution with 2 degrees of freedom and the spread of estimates as its scale, and `n` that of casts, a normal
    distribution along `log R/B` and across it, as wide as casts and estimates together.
    """
    warm, tint = (chroma[..., 0] - chroma[..., 1]) / math.sqrt(2), chroma.sum(-1) / math.sqrt(2)
    across, along = math.hypot(spread, _TINT), math.hypot(spread, _WARM)
    right = _RIGHT * (1 + (chroma**2).sum(-1) / (2 * spread**2)) ** -2 / spread**2
    cast = (-((warm / along) ** 2 + (tint / across) ** 2) / 2).exp() / (along * across)
    wrong = (1 - _RIGHT) * cast
    return wrong / (right + wrong)


def likely_light(estimate: Tensor, spread: float = SPREAD) -> Tensor:
    """The light (3,), of norm 1, to take out of a rendered picture, for an estimate (3,) of it.

    In log chroma, `u = (log R/G, log B/G)`, the answer is the mean of what is known afterwards: 0 if the picture is
    right and `u` if it is wrong, so `P u`. No gain is more than 8 times another.

    >>> white = torch.full((3,), 3**-0.5)
    >>> torch.allclose(likely_light(white).float(), white)
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
