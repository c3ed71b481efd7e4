"""What a pipeline is made from, as JSON holds it: its constructor's arguments, checked against the signature."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import nn

__all__ = ["check_config", "config_of"]

_BOUNDS = {"size": (1, 4096), "offset_groups": (1, 1024), "members": (1, 64), "views": (1, 8), "field": (0, 8)}
"""Of whole numbers by the names of arguments; others are within `_LARGEST`."""

_LARGEST, _LONGEST, _DEEPEST = 65536, 100_000, 8
"""Of numbers in a configuration, of texts and lists, and of what is inside of what: files come from strangers."""


def config_of(kind: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a constructor was called with and its defaults, by name; modules are left to the weights.

    >>> class Point:
    ...     def __init__(self, x: int, *, names: Sequence[str] = ()) -> None: ...
    >>> config_of(Point, (3,), {})
    {'x': 3, 'names': []}
    """
    bound = inspect.signature(kind.__init__).bind_partial(None, *args, **kwargs)
    bound.apply_defaults()
    return {name: _plain(bound.arguments[name]) for name in _hints(kind) if name in bound.arguments}


def check_config(kind: type, config: Any) -> dict[str, Any]:
    """The configuration, if the constructor of that kind can be called with it.

    Raises:
        ValueError: something is missing, unknown, of the wrong type, or out of bounds; the sentence says what.

    >>> class Point:
    ...     def __init__(self, x: int, *, color: Literal["red", "blue"] = "red") -> None: ...
    >>> check_config(Point, {"x": 3})
    {'x': 3}
    >>> check_config(Point, {"x": 3, "color": "green"})
    Traceback (most recent call last):
    ValueError: color must be 'red' or 'blue', but is 'green'
    """
    if not isinstance(config, dict):
        raise ValueError(f"its config must be a table of names and values, but is {_shown(config)}")
    hints = _hints(kind)
    defaults = inspect.signature(kind.__init__).parameters
    if missing := [name for name in hints if name not in config and defaults[name].default is inspect.Parameter.empty]:
        raise ValueError(f"it does not say {', '.join(missing)}")
    if unknown := [repr(name) for name in config if name not in hints]:
        raise ValueError(f"it says {', '.join(unknown)}, but there is only {', '.join(hints)}")
    for name, value in config.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} must be {_in_words(hints[name])}, but is {_shown(value)}")
        _check_bounds(name, value)
    return config


def _check_bounds(name: str, value: Any, depth: int = 0) -> None:
    """Raise a sentence where a value is larger, longer or deeper than anything that a model is made from."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = _BOUNDS.get(name, (-_LARGEST, _LARGEST)) if isinstance(value, int) else (-_LARGEST, _LARGEST)
        if not least <= value <= most:
            raise ValueError(f"{name} must be from {least} to {most}, but is {_shown(value)}")
    elif isinstance(value, str | list | dict):
        if len(value) > _LONGEST or depth > _DEEPEST:
            too = "long" if len(value) > _LONGEST else "deep"
            raise ValueError(f"{name} is too {too}: at most {_LONGEST} entries, and {_DEEPEST} levels, are read")
        for key, each in (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        ):
            _check_bounds(key if isinstance(key, str) else name, each, depth + 1)


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The type of each argument of a constructor that may be something else than a module."""
    hints = get_type_hints(kind.__init__)
    names = [name for name in inspect.signature(kind.__init__).parameters if name in hints]
    return {name: hints[name] for name in names if any(map(_is_written, _choices(hints[name])))}


def _choices(hint: Any) -> tuple[Any, ...]:
    """What a value may be: the parts of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_written(hint: Any) -> bool:
    """Whether a value of this type is in a configuration, rather than a module, or none."""
    return not isinstance(hint, type) or not issubclass(hint, nn.Module | NoneType)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is Sequence:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(each, parts[1]) for each in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _in_words(hint: Any) -> str:
    parts = [part for part in _choices(hint) if part is NoneType or _is_written(part)]
    if len(parts) > 1:
        return " or ".join(_in_words(part) for part in parts)
    hint = parts[0]
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is Sequence:
        return f"a list, each {_in_words(get_args(hint)[0])}"
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
    return known.get(hint, "a table of names and values")


def _plain(value: Any) -> Any:
    """Lists and dictionaries as JSON gives them back."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Too deep, or a number with too many digits.
        text = f"too long to show, {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
