"""Plans: everything about an experiment but its data and what is compared, and how users change them.

:func:`choose_plan` is the one place where recipe, device, options and `--set NAME=VALUE` are combined, in this order:
the recipe of that name; `--steps`, in proportion; what suits the device; options such as `--precision`; `--set`.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import torch

from lightfast._experiments.engine.recipe import Recipe

_PARTS = ("recipe", "augmentation")
_DEVICE = ("precision", "channels_last", "graph")


@dataclass(frozen=True)
class Plan:
    """What the plans of all experiments have; each experiment adds fields of its own.

    The name is what users type; `augmentation`, what training does to samples, is a dataclass.
    `epochs` is how often each sample is seen at most: a small training set gets fewer steps, of smaller batches, unless
    users say how many; None for as many steps as the recipe has, whatever the data.
    """

    name: str
    title: str
    recipe: Recipe
    augmentation: Any = None
    epochs: float | None = field(default=None, kw_only=True)

    on_gpu: ClassVar[Mapping[str, Any]] = {"precision": "bfloat16", "channels_last": True, "graph": True}
    """What suits a GPU, for all recipes of the plan."""
    fixed: ClassVar[Mapping[str, str]] = {
        "name": "it is the recipe's; choose one with --recipe",
        "title": "it is the recipe's; choose one with --recipe",
        "recipe": "choose one with --recipe, and set its values by their own names",
        "augmentation": "set its values by their own names",
        "seed": "runs have their own, from 0 on; name them with --seeds, --only or --seed",
    }
    """What cannot be set, and what to do instead."""

    def with_steps(self, steps: int) -> Self:
        """The same plan in so many steps: milestones, warm-up and side trainings shrink or grow with it.

        >>> Plan("a", "", Recipe(64_000, milestones=(32_000, 48_000))).with_steps(640).recipe.milestones
        (320, 480)
        """
        share, changes = steps / self.recipe.steps, {}
        for name in _names(self):
            value = getattr(self, name)
            if isinstance(value, Recipe):
                changes[name] = scaled(value, share)
            elif name.endswith("_steps"):
                changes[name] = max(1, round(value * share))
        return replace(self, **changes)

    def for_samples(self, samples: int) -> Self:
        """The plan for a training set of that size, if it is too small for the recipe's steps.

        Batches become smaller first, in powers of two, while there are fewer than 16 of them in an epoch; the learning
        rate goes with them.

        >>> plan = Plan("a", "", Recipe(3000, batch_size=128, lr=0.1), epochs=60).for_samples(240)
        >>> plan.recipe.steps, plan.recipe.batch_size, plan.recipe.lr
        (900, 16, 0.0125)
        """
        recipe = self.recipe
        if self.epochs is None or recipe.steps * recipe.batch_size <= self.epochs * samples:
            return self
        batch = recipe.batch_size
        while batch > 16 and samples < 16 * batch:
            batch //= 2
        smaller = replace(recipe, batch_size=batch, lr=recipe.lr * batch / recipe.batch_size)
        steps = max(1, round(self.epochs * samples / batch))
        return replace(self, recipe=smaller).with_steps(min(steps, recipe.steps))

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """The plan with other values, by the names of its fields, or else of those of its recipe or its augmentation.

        >>> Plan("a", "", Recipe(10)).with_values({"lr": 0.2}).recipe.lr
        0.2
        """
        # All values of a part at once: each may be wrong beside the others' old ones.
        own: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name in self.fixed:
                raise ValueError(f"{name} cannot be set: {self.fixed[name]}")
            part = next((part for part in _PARTS if name in _names(getattr(self, part))), None)
            if name in _names(self):
                own[name] = _checked(self, name, value)
            elif part is not None:
                parts.setdefault(part, {})[name] = _checked(getattr(self, part), name, value)
            else:
                known = {*_names(self), *(n for part in _PARTS for n in _names(getattr(self, part)))} - {*self.fixed}
                raise ValueError(f"a recipe has no {name!r}; it has {', '.join(sorted(known))}")
        plan = replace(self, **own)
        for part, changes in parts.items():
            plan = replace(plan, **{part: replace(getattr(plan, part), **changes)})
            plan = plan._in_all_recipes({name: value for name, value in changes.items() if name in _DEVICE})
        return plan

    def for_device(self, device: torch.device) -> Self:
        """The plan with what suits the device."""
        return self._in_all_recipes(self.on_gpu) if device.type == "cuda" else self

    def _in_all_recipes(self, values: Mapping[str, Any]) -> Self:
        recipes = {name: getattr(self, name) for name in _names(self) if isinstance(getattr(self, name), Recipe)}
        return replace(self, **{name: replace(recipe, **values) for name, recipe in recipes.items()})

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def choose_plan(
    recipes: Mapping[str, Plan],
    name: str,
    device: torch.device,
    *,
    steps: int | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> Any:
    """The plan for what users typed.

    Args:
        recipes: by the names that users type.
        name: of the recipe.
        device: where it is to be trained.
        steps: of training; the recipe's by default.
        options: values that have options of their own, by name; None for one that was not given.
        settings: `NAME=VALUE`, of which the last of a name holds; none that an option gave.
    """
    if name not in recipes:
        raise ValueError(f"the recipe is one of {', '.join(recipes)}, not {name!r}")
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if given.get("precision", "auto") not in ("auto", "float32", "bfloat16"):
        raise ValueError(f"the precision is auto, float32 or bfloat16, not {given['precision']!r}")
    if given.get("precision") == "auto":
        del given["precision"]
    plan = recipes[name] if steps is None else recipes[name].with_steps(steps)
    changes = dict(map(parse_setting, settings))
    for key in changes:
        if key in given or (key == "steps" and steps is not None):
            raise ValueError(f"{key} is given twice: use either --{key} or --set {key}=...")
    given |= changes
    if given.get("graph") and device.type != "cuda":
        raise ValueError("graph cannot be true here: CUDA graphs need a GPU; leave it out, or use --device cuda")
    plan = plan.for_device(device).with_values(given)
    _check_model(plan)
    return plan


def _check_model(plan: Plan) -> None:
    from lightfast import models

    model = getattr(plan, "model", None)
    if model is not None and model not in models.names():
        raise ValueError(f"there is no network {model!r}; there are {', '.join(models.names())}")


def parse_setting(text: str) -> tuple[str, Any]:
    """`NAME=VALUE` as users type it; the value is a number, a tuple, true, false, none, or else the text itself.

    >>> parse_setting("flip=false"), parse_setting("lr=0.05")
    (('flip', False), ('lr', 0.05))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=VALUE, such as lr=0.05")
    known = {"true": True, "false": False, "none": None}
    try:
        return name, known[value.lower()] if value.lower() in known else ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def scaled(recipe: Recipe, share: float) -> Recipe:
    """The recipe with so many times the steps, at least one."""
    steps = max(1, round(recipe.steps * share))
    return replace(
        recipe,
        steps=steps,
        milestones=tuple(round(milestone * share) for milestone in recipe.milestones),
        warmup=min(steps, round(recipe.warmup * share)),
    )


def _names(of: Any) -> list[str]:
    return [entry.name for entry in fields(of)] if dataclasses.is_dataclass(of) else []


def _checked(whole: Any, name: str, value: Any) -> Any:
    """The value, of the kind of the one before it; nothing may become anything, and the other way round."""
    before = getattr(whole, name)
    kinds = ((bool, "True or False"), (int | float, "a number"), (str, "a text"), (Mapping, "a mapping"))
    for kind, wanted in kinds:
        if isinstance(before, kind):
            fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if value is not None and not fits:
                raise ValueError(f"{name} is {wanted}, such as {before!r}, not {value!r}")
            break
    return value
