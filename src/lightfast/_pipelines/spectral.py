"""Classifiers of spectral cubes, of any number of bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from lightfast import models
from lightfast._pipelines.pipeline import Pipeline
from lightfast._wrap import wrap
from lightfast.color import ChannelNorm, linear_to_log

__all__ = ["SpectralClassifier"]


class SpectralClassifier(Pipeline):
    """From a cube that is linear in light to scores, where each band may be a group of its own.

    Args:
        classes: names.
        mean: of `log(1/x)` in each band.
        std: its standard deviation.
        kind: `conventional`; `wrapped`, the same network on the cube without the mean of each band in log; or
            `equivariant`.
        constrained: whether the weights of an equivariant network meet the paper's constraint.
        widths: features per band, in each block.
        per_pixel: whether there are scores for each pixel. With 1x1 convolutions from one feature per band, the
            constraint leaves nothing to learn, so such a network is not constrained.

    Shapes: (N, bands, H, W) above 0 to (N, classes), or to (N, classes, H, W).
    """

    input_names = ("cubes",)
    output_name = "scores"

    def __init__(
        self,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        kind: Literal["conventional", "wrapped", "equivariant"] = "equivariant",
        constrained: bool = True,
        widths: Sequence[int] = (2, 4, 8),
        per_pixel: bool = False,
    ) -> None:
        super().__init__()
        if per_pixel and constrained and kind == "equivariant":
            raise ValueError(
                "1x1 convolutions that meet the constraint can only copy a band that is a group of its own: "
                "use constrained=False"
            )
        self.classes, self.norm = list(classes), ChannelNorm(mean, std)
        bands = len(self.norm.mean)
        groups = bands if kind == "equivariant" else None
        network = models.create(
            "spectral", groups, len(classes), constrained=constrained, bands=bands, widths=widths, per_pixel=per_pixel
        )
        self.network = wrap(network, bands) if kind == "wrapped" else network

    def encode(self, cubes: Tensor) -> Tensor:
        """What the network sees: normalized `log(1/x)`, in which a change of light is an offset per band."""
        return self.norm(linear_to_log(cubes))

    def forward(self, cubes: Tensor) -> Tensor:
        return self.network(self.encode(cubes))
