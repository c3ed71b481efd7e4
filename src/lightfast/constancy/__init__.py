"""Color constancy without labels: what color is the light, and the image without it.

An estimator takes linear images (N, 3, H, W) and an optional `mask` (N, 1, H, W), true where a pixel counts, and
gives illuminants (N, 3) of norm 1. :func:`balance_gains` says what takes them away, and :func:`correct` does.
"""

from lightfast.constancy._camera import LightPrior, pull_together
from lightfast.constancy._classical import CLASSICAL
from lightfast.constancy._correct import balance_gains, correct
from lightfast.constancy._edges import gray_edge, max_rgb, principal_color, white_patch
from lightfast.constancy._quasi_unsupervised import NeutralTask, QuasiUnsupervised
from lightfast.constancy._statistics import gray_world, shades_of_gray

__all__ = [
    "CLASSICAL",
    "LightPrior",
    "NeutralTask",
    "QuasiUnsupervised",
    "balance_gains",
    "correct",
    "gray_edge",
    "gray_world",
    "max_rgb",
    "principal_color",
    "pull_together",
    "shades_of_gray",
    "white_patch",
]
