"""Offsets that vary over the image: fields in the span of a few smooth functions of the position.

Light varies over a picture. Let the offset of each group be a field `o(p) = Σ_k c_k B_k(p)`. With `P` the orthogonal
projection of a group's mean map onto the span of the functions `B_k`, `z = x - G P(x)` does not change when any field
of the span is added to `x`: exactly, and whatever network follows. One function, the constant, gives the group means.

Positions are those of pixel centers, from -1 to 1 over the extent of the image along each of its axes, so that a field
is the same at any resolution. What is called `field` in this package is 0 for a constant, 1 for a plane, 2 for a
quadratic, or any function from positions (P, d) to the values (P, K) of K functions there, such as :class:`Cosines`.
:class:`Ridge` takes away exactly what the first few functions can be, and a part of what the others are.

Functions are taken in their order. One that the positions cannot tell from those before it, as the quadratic ones from
the constant on 2 x 2 pixels, gets the coefficient 0.
"""

from lightfast.fields._bases import Cosines, FieldSpec, Polynomial, Ridge, positions
from lightfast.fields._level import log_level
from lightfast.fields._projection import RemoveField, add_field, field_map, field_mean, project_field, remove_field

__all__ = [
    "Cosines",
    "FieldSpec",
    "Polynomial",
    "RemoveField",
    "Ridge",
    "add_field",
    "field_map",
    "field_mean",
    "log_level",
    "positions",
    "project_field",
    "remove_field",
]
