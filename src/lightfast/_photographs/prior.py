"""When to leave a photograph as it is: what an estimate of its light means if a camera has balanced it already."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightfast._photographs.cast import CastReader, cast_reader, light_of_chroma, log_chroma

__all__ = ["likely_light"]


@torch.no_grad()
def likely_light(estimate: Tensor, pictures: Tensor, reader: CastReader | None = None) -> tuple[Tensor, float]:
    """The light (3,), of norm 1, to take out of a rendered picture, for an estimate (3,) of it, and its spread.

    Most pictures are right, or nearly so, and an estimator that follows every light cannot know it. A second opinion,
    :class:`~lightfast._photographs.cast.CastReader`, says how likely the picture is off, as the logarithm `l` of odds,
    and what its cast then is, `ĉ` in log chroma. With `c` the estimate in log chroma, the answer is
    `s (b ĉ + (1 - b) c)`; `s` goes smoothly from 0 to 1 as `l` goes from the one to the other end of the reader's
    `doubt`, and `b` is how much it is believed. No gain is more than 8 times another.

    Args:
        estimate: of the light.
        pictures: (1, 3, H, W), linear.
        reader: the packaged one by default.

    Returns:
        The light, and the error to expect of it, in degrees, if the picture is off at all.
    """
    reader = cast_reader() if reader is None else reader
    answer = reader(pictures)[0].double()
    low, high = reader.doubt
    sure = ((answer[3] - low) / (high - low)).clamp(0, 1)
    share = sure * sure * (3 - 2 * sure)
    chroma = reader.believed * answer[:2] + (1 - reader.believed) * log_chroma(estimate)
    # For small angles, log chroma is that between white and the relative light, times sqrt(3).
    spread = math.degrees(float(answer[2].exp())) / math.sqrt(3)
    return light_of_chroma(share * chroma), spread
