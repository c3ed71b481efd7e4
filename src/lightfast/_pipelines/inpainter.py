"""Inpainting in one module: from an image with missing pixels to the whole image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast import models
from lightfast._pipelines.pipeline import Pipeline
from lightfast.color import linear_to_srgb, log_to_linear, srgb_to_linear
from lightfast.fields import field_map, log_level, project_field

__all__ = ["HoleEncoding", "Inpainter", "InpainterColor", "Taken", "center_mask"]

InpainterColor = Literal["srgb", "log"]
SIZE = 128
"""Height and width of the images that the networks see."""

CENTER = slice(SIZE // 4, 3 * SIZE // 4)
"""Rows and columns of the middle, which the networks answer with."""

OVERLAP = 7
"""How many pixels of the middle, at its border, are seen in the images that networks are trained on."""


def center_mask(overlap: int = OVERLAP) -> Tensor:
    """The hole of Pathak et al. 2016, (1, 1, 128, 128) and true where pixels are missing: the middle but its border.

    >>> int(center_mask().sum()) == 50 * 50
    True
    """
    mask = torch.zeros(1, 1, SIZE, SIZE, dtype=torch.bool)
    hole = slice(CENTER.start + overlap, CENTER.stop - overlap)
    mask[:, :, hole, hole] = True
    return mask


class Taken(NamedTuple):
    """What is taken out of an image before a network sees it, and belongs to its answer.

    (N, 3, 1, 1) each, or where it varies over the image (N, 3, H, W).

    Attributes:
        mean: of each channel in log RGB; 0 where it is left in.
        floor: of linear light, which is added before the logarithm.
    """

    mean: Tensor
    floor: Tensor


class HoleEncoding(nn.Module):
    """From images with missing pixels to what a network sees, and from its answer back to linear light.

    `srgb`: values in [-1, 1], `2 x - 1`. `log`: `log(1 / (x_c + s m_c))`, with `x` linear, `m_c` the mean of channel
    `c` over the visible pixels, and `s` the softness. A gain `a_c` of the light takes this to itself less `log a_c` for
    every `x`, black included: light of any saturation below 1 is an exact offset. Softness keeps the noise of dark
    pixels from being stretched by the logarithm. The answer `y` means the same, `exp(-y) - s m_c` in linear light; or,
    without the floor, `exp(-y)`, which is easier to learn where softness is large.

    With a `field`, the mean is the projection of the visible pixels onto it, and `m_c` varies over the image as
    :func:`lightfast.fields.log_level` does, so that gains that are the exponential of a field are exact offsets.

    Missing pixels count for nothing, whatever they hold. They are filled with the mean of the visible ones in the
    color space that the network sees, which follows the light as they do.

    Args:
        color: what the network sees: `srgb` or `log` RGB.
        softness: for log RGB.
        centered: give each channel less that mean, and add it to the answer: for a conventional network on log RGB.
        floor: whether answers in log RGB have the floor `s m_c` that the input has.
        field: how light in log RGB may vary over the image: 0 for not, 1 as a plane, 2 as a quadratic.
    """

    def __init__(
        self,
        color: InpainterColor = "log",
        softness: float = 0.02,
        centered: bool = False,
        floor: bool = True,
        field: int = 0,
    ) -> None:
        super().__init__()
        if color not in ("srgb", "log"):
            raise ValueError(f"an inpainter sees srgb or log colors, not {color!r}")
        if not softness > 0:
            raise ValueError(f"softness must be above 0, since black has no logarithm; got {softness}")
        if field != 0 and color != "log":
            raise ValueError("a field of light is an offset in log RGB alone: use color='log'")
        self.color, self.softness, self.centered, self.floor = color, softness, centered, floor
        self.field = field

    def encode(self, images: Tensor, missing: Tensor) -> tuple[Tensor, Taken]:
        """What the network sees, (N, 3, H, W), from sRGB images and a boolean mask, and what :meth:`decode` needs."""
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        seen = (~missing).to(wide.dtype)
        share = seen / seen.sum((2, 3), keepdim=True).clamp(min=1)
        wide = torch.where(missing, 0.0, wide)
        if self.color == "srgb":
            mean = (wide * share).sum((2, 3), keepdim=True)
            return 2 * torch.where(missing, mean, wide) - 1, Taken(torch.zeros_like(mean), torch.zeros_like(mean))
        linear = srgb_to_linear(wide.clamp(min=0))
        if self.field == 0:
            # A channel without any light has a floor too, far below the first step of any image.
            floor = self.softness * (linear * share).sum((2, 3), keepdim=True).clamp(min=1e-12)
            log = -(linear + floor).log()
            mean = (log * share).sum((2, 3), keepdim=True)
        else:
            size = images.shape[2:]
            floor = self.softness * field_map(log_level(linear, self.field, seen), self.field, size).exp()
            log = -(linear + floor).log()
            mean = field_map(project_field(log, 3, self.field, seen), self.field, size)
        log = torch.where(missing, mean, log)
        floor = floor if self.floor else torch.zeros_like(floor)
        return (log - mean, Taken(mean, floor)) if self.centered else (log, Taken(torch.zeros_like(mean), floor))

    def decode(self, answer: Tensor, taken: Taken) -> Tensor:
        """Linear light from a network's answer, of the same shape; not clipped: it may be above 1, or just below 0."""
        if self.color == "srgb":
            return srgb_to_linear((answer + 1) / 2)
        return log_to_linear(answer + _at(taken.mean, answer)) - _at(taken.floor, answer)

    def extra_repr(self) -> str:
        return f"{self.color!r}, softness={self.softness}, centered={self.centered}, field={self.field}"


