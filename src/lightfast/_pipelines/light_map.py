"""Light that differs over the picture: from a linear image of any size to a light for every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lightfast import models
from lightfast._pipelines.estimator import SceneEncoding
from lightfast._pipelines.pipeline import Pipeline
from lightfast.constancy._statistics import check_images

__all__ = ["LightMap"]


class LightMap(Pipeline):
    """A light for every pixel: linear images (N, 3, H, W) of any size to lights (N, 3, H, W), each of norm 1.

    `cerberus-local` with `places`: local answers, joined with their neighbors by confidence, then resampled to the
    image's pixels in log RGB. All weights sum to 1, so one light over the image is followed exactly.

    Args:
        size: to which images are resampled by area; both sides, whatever the shape.
        softness: see :class:`~lightfast._pipelines.estimator.SceneEncoding`.
        options: more arguments of the network.

    >>> import torch
    >>> LightMap()(torch.rand(2, 3, 40, 60)).shape
    torch.Size([2, 3, 40, 60])
    """

    output_name = "illuminants"
    dynamic_size = True

    def __init__(self, *, size: int = 64, softness: float = 0.01, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.encoding = SceneEncoding("log", size, softness)
        self.network = models.create("cerberus-local", places=True, **(options or {}))

    def forward(self, linear_images: Tensor, mask: Tensor | None = None) -> Tensor:
        """The lights; pixels that are 0 in all channels, or false in the mask (N, 1, H, W), count for nothing."""
        check_images(linear_images, mask)
        encoded, offset = self.encoding.encode(self.encoding.reduce(linear_images, mask))
        assert offset is not None
        logs = self.network(encoded).float() + offset[:, :, None, None]
        logs = F.interpolate(logs, linear_images.shape[2:], mode="bilinear", align_corners=False)
        return F.normalize((logs.amin(1, keepdim=True) - logs).exp(), dim=1)
