"""The ways of coping with colored light that recognition compares, as data."""

from __future__ import annotations

from dataclasses import dataclass

from lightfast._pipelines.preparation import Balance, ColorSpace
from lightfast.functional import Scope

__all__ = ["ALIASES", "STRATEGIES", "Strategy"]


@dataclass(frozen=True)
class Strategy:
    """What the network sees, which network it is, and what training adds.

    Args:
        name: what users type.
        title: what tables show.
        color: the color space of the network's input.
        offset_groups: 3 for an equivariant network.
        scope: of its group pooling.
        balance: automatic color balance of training and test images.
        jitter: whether training jitters colors.
        group_dropout: whether training drops whole color groups.
        fill: whether a dark color group takes the pattern of the others.
        constrained: whether an equivariant network's weights meet the paper's constraint.
        field: how light may vary over the image without being seen: as a plane (1) or a quadratic (2); 0 for not.
    """

    name: str
    title: str
    color: ColorSpace = "srgb"
    offset_groups: int | None = None
    scope: Scope = "image"
    balance: Balance | None = None
    jitter: bool = False
    group_dropout: bool = False
    fill: bool = False
    constrained: bool = True
    field: int = 0


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("original", "Original"),
        Strategy("augmentation", "Augmentation", jitter=True),
        Strategy("gray-world", "Preprocessing: gray world", balance="gray-world"),
        Strategy("shades-of-gray", "Preprocessing: shades of gray", balance="shades-of-gray"),
        Strategy("quasi-unsupervised", "Preprocessing: quasi-unsupervised", balance="quasi-unsupervised"),
        Strategy("equivariant", "Equivariant", color="log", offset_groups=3),
        Strategy("wrapped", "Wrapped", color="log"),
        Strategy("wrapped-plane", "Wrapped, plane", color="log", field=1),
        Strategy("wrapped-quadratic", "Wrapped, quadratic", color="log", field=2),
        Strategy("group-dropout", "Equivariant + group dropout", color="log", offset_groups=3, group_dropout=True),
        Strategy("equivariant-pixel", "Equivariant, pooling per pixel", color="log", offset_groups=3, scope="pixel"),
        Strategy(
            "group-fill",
            "Equivariant + group dropout, dark groups filled",
            color="log",
            offset_groups=3,
            group_dropout=True,
            fill=True,
        ),
        Strategy("equivariant-free", "Equivariant, free weights", color="log", offset_groups=3, constrained=False),
        Strategy("equivariant-plane", "Equivariant, plane", color="log", offset_groups=3, field=1),
        Strategy(
            "equivariant-plane-free",
            "Equivariant, plane, free weights",
            color="log",
            offset_groups=3,
            constrained=False,
            field=1,
        ),
        Strategy(
            "free-group-fill",
            "Equivariant, free weights + group dropout, dark groups filled",
            color="log",
            offset_groups=3,
            group_dropout=True,
            fill=True,
            constrained=False,
        ),
    )
}

_ONLY_BY_NAME = (
    "wrapped-plane",
    "wrapped-quadratic",
    "equivariant-pixel",
    "group-fill",
    "equivariant-free",
    "equivariant-plane",
    "equivariant-plane-free",
    "free-group-fill",
)

ALIASES = {
    "all": tuple(name for name in STRATEGIES if name not in _ONLY_BY_NAME),
    "preprocessing": ("gray-world", "shades-of-gray", "quasi-unsupervised"),
}
"""What users may type for several: `all` is for the usual eight."""
