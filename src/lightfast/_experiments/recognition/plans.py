"""The recipes of recognition, as data: network, optimization, augmentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.recognition.strategies import Strategy
from lightfast._experiments.recognition.task import Augmentation
from lightfast._experiments.settings import with_values

__all__ = ["PLANS", "Plan"]


@dataclass(frozen=True)
class Plan:
    """Everything about an experiment but the data and the strategies.

    Args:
        name: what users type.
        title: what reports show.
        model: a name that :func:`lightfast.models.create` knows.
        recipe: how networks are trained.
        augmentation: what training does to images, whatever the strategy; its `jitter` and `group_dropout` are the
            strategies' to switch on.
        group_dropout: probability of dropping each color group, for the strategies that do.
        drop_at_most: how many groups of an image these drop at most; all but one by default.
        jitter: strength of the color jitter, for the strategy that does; None to choose it on held-out images.
        jitter_choices: the strengths to choose from.
        jitter_steps: steps of training for each of them.
        balance_recipe: how the quasi-unsupervised color balance is trained.
    """

    name: str
    title: str
    model: str
    recipe: Recipe
    augmentation: Augmentation
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

    def augmentation_for(self, strategy: Strategy, jitter: float) -> Augmentation:
        """What training does to images under a strategy, color jitter being this strong where there is any."""
        return dataclasses.replace(
            self.augmentation,
            jitter=jitter if strategy.jitter else 0.0,
            group_dropout=self.group_dropout if strategy.group_dropout else 0.0,
            drop_at_most=self.drop_at_most,
        )

    def with_steps(self, steps: int) -> Plan:
        """The same plan in so many steps: milestones and warm-up, and the side trainings, shrink or grow with it.

        >>> PLANS["paper"].with_steps(640).recipe.milestones
        (320, 480)
        """
        share = steps / self.recipe.steps
        return dataclasses.replace(
            self,
            recipe=scaled(self.recipe, share),
            jitter_steps=max(1, round(self.jitter_steps * share)),
            balance_recipe=scaled(self.balance_recipe, share),
        )

    def with_values(self, values: Mapping[str, Any]) -> Plan:
        """The plan with other values, by the names of its fields or of those of its recipe or its augmentation.

        >>> PLANS["paper"].with_values({"lr": 0.2, "group_dropout": 0.1}).recipe.lr
        0.2
        """
        return with_values(self, values, ("recipe", "augmentation"), fixed=("balance_recipe",))

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON can hold it."""
        return {
            **dataclasses.asdict(self),
            "recipe": self.recipe.to_dict(),
            "balance_recipe": self.balance_recipe.to_dict(),
            "jitter_choices": list(self.jitter_choices),
        }


def scaled(recipe: Recipe, share: float) -> Recipe:
    """The recipe with so many times the steps, at least one."""
    steps = max(1, round(recipe.steps * share))
    return dataclasses.replace(
        recipe,
        steps=steps,
        milestones=tuple(round(milestone * share) for milestone in recipe.milestones),
        warmup=min(steps, round(recipe.warmup * share)),
    )


PLANS: dict[str, Plan] = {
    plan.name: plan
    for plan in (
        Plan(
            "paper",
            "the paper's recipe",
            "resnet20",
            Recipe(64_000, milestones=(32_000, 48_000), checkpoint_every=8000, log_every=500),
            Augmentation(crop=4),
        ),
        Plan(
            "best",
            "a modern recipe that changes no light",
            "resnet20",
            Recipe(
                64_000,
                lr=0.1,
                nesterov=True,
                weight_decay=5e-4,
                schedule="cosine",
                warmup=500,
                ema=0.999,
                checkpoint_every=8000,
                log_every=500,
            ),
            Augmentation(crop=4, erasing=0.1, label_smoothing=0.05),
        ),
        Plan(
            "quick",
            "a short recipe",
            "resnet20",
            Recipe(4000, nesterov=True, weight_decay=5e-4, schedule="cosine", warmup=200),
            Augmentation(crop=4),
            jitter_steps=1000,
            balance_recipe=Recipe(600, batch_size=64, optimizer="adamw", lr=2e-3, schedule="cosine", warmup=50),
        ),
        Plan(
            "imagenet",
            "the recipe of He et al. for ILSVRC-12: 90 epochs",
            "resnet50",
            Recipe(450_000, batch_size=256, milestones=(150_000, 300_000), checkpoint_every=2500, log_every=250),
            Augmentation(resize=True),
            jitter=0.5,
        ),
        Plan(
            "imagenet-quick",
            "a short recipe for folders of small pictures",
            "resnet18",
            Recipe(3000, nesterov=True, weight_decay=5e-4, schedule="cosine", warmup=200),
            Augmentation(resize=True, smallest_part=0.25),
            jitter=0.5,
            balance_recipe=Recipe(600, batch_size=64, optimizer="adamw", lr=2e-3, schedule="cosine", warmup=50),
        ),
        Plan(
            "demo",
            "a recipe of a few minutes for drawn pictures",
            "resnet20",
            Recipe(
                240,
                batch_size=64,
                lr=0.2,
                nesterov=True,
                weight_decay=5e-4,
                schedule="cosine",
                warmup=40,
                log_every=25,
                checkpoint_every=120,
            ),
            Augmentation(flip=True),
            group_dropout=0.2,
            jitter=0.5,
            balance_recipe=Recipe(
                100, batch_size=32, optimizer="adamw", lr=4e-3, schedule="cosine", warmup=10, log_every=25
            ),
        ),
    )
}
"""By name: `paper` and `best` for CIFAR-10, `quick` for a first look, `demo` for the pictures the project draws,
`imagenet` and `imagenet-quick` for folders of photographs."""
