"""The words in which networks are written once: conventional, equivariant with pooling over the image, or per pixel."""

from __future__ import annotations

from typing import TypeAlias

from lightfast.fields import FieldSpec
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


def vocabulary(
    offset_groups: int | None, scope: Scope = "image", constrained: bool = True, field: FieldSpec = 0
) -> Vocabulary:
    """The vocabulary for so many groups; None is the conventional one, to which nothing but the field matters.

    >>> vocabulary(3).width(16)
    15
    """
    _check_field(offset_groups, scope, field)
    if offset_groups is None:
        return ConventionalVocabulary()
    if scope == "image":
        return LiftedVocabulary(offset_groups, constrained, field)
    if not constrained:
        raise ValueError("weights can be free where groups are pooled over the image, not where at each pixel")
    return PixelVocabulary(offset_groups)


def color_vocabulary(offset_groups: int | None, constrained: bool = True, field: FieldSpec = 0) -> ColorVocabulary:
    """The vocabulary of networks that answer with colors: equivariant for 3 groups, conventional for None."""
    if offset_groups not in (None, 3):
        raise ValueError(f"colors have 3 groups, or None for a conventional network, not {offset_groups}")
    _check_field(offset_groups, "image", field)
    return ConventionalVocabulary() if offset_groups is None else LiftedVocabulary(offset_groups, constrained, field)


def _check_field(offset_groups: int | None, scope: Scope, field: FieldSpec) -> None:
    if field != 0 and offset_groups is None:
        raise ValueError("a conventional network follows no field of light: use lf.wrap(model, field=...)")
    if field != 0 and scope == "pixel":
        raise ValueError("groups that are pooled at each pixel have no field: use scope='image'")
