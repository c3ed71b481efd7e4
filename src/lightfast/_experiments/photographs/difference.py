"""Differences of color as people see them: CIEDE2000."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightfast.color import SRGB_TO_XYZ, srgb_to_linear

__all__ = ["delta_e", "lab"]


def lab(srgb: Tensor) -> Tensor:
    """CIE L*a*b* under D65, of sRGB in [0, 1]; colors along dim 1."""
    to_xyz = torch.tensor(SRGB_TO_XYZ, dtype=srgb.dtype, device=srgb.device)
    xyz = torch.einsum("ij,nj...->ni...", to_xyz, srgb_to_linear(srgb))
    white = to_xyz.sum(1).view(1, 3, *[1] * (srgb.ndim - 2))
    x = xyz / white
    f = torch.where(x > (6 / 29) ** 3, x.clamp(min=1e-9) ** (1 / 3), x / (3 * (6 / 29) ** 2) + 4 / 29)
    return torch.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def delta_e(first: Tensor, second: Tensor) -> Tensor:
    """CIEDE2000 (Sharma, Wu and Dalal 2005) of two L*a*b* maps, colors along dim 1: without that dim.

    >>> a = torch.tensor([[50.0, 2.6772, -79.7751]], dtype=torch.float64)
    >>> b = torch.tensor([[50.0, 0.0, -82.7485]], dtype=torch.float64)
    >>> round(float(delta_e(a, b)), 4)
    2.0425
    """
    (l1, a1, b1), (l2, a2, b2) = first.unbind(1), second.unbind(1)
    mean7 = ((torch.hypot(a1, b1) + torch.hypot(a2, b2)) / 2) ** 7
    g = 0.5 * (1 - (mean7 / (mean7 + 25.0**7)).sqrt())
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = torch.hypot(a1, b1), torch.hypot(a2, b2)
    h1, h2 = (torch.atan2(b, a) % (2 * math.pi) for a, b in ((a1, b1), (a2, b2)))
    colored = c1 * c2 > 0
    apart = torch.where(colored, (h2 - h1 + math.pi) % (2 * math.pi) - math.pi, 0.0)
    d_hue = 2 * (c1 * c2).sqrt() * (apart / 2).sin()
    hue = torch.where(colored, (h1 + apart / 2) % (2 * math.pi), h1 + h2)
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    degrees = math.pi / 180
    t = (
        1
        - 0.17 * (hue - 30 * degrees).cos()
        + 0.24 * (2 * hue).cos()
        + 0.32 * (3 * hue + 6 * degrees).cos()
        - 0.20 * (4 * hue - 63 * degrees).cos()
    )
    turn = 60 * degrees * (-(((hue / degrees - 275) / 25) ** 2)).exp()
    chroma7 = chroma**7
    rotation = -2 * (chroma7 / (chroma7 + 25.0**7)).sqrt() * turn.sin()
    s_l = 1 + 0.015 * (light - 50) ** 2 / (20 + (light - 50) ** 2).sqrt()
    s_c, s_h = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    dl, dc, dh = (l2 - l1) / s_l, (c2 - c1) / s_c, d_hue / s_h
    return (dl**2 + dc**2 + dh**2 + rotation * dc * dh).clamp(min=0).sqrt()
