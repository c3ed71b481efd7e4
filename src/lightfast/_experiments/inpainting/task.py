"""Inpainting as a task for the engine: a network that fills holes, and a discriminator that looks at what it filled in.

Colors, the same for all networks: the reconstruction loss, what the discriminator sees, and PSNR are of sRGB values in
[0, 1]. A network that answers in log RGB is brought to sRGB first; nothing is clipped in training.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast._experiments.data.augment import random_flip, random_resized_crop
from lightfast._experiments.engine import Player
from lightfast._pipelines.inpainter import CENTER, OVERLAP, SIZE, HoleEncoding, Inpainter, Taken, center_mask
from lightfast.color import linear_to_srgb
from lightfast.models._context_encoder import ContextDiscriminator, ContextEncoder

_SMALLEST_HOLE = 12


@dataclass(frozen=True)
class HoleAugmentation:
    """What training does to an image. Nothing of it changes the light.

    Args:
        flip: mirror half of the images.
        smallest_part: of the image's area that a random crop has at least; 1 for no crops.
        hole: `center` for the same 50x50 hole in all images; `random` for a rectangle of any size inside of it.
    """

    flip: bool = True
    smallest_part: float = 0.6
    hole: Literal["center", "random"] = "center"

    def __post_init__(self) -> None:
        """Complain about a hole that there is none of."""
        if self.hole not in ("center", "random"):
            raise ValueError(f"the hole is center or random, not {self.hole!r}")


@dataclass
class HoleBatch:
    """What the players see in a step.

    Attributes:
        seen: what the network is given, (B, 3, 128, 128).
        taken: what was taken out of the image, and belongs to the answer.
        real: what was in the middle, sRGB (B, 3, 64, 64).
        filled: what the network filled in there; None until it has.
    """

    seen: Tensor
    taken: Taken
    real: Tensor
    filled: Tensor | None = None


class Adversaries(nn.Module):
    """The two players as one module, which the engine moves, averages and saves."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator


class InpaintingTask:
    """The training of Pathak et al. 2016 (Context Encoders).

    The network's loss is `(1 - λ) mean(w (a - b)²) + λ log(1 + exp(-D(a)))`, with `a` what it filled in, `b` what was
    there, `w` ten (`border`) on a border of 7 pixels, which overlaps with what is seen, and one inside; the
    discriminator's is `mean log(1 + exp(-D(b))) + mean log(1 + exp(D(a)))`, halved. `adversarial` is λ. Images are
    sRGB, uint8 (N, 3, 128, 128).
    """

    def __init__(
        self,
        images: Tensor,
        encoding: HoleEncoding,
        augmentation: HoleAugmentation,
        adversarial: float = 0.001,
        border: float = 10.0,
    ) -> None:
        if images.dtype != torch.uint8 or images.shape[1:] != (3, SIZE, SIZE):
            raise ValueError(
                f"expected uint8 images (N, 3, {SIZE}, {SIZE}), but got {images.dtype} of shape {tuple(images.shape)}"
            )
        self.images, self.samples = images, len(images)
        self.encoding, self.augmentation, self.adversarial = encoding, augmentation, adversarial
        self.hole = center_mask()
        inside = self.hole[:, :, CENTER, CENTER].float()
        self.weight = border + (1 - border) * inside

    def to(self, device: Any) -> None:
        """Move images, hole and weights to the device."""
        self.images, self.hole, self.weight = (x.to(device) for x in (self.images, self.hole, self.weight))

    @torch.no_grad()
    def batch(self, indices: Tensor, generator: torch.Generator) -> HoleBatch:
        """Images with holes, and what was there."""
        images, how = self.images[indices].float() / 255, self.augmentation
        if how.smallest_part < 1:
            images = random_resized_crop(images, SIZE, generator=generator, scale=(how.smallest_part, 1.0))
        if how.flip:
            images = random_flip(images, generator=generator)
        missing = self.hole if how.hole == "center" else self.hole & _rectangles(len(images), generator)
        seen, taken = self.encoding.encode(images, missing)
        return HoleBatch(seen, taken, images[:, :, CENTER, CENTER])

    def players(self, model: nn.Module) -> list[Player]:
        """First the network that fills, then the discriminator."""
        assert isinstance(model, Adversaries)

        def fill(batch: HoleBatch) -> tuple[Tensor, dict[str, Tensor]]:
            return self.loss(model, batch)

        def judge(batch: HoleBatch) -> tuple[Tensor, dict[str, Tensor]]:
            assert batch.filled is not None
            real, filled = (model.discriminator(images).float() for images in (batch.real, batch.filled))
            loss = (F.softplus(-real).mean() + F.softplus(filled).mean()) / 2
            return loss, {"discriminator": loss}

        return [
            Player(list(model.generator.parameters()), fill),
            Player(list(model.discriminator.parameters()), judge),
        ]

    def loss(self, model: nn.Module, batch: HoleBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the network that fills; what it filled in stays in the batch."""
        assert isinstance(model, Adversaries)
        answer = model.generator(batch.seen)
        filled = linear_to_srgb(self.encoding.decode(answer, batch.taken))
        batch.filled = filled.detach()
        reconstruction = (self.weight * (filled - batch.real).square()).mean()
        adversarial = F.softplus(-model.discriminator(filled).float()).mean()
        loss = (1 - self.adversarial) * reconstruction + self.adversarial * adversarial
        return loss, {"reconstruction": reconstruction, "adversarial": adversarial}


@torch.no_grad()
def start_at_mean(inpainter: Inpainter, images: Tensor) -> None:
    """Let a fresh network on log RGB start from the mean color of what is seen: by the bias of its last layer.

    Each layer of an equivariant network that carries offsets adds to them, by a like amount for all images, and it
    would take a thousand steps to learn that away. Images are sRGB, uint8 (N, 3, 128, 128).
    """
    if inpainter.encoding.color != "log":
        return
    fresh = copy.deepcopy(inpainter.network).train()
    seen, _ = inpainter.encoding.encode(images.float() / 255, center_mask().to(images.device))
    assert isinstance(inpainter.network, ContextEncoder)
    inpainter.network.shift_answer((seen.mean((2, 3)) - fresh(seen).mean((2, 3))).mean(0))


def discriminator(base: int, seed: int) -> ContextDiscriminator:
    """A fresh discriminator."""
    torch.manual_seed(seed)
    return ContextDiscriminator(base)


def _rectangles(count: int, generator: torch.Generator) -> Tensor:
    """Random rectangles inside the hole, (count, 1, 128, 128)."""
    device = generator.device
    first, last = CENTER.start + OVERLAP, CENTER.stop - OVERLAP
    place = torch.arange(SIZE, device=device)
    sides = []
    for shape in ((1, 1, SIZE, 1), (1, 1, 1, SIZE)):
        size, start = torch.rand((2, count, 1, 1, 1), device=device, generator=generator)
        size = (_SMALLEST_HOLE + (last - first + 1 - _SMALLEST_HOLE) * size).floor()
        start = (first + (last - first + 1 - size) * start).floor()
        at = place.view(shape)
        sides.append((at >= start) & (at < start + size))
    return sides[0] & sides[1]