def _at(values: Tensor, answer: Tensor) -> Tensor:
    """What was taken, where an answer is: everywhere, or in the middle."""
    is_middle = values.shape[2] == SIZE and answer.shape[2] < SIZE
    return values[:, :, CENTER, CENTER] if is_middle else values


class Inpainter(Pipeline):
    """Missing pixels filled in, in one module: sRGB images in [0, 1] and a mask to whole images.

    Images are (N, 3, 128, 128), and the mask is (N, 1, 128, 128) or (1, 1, 128, 128), nonzero where pixels are missing.
    What missing pixels hold, NaN too, does not matter; the others come back as they are, bit by bit. The network
    answers for the middle, 64x64; pixels that are missing outside of it get the mean color of what is seen.

    Args:
        network: `context-encoder` or `context-encoder-slim`, as :func:`lightfast.models.create` knows them.
        offset_groups: 3 for the equivariant network, None for the conventional one. A conventional network on log RGB
            is wrapped: it sees each channel less its mean, which is added to its answer.
        color: what the network sees: `srgb` (and its answer ends in tanh), or `log` RGB.
        softness: see :class:`HoleEncoding`.
        floor: likewise.
        constrained: whether the equivariant network's weights meet the paper's constraint.
        field: how light may vary over the image and is still followed exactly: in log RGB as a plane (1) or a
            quadratic (2); 0 for light that is the same everywhere.
        options: more arguments of the network.

    Attributes:
        encoding: the :class:`HoleEncoding`.
        network: the network.
        config: what the pipeline is made from.

    >>> inpainter = Inpainter("context-encoder-slim").eval()
    >>> images = torch.rand(2, 3, 128, 128)
    >>> with torch.no_grad():
    ...     filled = inpainter(images, center_mask())
    >>> torch.equal(filled[:, :, :39], images[:, :, :39])
    True
    """

    input_names = ("images", "mask")
    output_name = "filled"
    hub_task = "image-to-image"
    middle: Tensor

    def __init__(
        self,
        network: str = "context-encoder",
        *,
        offset_groups: int | None = 3,
        color: InpainterColor = "log",
        softness: float = 0.02,
        floor: bool = True,
        constrained: bool = True,
        field: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if network not in models.INPAINTERS:
            raise ValueError(f"there is no inpainting network {network!r}; there are {', '.join(models.INPAINTERS)}")
        if offset_groups is not None and color != "log":
            raise ValueError("light is an offset in log RGB alone: give color='log' to an equivariant network")
        self.encoding = HoleEncoding(color, softness, color == "log" and offset_groups is None, floor, field)
        more = {"tanh": color == "srgb", "field": 0 if offset_groups is None else field, **(options or {})}
        self.network = models.create(network, offset_groups, constrained=constrained, **more)
        self.register_buffer("middle", center_mask(overlap=0), persistent=False)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the network sees."""
        return SIZE, SIZE

    def example_inputs(
        self, batch: int, size: tuple[int, int], saturation: float = 0.0, seed: int = 0
    ) -> tuple[Tensor, ...]:
        """Random sRGB images, and a mask for each: holes of any shape; arguments as in :class:`Pipeline`."""
        images = super().example_inputs(batch, size, saturation, seed)[0]
        return images, (torch.rand(batch, 1, *size, generator=torch.Generator().manual_seed(seed)) < 0.3).float()

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        """The images, with missing pixels filled in and clipped to [0, 1].

        Args:
            images: (N, 3, 128, 128), sRGB in [0, 1].
            mask: (N, 1, 128, 128) or (1, 1, 128, 128), nonzero where pixels are missing.
        """
        filling, missing = self.filling(images, mask)
        return torch.where(missing, linear_to_srgb(filling.clamp(0, 1)).to(images.dtype), images)

    def linear(self, images: Tensor, mask: Tensor) -> Tensor:
        """The whole images in linear RGB, nothing clipped: they follow a change of light exactly."""
        filling, missing = self.filling(images, mask)
        return torch.where(missing, filling, srgb_to_linear(torch.where(missing, 0.0, images)).to(filling.dtype))

    def filling(self, images: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the network would put everywhere, (N, 3, 128, 128) in linear RGB, nothing clipped; and the boolean mask.

        In the middle that is its answer, for pixels that are seen too; around it, the image, and the mean color of
        what is seen where pixels are missing.
        """
        _check(images, mask)
        missing = mask.to(torch.bool)
        seen, taken = self.encoding.encode(images, missing)
        # Outside of the middle the hole stays as it is encoded: the mean color.
        around = self.encoding.decode(seen, taken)
        center = self.encoding.decode(self.network(seen.to(next(self.network.parameters()).dtype)), taken)
        return torch.where(self.middle, F.pad(center, (SIZE // 4,) * 4), around), missing

    def extra_repr(self) -> str:
        return f"{self.config['network']!r}"


def _check(images: Tensor, mask: Tensor) -> None:
    if images.ndim != 4 or images.shape[1:] != (3, SIZE, SIZE) or not images.is_floating_point():
        raise ValueError(
            f"expected sRGB images (N, 3, {SIZE}, {SIZE}) in [0, 1], but got {images.dtype} of shape "
            f"{tuple(images.shape)}; lightfast inpaint takes photographs of any size"
        )
    if mask.ndim != 4 or mask.shape[1:] != (1, SIZE, SIZE) or mask.shape[0] not in (1, images.shape[0]):
        raise ValueError(
            f"expected a mask (N, 1, {SIZE}, {SIZE}) for {tuple(images.shape)}, but its shape is {tuple(mask.shape)}"
        )
