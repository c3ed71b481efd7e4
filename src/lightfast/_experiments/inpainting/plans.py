"""The recipes of inpainting, as data: networks, optimization, augmentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.inpainting.task import HoleAugmentation
from lightfast._experiments.recognition.plans import scaled
from lightfast._experiments.settings import with_values
from lightfast._pipelines.inpainter import Inpainter, InpainterColor

__all__ = ["FILLERS", "INPAINTING_PLANS", "FillerKind", "InpaintingPlan", "choose_fillers"]


@dataclass(frozen=True)
class FillerKind:
    """A kind of network that the comparison trains.

    Attributes:
        name: what users type.
        title: what reports show.
        offset_groups: 3 where it is equivariant.
        color: what it sees.
        constrained: whether an equivariant network's weights meet the paper's constraint.
        carry: see :class:`lightfast.models.context_encoder.ContextEncoder`.
    """

    name: str
    title: str
    offset_groups: int | None
    color: InpainterColor
    constrained: bool = True
    carry: bool = False


FILLERS: dict[str, FillerKind] = {
    kind.name: kind
    for kind in (
        FillerKind("original", "Context Encoder, original", None, "srgb"),
        FillerKind("wrapped", "Context Encoder, wrapped", None, "log"),
        FillerKind("equivariant", "Context Encoder, equivariant", 3, "log"),
        FillerKind(
            "equivariant-free", "Context Encoder, equivariant, free weights", 3, "log", constrained=False, carry=True
        ),
    )
}
"""By name, in the order of tables."""


def choose_fillers(text: str) -> list[str]:
    """Networks as users type them.

    >>> choose_fillers("original, equivariant")
    ['original', 'equivariant']
    """
    names = list(FILLERS) if text.strip() == "all" else [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in FILLERS:
            raise ValueError(f"there is no network {name!r} to compare; there are {', '.join(FILLERS)}, or all")
    if not names:
        raise ValueError(f"no network was named; there are {', '.join(FILLERS)}, or all")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class InpaintingPlan:
    """Everything about an experiment but the data and the networks that are compared.

    Args:
        name: what users type.
        title: what reports show.
        model: a name that :func:`lightfast.models.create` knows.
        recipe: how networks and discriminators are trained.
        augmentation: what training does to images.
        softness: of log RGB, see :class:`lightfast._pipelines.inpainter.HoleEncoding`.
        floor: likewise.
        adversarial: share of the loss that is the discriminator's.
        border: weight of the reconstruction loss on the border, which overlaps with what is seen.
        discriminator: width of the discriminator.
        held_out: images of the training set that are not trained on, for the curve of PSNR while training.
        sheet_every: steps between two sheets of samples, a multiple of `log_every`; 0 for none.
        options: more arguments of the network.
    """

    name: str
    title: str
    model: str
    recipe: Recipe
    augmentation: HoleAugmentation = field(default_factory=HoleAugmentation)
    softness: float = 0.02
    floor: bool = True
    adversarial: float = 0.001
    border: float = 10.0
    discriminator: int = 64
    held_out: int = 64
    sheet_every: int = 1000
    options: Mapping[str, Any] = field(default_factory=dict)

    def inpainter(self, kind: FillerKind, seed: int, details: Mapping[str, Any] | None = None) -> Inpainter:
        """A fresh inpainter of that kind."""
        torch.manual_seed(seed)
        inpainter = Inpainter(
            self.model,
            offset_groups=kind.offset_groups,
            color=kind.color,
            softness=self.softness,
            floor=self.floor,
            constrained=kind.constrained,
            options={**self.options, "carry": True} if kind.carry else self.options,
        )
        inpainter.about = dict(details or {})
        return inpainter

    def with_steps(self, steps: int) -> InpaintingPlan:
        """The same plan in so many steps.

        >>> INPAINTING_PLANS["demo"].with_steps(10).recipe.steps
        10
        """
        return dataclasses.replace(self, recipe=scaled(self.recipe, steps / self.recipe.steps))

    def with_values(self, values: Mapping[str, Any]) -> InpaintingPlan:
        """The plan with other values, by the names of its fields or of those of its recipe or its augmentation.

        >>> INPAINTING_PLANS["best"].with_values({"lr": 0.01, "flip": False}).augmentation.flip
        False
        """
        return with_values(self, values, ("recipe", "augmentation"))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON can hold it."""
        return {**dataclasses.asdict(self), "recipe": self.recipe.to_dict()}


_ADAM: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 2e-4,
    "betas": (0.5, 0.999),
    "weight_decay": 0.0,
    "schedule": "cosine",
}

INPAINTING_PLANS: dict[str, InpaintingPlan] = {
    plan.name: plan
    for plan in (
        InpaintingPlan(
            "best",
            "the paper's networks and losses",
            "context-encoder",
            Recipe(8000, batch_size=64, log_every=250, checkpoint_every=2000, **_ADAM),
        ),
        InpaintingPlan(
            "slim",
            "a small network for holes of any size, without an adversary",
            "context-encoder-slim",
            Recipe(1600, batch_size=16, log_every=100, checkpoint_every=400, **(_ADAM | {"lr": 1e-3, "warmup": 50})),
            HoleAugmentation(hole="random"),
            softness=0.2,
            floor=False,
            adversarial=0.0,
            discriminator=2,
            sheet_every=400,
        ),
        InpaintingPlan(
            "demo",
            "a recipe of a few minutes for textures that the project draws",
            "context-encoder-slim",
            Recipe(400, batch_size=16, log_every=25, checkpoint_every=1000, **(_ADAM | {"lr": 1e-3, "warmup": 20})),
            HoleAugmentation(smallest_part=1.0),
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
