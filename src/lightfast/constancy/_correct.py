"""White balance: the image as it would look under white light."""

from __future__ import annotations

import math

from torch import Tensor

from lightfast.light import von_kries

# Where an estimate says that there is no light at all in a channel, there is nothing to amplify but noise.
_DARKEST = 1e-4


def correct(linear_images: Tensor, illuminants: Tensor) -> Tensor:
    """The images without the color of their light: channel `c` divided by `sqrt(3) I_c`.

    White light of norm 1, `I_c = 1 / sqrt(3)`, changes nothing. Nothing is clipped.

    Args:
        linear_images: (N, 3, H, W), linear in light.
        illuminants: (N, 3), of norm 1.

    >>> import torch
    >>> light = torch.tensor([[0.8, 0.6, 0.0001]])
    >>> correct(light.reshape(1, 3, 1, 1), light).flatten()
    tensor([0.5774, 0.5774, 0.5774])
    """
    return von_kries(linear_images, 1 / (math.sqrt(3) * illuminants.clamp(min=_DARKEST)))
