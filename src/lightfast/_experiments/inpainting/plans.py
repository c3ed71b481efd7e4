"""The recipes of inpainting, as data: networks, optimization, augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.inpainting.task import HoleAugmentation
from lightfast._experiments.plan import Plan
from lightfast._pipelines.inpainter import Inpainter, InpainterColor


@dataclass(frozen=True)
class NetworkKind:
    """A kind of network that the comparison trains.

    Attributes:
        title: what reports show.
        offset_groups: 3 where it is equivariant.
        color: what it sees.
        constrained: whether an equivariant network's weights meet the paper's constraint.
        carry: see :class:`lightfast.models._context_encoder.ContextEncoder`.
        field: how light may vary over the image and is still followed; see :class:`lightfast._pipelines.inpainter`.
    """

    title: str
    offset_groups: int | None
    color: InpainterColor
    constrained: bool = True
    carry: bool = False
    field: int = 0


NETWORKS: dict[str, NetworkKind] = {
    "original": NetworkKind("Context Encoder, original", None, "srgb"),
    "wrapped": NetworkKind("Context Encoder, wrapped", None, "log"),
    "equivariant": NetworkKind("Context Encoder, equivariant", 3, "log"),
    "equivariant-free": NetworkKind("Context Encoder, equivariant, free weights", 3, "log", False, carry=True),
    "wrapped-plane": NetworkKind("Context Encoder, wrapped, plane", None, "log", field=1),
    "equivariant-plane-free": NetworkKind(
        "Context Encoder, equivariant, plane, free weights", 3, "log", constrained=False, carry=True, field=1
    ),
}
"""By name, in the order of tables."""


@dataclass(frozen=True)
class InpaintingPlan(Plan):
    """What inpainting plans beside the recipe, which is for networks and discriminators.

    Args:
        augmentation: what training does to images.
        model: a name that :func:`lightfast.models.create` knows.
        softness: of log RGB, see :class:`lightfast._pipelines.inpainter.HoleEncoding`.
        floor: likewise.
        adversarial: share of the loss that is the discriminator's.
        border: weight of the reconstruction loss on the border, which overlaps with what is seen.
        discriminator: width of the discriminator.
        held_out: images of the training set that are not trained on, for the curve of PSNR while training.
        sheet_every: steps between two sheets of samples, a multiple of `log_every`; 0 for none.
        options: more arguments of the network.
    """

    augmentation: HoleAugmentation = field(default_factory=HoleAugmentation)
    model: str = "context-encoder"
    softness: float = 0.02
    floor: bool = True
    adversarial: float = 0.001
    border: float = 10.0
    discriminator: int = 64
    held_out: int = 64
    sheet_every: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict)

    def inpainter(self, kind: NetworkKind, seed: int, details: Mapping[str, Any] | None = None) -> Inpainter:
        """A fresh inpainter of that kind."""
        torch.manual_seed(seed)
        inpainter = Inpainter(
            self.model,
            offset_groups=kind.offset_groups,
            color=kind.color,
            softness=self.softness,
            floor=self.floor,
            constrained=kind.constrained,
            field=kind.field,
            options={**self.options, "carry": True} if kind.carry else self.options,
        )
        inpainter.about = dict(details or {})
        return inpainter


_ADAM: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 2e-4,
    "betas": (0.5, 0.999),
    "weight_decay": 0.0,
    "schedule": "cosine",
}

PLANS: dict[str, InpaintingPlan] = {
    plan.name: plan
    for plan in (
        InpaintingPlan(
            "best",
            "the paper's networks and losses",
            Recipe(8000, batch_size=64, log_every=250, checkpoint_every=2000, **_ADAM),
        ),
        InpaintingPlan(
            "slim",
            "a small network for holes of any size, without an adversary",
            Recipe(1600, batch_size=16, log_every=100, checkpoint_every=400, **(_ADAM | {"lr": 1e-3, "warmup": 50})),
            HoleAugmentation(hole="random"),
            "context-encoder-slim",
            softness=0.2,
            floor=False,
            adversarial=0.0,
            discriminator=2,
            sheet_every=400,
        ),
        InpaintingPlan(
            "demo",
            "a recipe of a few minutes for textures that the project draws",
            Recipe(400, batch_size=16, log_every=25, checkpoint_every=1000, **(_ADAM | {"lr": 1e-3, "warmup": 20})),
            HoleAugmentation(smallest_part=1.0),
            "context-encoder-slim",
            softness=0.2,
            floor=False,
            discriminator=8,
            held_out=16,
            sheet_every=200,
            options={"base": 12, "bottleneck": 180},
        ),
    )
}
"""By name: `best` and `slim` for photographs, `demo` for the textures that the project draws."""
