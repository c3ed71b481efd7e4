"""The recipes of recognition, as data: network, optimization, augmentation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lightfast._experiments.classification import Strategy
from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.plan import Plan
from lightfast._experiments.recognition.task import Augmentation


@dataclass(frozen=True)
class RecognitionPlan(Plan):
    """What recognition plans beside the recipe.

    Args:
        augmentation: what training does to images, whatever the strategy; its `jitter` and `group_dropout` are the
            strategies' to switch on.
        model: a name that :func:`lightfast.models.create` knows.
        group_dropout: probability of dropping each color group, for the strategies that do.
        drop_at_most: how many groups of an image these drop at most; all but one by default.
        jitter: strength of the color jitter, for the strategy that does; None to choose it on held-out images.
        jitter_choices: the strengths to choose from.
        jitter_steps: steps of training for each of them.
        balance_recipe: how the quasi-unsupervised color balance is trained.
    """

    augmentation: Augmentation = field(default_factory=Augmentation)
    model: str = "resnet20"
    group_dropout: float = 0.15
    drop_at_most: int | None = None
    jitter: float | None = None
    jitter_choices: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    jitter_steps: int = 8000
    balance_recipe: Recipe = field(
        default_factory=lambda: Recipe(
            4000, batch_size=64, optimizer="adamw", lr=1e-3, weight_decay=1e-4, schedule="cosine", warmup=100
        )
    )

    fixed: ClassVar = {**Plan.fixed, "balance_recipe": "it is as long as --steps makes it, and has no values to set"}

    def augmentation_for(self, strategy: Strategy, jitter: float) -> Augmentation:
        """What training does to images under a strategy, color jitter being this strong where there is any."""
        return dataclasses.replace(
            self.augmentation,
            jitter=jitter if strategy.jitter else 0.0,
            group_dropout=self.group_dropout if strategy.group_dropout else 0.0,
            drop_at_most=self.drop_at_most,
        )


_COSINE: dict[str, Any] = {"nesterov": True, "weight_decay": 5e-4, "schedule": "cosine"}
_ADAMW: dict[str, Any] = {"optimizer": "adamw", "schedule": "cosine"}
_SHORT_BALANCE = Recipe(600, batch_size=64, lr=2e-3, warmup=50, **_ADAMW)

PLANS: dict[str, RecognitionPlan] = {
    plan.name: plan
    for plan in (
        RecognitionPlan(
            "paper",
            "the paper's recipe",
            Recipe(64_000, milestones=(32_000, 48_000), checkpoint_every=8000, log_every=500),
            Augmentation(crop=4),
        ),
        RecognitionPlan(
            "best",
            "a modern recipe that changes no light",
            Recipe(16_000, 512, lr=0.4, warmup=500, ema=0.999, checkpoint_every=2000, log_every=250, **_COSINE),
            Augmentation(crop=4, erasing=0.1, label_smoothing=0.05),
            group_dropout=0.1,
            drop_at_most=1,
        ),
        RecognitionPlan(
            "quick",
            "a short recipe",
            Recipe(4000, warmup=200, **_COSINE),
            Augmentation(crop=4),
            jitter_steps=1000,
            balance_recipe=_SHORT_BALANCE,
        ),
        RecognitionPlan(
            "imagenet",
            "the recipe of He et al. for ILSVRC-12: 90 epochs",
            Recipe(450_000, batch_size=256, milestones=(150_000, 300_000), checkpoint_every=2500, log_every=250),
            Augmentation(resize=True),
            model="resnet50",
            jitter=0.5,
        ),
        RecognitionPlan(
            "imagenet-quick",
            "a short recipe for folders of small pictures",
            Recipe(3000, warmup=200, **_COSINE),
            Augmentation(resize=True, smallest_part=0.25),
            epochs=60,
            model="resnet18",
            jitter=0.5,
            balance_recipe=_SHORT_BALANCE,
        ),
        RecognitionPlan(
            "demo",
            "a recipe of a few minutes for drawn pictures",
            Recipe(240, batch_size=64, lr=0.2, warmup=40, log_every=25, checkpoint_every=120, **_COSINE),
            Augmentation(flip=True),
            group_dropout=0.2,
            jitter=0.5,
            balance_recipe=Recipe(100, batch_size=32, lr=4e-3, warmup=10, log_every=25, **_ADAMW),
        ),
    )
}
"""By name: `paper` and `best` for CIFAR-10, `quick` for a first look, `demo` for the pictures the project draws,
`imagenet` and `imagenet-quick` for folders of photographs."""
