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


def config_of(kind: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a constructor was called with and its defaults, by name; modules are left to the weights.

    Of a module where a name could stand, a network of the user's own, there is the name of its class: `{"own": "Net"}`.

    >>> class Point:
    ...     def __init__(self, x: int, *, names: Sequence[str] = ()) -> None: ...
    >>> config_of(Point, (3,), {})
    {'x': 3, 'names': []}
    """
    bound = inspect.signature(kind.__init__).bind_partial(None, *args, **kwargs)
    bound.apply_defaults()
    return {name: _plain(bound.arguments[name]) for name in _hints(kind) if name in bound.arguments}


def check_config(kind: type, config: Any, network: nn.Module | None = None) -> dict[str, Any]:
    """The configuration, if the constructor of that kind can be called with it.

    Args:
        kind: the class.
        config: names and values, as JSON holds them.
        network: takes the place of `{"own": ...}` in it.

    Raises:
        ValueError: something is missing, unknown, or of the wrong type; the sentence says what.

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
    config = _with_network(config, network)
    hints = _hints(kind)
    defaults = inspect.signature(kind.__init__).parameters
    if missing := [name for name in hints if name not in config and defaults[name].default is inspect.Parameter.empty]:
        raise ValueError(f"it does not say {', '.join(missing)}")
    if unknown := [repr(name) for name in config if name not in hints]:
        raise ValueError(f"it says {', '.join(unknown)}, but there is only {', '.join(hints)}")
    for name, value in config.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} must be {_in_words(hints[name])}, but is {_shown(value)}")
    return config


def _with_network(config: dict[str, Any], network: nn.Module | None) -> dict[str, Any]:
    """The configuration with the user's own network where it is asked for; a sentence if it is missing or too much."""
    asked = [name for name, value in config.items() if isinstance(value, dict) and list(value) == ["own"]]
    if not asked and network is not None:
        raise ValueError("its network is not one of your own, but made by name: leave network= out")
    if asked and network is None:
        own = config[asked[0]]["own"]
        raise ValueError(
            f"its network is one of your own ({_shown(own)}), of which files hold the weights but not the code: make "
            "it again, and give it as network=, or to a command as --network package.module:factory"
        )
    return {**config, **dict.fromkeys(asked, network)}


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The type of each argument of a constructor that is no module, or may be something else as well."""
    hints = get_type_hints(kind.__init__)
    names = [name for name in inspect.signature(kind.__init__).parameters if name in hints]
    return {name: hints[name] for name in names if not _only_module(hints[name])}


def _only_module(hint: Any) -> bool:
    parts = [part for part in _choices(hint) if part is not NoneType]
    return all(_is_module(part) for part in parts)


def _choices(hint: Any) -> tuple[Any, ...]:
    """What a value may be: the parts of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_module(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, nn.Module)


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
    # What a file cannot hold is not asked of it.
    parts = [part for part in _choices(hint) if not _is_module(part)]
    if len(parts) > 1 or parts != [hint]:
        return " or ".join(_in_words(part) for part in parts)
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is Sequence:
        return f"a list, each {_in_words(get_args(hint)[0])}"
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
    return known.get(hint, "a table of names and values")


def _plain(value: Any) -> Any:
    """Lists and dictionaries as JSON gives them back."""
    if isinstance(value, nn.Module):
        return {"own": type(value).__name__}
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
