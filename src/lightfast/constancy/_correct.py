"""White balance: the image as it would look under white light."""

from __future__ import annotations

import math

from torch import Tensor

from lightfast.light import von_kries

# Of the strongest channel's light. Under such a light white paper has the value 25 of 255 in the weakest channel: an
# estimate is hardly better than that, and a larger gain would show noise and the steps of 8 bits.
_FLOOR = 0.01


def balance_gains(illuminants: Tensor, strength: float = 1.0) -> Tensor:
    """Gains of linear light that take the color of a light away: `(sqrt(3) max(I_c, 0.01 max I)) ** -strength`.

    White light of norm 1, `I_c = 1 / sqrt(3)`, has gains 1. No channel is amplified more than 100 times as much as the
    strongest: where next to no light is left there is nothing to amplify but noise.

    Args:
        illuminants: (N, 3), of norm 1.
        strength: how much of the color is taken away, from 0 to 1.

    Returns:
        Gains (N, 3), for :func:`lightfast.light.von_kries`.

    >>> import torch
    >>> balance_gains(torch.tensor([[0.8, 0.6, 0.0]])) * math.sqrt(3)
    tensor([[  1.2500,   1.6667, 125.0000]])
    """
    floor = _FLOOR * illuminants.amax(1, keepdim=True)
    return (math.sqrt(3) * illuminants.maximum(floor)) ** -strength


def correct(linear_images: Tensor, illuminants: Tensor) -> Tensor:
    """The images without the color of their light: each channel times its gain of :func:`balance_gains`.

    Nothing is clipped.

    Args:
        linear_images: (N, 3, H, W), linear in light.
        illuminants: (N, 3), of norm 1.

    >>> import torch
    >>> light = torch.tensor([[0.8, 0.59, 0.0995]])
    >>> correct(light.reshape(1, 3, 1, 1), light).flatten()
    tensor([0.5774, 0.5774, 0.5774])
    """
    return von_kries(linear_images, balance_gains(illuminants))
