"""Plans with other values, by the names that users type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["with_values"]

P = TypeVar("P")

_NAMES = ("name", "title")


def with_values(plan: P, values: Mapping[str, Any], parts: tuple[str, ...], fixed: tuple[str, ...] = ()) -> P:
    """The plan, a dataclass, with other values for its fields or for those of its parts.

    Args:
        plan: left as it is.
        values: by name; the plan's own fields come before those of its parts, and these in their order.
        parts: the fields that hold dataclasses whose fields are meant, too.
        fixed: fields that cannot be set.
    """
    for name, value in values.items():
        own = _fields(plan) - {*parts, *fixed, *_NAMES}
        if name in own:
            plan = _replaced(plan, name, value)
            continue
        for part in parts:
            if name in _fields(getattr(plan, part)):
                plan = _replaced(plan, part, _replaced(getattr(plan, part), name, value))
                break
        else:
            known = own.union(*(_fields(getattr(plan, part)) for part in parts))
            raise ValueError(f"a recipe has no {name!r}; it has {', '.join(sorted(known))}")
    return plan


def _fields(of: Any) -> set[str]:
    return {entry.name for entry in dataclasses.fields(of)}


def _replaced(whole: Any, name: str, value: Any) -> Any:
    before = getattr(whole, name)
    kinds = ((bool, "True or False"), (int | float, "a number"), (str, "a text"), (Mapping, "a mapping"))
    for kind, wanted in kinds:
        # What was nothing may become anything, and anything may become nothing.
        if isinstance(before, kind) and value is not None and not _fits(value, kind):
            raise ValueError(f"{name} is {wanted}, such as {before!r}, not {value!r}")
        if isinstance(before, kind):
            break
    return dataclasses.replace(whole, **{name: value})


def _fits(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
