"""Light: von Kries gains, random illuminants, and images seen under another light.

An illuminant is a gain for each channel of linear RGB: (N, 3) for light that is uniform over each image,
(N, 3, H, W) for light that varies. Whatever is random takes a `generator`; its numbers are drawn where the
generator lives and then moved, so one generator on the CPU gives the same light on every device.
"""

from lightfast.light._illuminants import random_illuminants, relight, spectral_gains, von_kries
from lightfast.light._varying import (
    LIGHT_KINDS,
    LightKind,
    VaryingLight,
    blobs_light,
    gradient_light,
    halves_light,
    log_gradient_light,
    shadow_light,
    varying_light,
)

__all__ = [
    "LIGHT_KINDS",
    "LightKind",
    "VaryingLight",
    "blobs_light",
    "gradient_light",
    "halves_light",
    "log_gradient_light",
    "random_illuminants",
    "relight",
    "shadow_light",
    "spectral_gains",
    "varying_light",
    "von_kries",
]
