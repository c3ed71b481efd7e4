"""Learning rate and averaging weight as functions of the step alone, so that a resumed run needs no state of them."""

from __future__ import annotations

import math

from lightfast._experiments.engine.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The learning rate of step number `step`, counted from 0.

    >>> recipe = Recipe(steps=10, lr=1.0, milestones=(4, 8), warmup=2)
    >>> [round(learning_rate(recipe, step), 4) for step in (0, 1, 3, 4, 8)]
    [0.5, 1.0, 1.0, 0.1, 0.01]
    """
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    if recipe.schedule == "step":
        return recipe.lr * recipe.gamma ** sum(step >= milestone for milestone in recipe.milestones)
    if recipe.schedule == "cosine":
        progress = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
        return recipe.lr * (1 + math.cos(math.pi * progress)) / 2
    return recipe.lr


def average_weight(decay: float, step: int) -> float:
    """How far the moving average of the weights moves towards them after step number `step`.

    `1 - decay` in the long run, and more at first: an average that starts from random weights would keep them.
    """
    return 1 - min(decay, (1 + step) / (10 + step))
