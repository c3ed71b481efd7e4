"""Applying rules. An operation that has none is a break, unless nothing that it takes has a response."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from lightfast._response import choices, moving, products, sums
from lightfast._response.call import Call, leaves, moves
from lightfast._response.registry import RULES, remedy, words
from lightfast._response.value import NoResponse, Response, Space

FAMILIES = (moving, sums, products, choices)
"""The modules that fill the table of rules."""


def apply(op: OpOverload, args: Any, kwargs: dict[str, Any], shapes: Any, space: Space) -> Any:
    """The response of an operation's output, or :class:`NoResponse`.

    Args:
        op: a functional ATen operation.
        args: its arguments, with tensors replaced by constants and responses; so are `kwargs`.
        kwargs: by name.
        shapes: the output's shape, or a list with one for each output.
        space: the offsets that are asked about.
    """
    call = Call.of(op, args, kwargs, shapes, space)
    if not any(moves(value) for value in leaves(list(call.arguments.values()))):
        return [*map(Response, shapes)] if isinstance(shapes, list) else Response(shapes)
    rule = RULES.get(call.name)
    if rule is None:
        raise NoResponse(f"{words(call.name)} of {{value}}", remedy(call.name))
    return rule(call)
