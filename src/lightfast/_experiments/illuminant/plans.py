"""The recipes of illuminant estimation, as data: networks, optimization, augmentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.illuminant.task import SceneAugmentation
from lightfast._experiments.plan import Plan
from lightfast._pipelines.estimator import Estimator, EstimatorColor


@dataclass(frozen=True)
class NetworkKind:
    """A network that the comparison trains.

    Attributes:
        title: what reports show.
        network: as :class:`lightfast.Estimator` knows it.
        offset_groups: 3 where it is equivariant.
        color: what it sees.
        parts: the kinds, by name, that are trained alone and answer together; none for a single network.
    """

    title: str
    network: str
    offset_groups: int | None
    color: EstimatorColor
    parts: tuple[str, ...] = ()


NETWORKS: dict[str, NetworkKind] = {
    "original": NetworkKind("Color Cerberus, original", "cerberus", None, "linear"),
    "wrapped": NetworkKind("Color Cerberus, wrapped", "cerberus", None, "log"),
    "equivariant": NetworkKind("Color Cerberus, equivariant", "cerberus", 3, "log"),
    "local": NetworkKind("Local estimates by confidence, equivariant", "cerberus-local", 3, "log"),
    "local-wrapped": NetworkKind("Local estimates by confidence, wrapped", "cerberus-local", None, "log"),
    "histogram": NetworkKind("Histogram of chroma, equivariant", "chroma-histogram", 3, "log"),
    "statistics": NetworkKind("Statistics of colors, equivariant", "color-statistics", 3, "log"),
    "general": NetworkKind(
        "Histogram and statistics, equivariant",
        "chroma-histogram+color-statistics",
        3,
        "log",
        ("histogram", "statistics"),
    ),
    "joint": NetworkKind(
        "Local estimates, histogram and statistics, equivariant",
        "cerberus-local+chroma-histogram+color-statistics",
        3,
        "log",
        ("local", "histogram", "statistics"),
    ),
}
"""By name, in the order of tables."""


@dataclass(frozen=True)
class IlluminantPlan(Plan):
    """What illuminant estimation plans beside the recipe.

    Args:
        augmentation: what training does to images. The original network is trained without `sensor` and `mix`, which
            are for networks that never see the light itself.
        size: of the square to which images are resampled.
        softness: of log RGB, see :class:`lightfast._pipelines.estimator.SceneEncoding`.
        recovery: share of the loss that is of the recovery angle.
        views: how many mirrored and transposed views of an image are averaged.
        dropout: in the last layers.
        options: more arguments of networks, by the names that :func:`lightfast.models.create` knows.
        confidence: how much the loss of what networks say of their own error counts; at 0 they say nothing.
        even: how evenly cameras and lights are seen, from 0 (as they come) to 1.
        distill: share of the loss that is of the teacher's answer, where there is a teacher.
        prior: make histograms that answer with the prior of a camera, and train them so; with confidence alone.
        small: the share of the steps that networks trained on a single camera have.
        own: values that single kinds of network have instead, by their names.
    """

    augmentation: SceneAugmentation = field(default_factory=SceneAugmentation)
    size: int = 64
    softness: float = 0.01
    recovery: float = 0.5
    views: int = 8
    dropout: float = 0.0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    confidence: float = 0.0
    even: float = 0.0
    distill: float = 0.5
    prior: bool = False
    small: float = 0.4
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    on_gpu: ClassVar[Mapping[str, Any]] = {"graph": True}
    fixed: ClassVar[Mapping[str, str]] = {
        **Plan.fixed,
        "own": "what is set by name holds for all networks, in place of their own values",
    }

    def __post_init__(self) -> None:
        """Complain about a prior for networks that do not say how sure they are."""
        if self.prior and not self.confidence:
            raise ValueError("networks that are made for a prior say how sure they are: set a confidence above 0")

    def estimator(self, name: str, seed: int, members: int = 1, details: Mapping[str, Any] | None = None) -> Estimator:
        """A fresh estimator of the kind of that name."""
        torch.manual_seed(seed)
        kind, plan = NETWORKS[name], self.plan_for(name)
        plans = {NETWORKS[part].network: self.plan_for(part) for part in kind.parts or (name,)}
        if any((each.size, each.softness) != (plan.size, plan.softness) for each in plans.values()):
            raise ValueError(f"the parts of {name} must see images of the same size and softness")
        estimator = Estimator(
            kind.network,
            offset_groups=kind.offset_groups,
            color=kind.color,
            size=plan.size,
            softness=plan.softness,
            members=members,
            views=plan.views,
            options={network: each._network_options(network) for network, each in plans.items()},
        )
        estimator.about = dict(details or {})
        return estimator

    def _network_options(self, name: str) -> dict[str, Any]:
        spread = {"spread": True} if self.confidence and name != "cerberus" else {}
        prior = {"prior": True} if self.prior and name == "chroma-histogram" else {}
        return {"dropout": self.dropout, **spread, **prior, **self.options.get(name, {})}

    def plan_for(self, name: str) -> IlluminantPlan:
        """The plan with the values that this kind of network has for its own.

        >>> PLANS["best"].plan_for("local").recipe.batch_size
        64
        """
        return super().with_values(self.own.get(name, {}))

    def augmentation_for(self, name: str) -> SceneAugmentation:
        """What training does to the images that this kind of network sees."""
        if NETWORKS[name].color == "log":
            return self.augmentation
        return dataclasses.replace(self.augmentation, sensor=0.0, mix=0.0)

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """As for all plans. They hold for all kinds of network, whatever these had for their own.

        >>> PLANS["best"].with_values({"lr": 0.01, "sensor": 0.2}).augmentation.sensor
        0.2
        """
        own = {
            kind: {name: value for name, value in those.items() if name not in values}
            for kind, those in self.own.items()
        }
        return dataclasses.replace(super().with_values(values), own=own)


_ADAMW: dict[str, Any] = {
    "optimizer": "adamw",
    "batch_size": 32,
    "lr": 2e-3,
    "weight_decay": 1e-3,
    "schedule": "cosine",
    "clip": 1.0,
}

_IN_LARGE_BATCHES: dict[str, Any] = _ADAMW | {"batch_size": 64}
_GOING_ON: dict[str, Any] = _IN_LARGE_BATCHES | {"lr": 5e-4}
_HISTOGRAM: dict[str, Any] = {"turn": True, "smallest_part": 0.1}
_STATISTICS: dict[str, Any] = {
    "turn": True,
    "smallest_part": 0.05,
    "black": 0.02,
    "mix": 0.3,
    "options": {"color-statistics": {"hidden": 256}},
}

_CAMERAS = IlluminantPlan(
    "cameras",
    "for several data sets: larger batches, longer, networks that say how sure they are",
    Recipe(8000, warmup=200, ema=0.9995, log_every=1000, checkpoint_every=100_000, **_IN_LARGE_BATCHES),
    SceneAugmentation(smallest_part=0.5, turn=False, exposure=1.0, sensor=0.05),
    views=2,
    confidence=0.02,
    even=0.3,
    own={
        "local": {"turn": True, "options": {"cerberus-local": {"channels": [32, 64, 128, 256]}}},
        "histogram": {**_HISTOGRAM, "sensor": 0.1},
        "statistics": {**_STATISTICS, "dropout": 0.1},
    },
)

PLANS: dict[str, IlluminantPlan] = {
    plan.name: plan
    for plan in (
        IlluminantPlan(
            "best",
            "the best on held-out scenes of cameras that were not trained on",
            Recipe(3000, warmup=100, ema=0.999, log_every=1000, checkpoint_every=100_000, **_ADAMW),
            SceneAugmentation(smallest_part=0.6, turn=False, exposure=1.0, sensor=0.05),
            views=2,
            own={
                "local": {"batch_size": 64},
                "histogram": _HISTOGRAM,
                "statistics": {**_STATISTICS, "dropout": 0.3},
            },
        ),
        _CAMERAS,
        dataclasses.replace(
            _CAMERAS, name="known-cameras", title="as cameras, for those of which lights are known", prior=True
        ),
        dataclasses.replace(
            _CAMERAS,
            name="one-camera",
            title="to go on with networks of known-cameras on a camera that they have not seen",
            recipe=Recipe(200, warmup=20, ema=0.98, log_every=100, checkpoint_every=0, **_GOING_ON),
            # Its sensor is known, and its lights come as often as they come.
            augmentation=dataclasses.replace(_CAMERAS.augmentation, sensor=0.0),
            even=0.0,
            prior=True,
            own={
                "local": _CAMERAS.own["local"],
                "histogram": {"turn": True, "smallest_part": 0.3},
                "statistics": {**_CAMERAS.own["statistics"], "smallest_part": 0.3},
            },
        ),
        IlluminantPlan(
            "demo",
            "a recipe of a minute or two for scenes that the project draws",
            Recipe(150, warmup=20, log_every=25, checkpoint_every=1000, **_ADAMW),
            size=32,
            views=2,
            small=1.0,
        ),
    )
}
"""By name: `best` for NUS, `cameras` for several data sets, `known-cameras` and `one-camera` for cameras of which
lights are known, `demo` for the scenes that the project draws."""

GOING_ON = ("one-camera",)
"""The recipes for networks that were trained on other data sets before."""
