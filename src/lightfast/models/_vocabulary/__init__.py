"""The words in which networks are written once: conventional, equivariant with pooling over the image, or per pixel."""

from __future__ import annotations

from typing import TypeAlias

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


Vocabulary: TypeAlias = ConventionalVocabulary | LiftedVocabulary | PixelVocabulary
"""What a network is made of; :class:`ConventionalVocabulary` says what each word means."""

ColorVocabulary: TypeAlias = ConventionalVocabulary | LiftedVocabulary
"""That of networks that answer with colors, which pool over the image."""


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
