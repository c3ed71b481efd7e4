"""The words in which networks are written once: conventional, equivariant with pooling over the image, or per pixel."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from torch import nn

from lightfast.functional import Scope
from lightfast.models._vocabulary.conventional import ConventionalVocabulary
from lightfast.models._vocabulary.lifted import LiftedVocabulary
from lightfast.models._vocabulary.pixel import PixelVocabulary

__all__ = [
    "ColorVocabulary",
    "ConventionalVocabulary",
    "LiftedVocabulary",
    "PixelVocabulary",
    "Vocabulary",
    "color_vocabulary",
    "vocabulary",
]


class Vocabulary(Protocol):
    """What a network is made of. `Any` stands for the maps that pass between the parts: plain or lifted."""

    def width(self, features: int) -> int:
        """The number of features nearest to `features` that divides into the groups."""
        ...

    def enter(self, keep_offset: bool = False) -> nn.Module:
        """From the input image to the first map, with its offset if somebody will ask for it."""
        ...

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        """Same-padded convolution and batch norm, called with a map and an optional shortcut to add; then ReLU."""
        ...

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """The shortcut without weights: every `stride`-th pixel, and zeros for the features that `inputs` lacks."""
        ...

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        """Max pooling over pixels."""
        ...

    def classify(self, features: int, classes: int, per_pixel: bool = False) -> nn.Module:
        """Average over pixels (unless a score `per_pixel` is wanted), a linear layer, and one score per class."""
        ...


ColorVocabulary: TypeAlias = ConventionalVocabulary | LiftedVocabulary
"""That of networks that answer with colors, which pool over the image; :class:`ConventionalVocabulary` explains it."""


def vocabulary(offset_groups: int | None, scope: Scope = "image", constrained: bool = True) -> Vocabulary:
    """The vocabulary for so many groups; None is the conventional one, to which nothing else matters.

    >>> vocabulary(3).width(16)
    15
    """
    if offset_groups is None:
        return ConventionalVocabulary()
    if scope == "image":
        return LiftedVocabulary(offset_groups, constrained)
    if not constrained:
        raise ValueError("weights can be free where groups are pooled over the image, not where at each pixel")
    return PixelVocabulary(offset_groups)


def color_vocabulary(offset_groups: int | None, constrained: bool = True) -> ColorVocabulary:
    """The vocabulary of networks that answer with colors: equivariant for 3 groups, conventional for None."""
    if offset_groups not in (None, 3):
        raise ValueError(f"colors have 3 groups, or None for a conventional network, not {offset_groups}")
    return ConventionalVocabulary() if offset_groups is None else LiftedVocabulary(offset_groups, constrained)
