"""Several seeds as one: the mean of every number, and its spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """What was measured of one of the things that are compared.

    Args:
        name: of the strategy, the network or the method.
        title: what tables call it.
        parameters: of the network.
        seeds: how many trainings; 0 for what is not trained.
        mean: of every number over seeds, in the form in which they were measured: mappings, lists, numbers.
        spread: the sample standard deviation of each, in the same form; None for fewer than two seeds.
        ours: whether it is one of those that this project is about, which tables mark.
    """

    name: str
    title: str
    parameters: int
    seeds: int
    mean: Any
    spread: Any = None
    ours: bool = False

    @classmethod
    def of(cls, name: str, title: str, parameters: int, measured: Sequence[Any], ours: bool = False) -> Summary:
        """The summary of what was measured with each seed."""
        return cls(name, title, parameters, len(measured), *mean_and_spread(measured), ours)

    def at(self, *path: Any) -> float:
        """The mean of the number at a place, such as `at("errors", 3)`."""
        return _at(self.mean, path)

    def text(self, *path: Any) -> str:
        """The mean and the spread of the number at a place; nothing where there is none.

        >>> Summary.of("a", "A", 1, [{"error": 8.0}, {"error": 9.0}]).text("error")
        '8.50 ± 0.71'
        """
        mean = _at(self.mean, path)
        spread = None if self.spread is None else _at(self.spread, path)
        return "" if mean is None else f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, rounded."""
        known = {"title": self.title, "parameters": self.parameters, "seeds": self.seeds}
        return {**known, "mean": _rounded(self.mean), "spread": _rounded(self.spread)}


def mean_and_spread(values: Sequence[Any]) -> tuple[Any, Any]:
    """Mean and sample standard deviation of numbers; of mappings and lists, those of each of their entries.

    What is the same in all values, texts included, is its own mean. Of mappings, entries that not all have are left
    out. The spread of a single value, and anything of None, is None.

    >>> mean_and_spread([{"a": [1.0, None], "b": 2}, {"a": [2.0, None]}])
    ({'a': [1.5, None]}, {'a': [0.7071067811865476, None]})
    """
    first = values[0]
    if isinstance(first, Mapping):
        shared = [key for key in first if all(key in value for value in values)]
        parts = {key: mean_and_spread([value[key] for value in values]) for key in shared}
        spread = {key: part[1] for key, part in parts.items()}
        return {key: part[0] for key, part in parts.items()}, spread if len(values) > 1 else None
    if isinstance(first, (list, tuple)):
        pairs = [mean_and_spread(column) for column in zip(*values, strict=True)]
        return [mean for mean, _ in pairs], [spread for _, spread in pairs] if len(values) > 1 else None
    if any(value is None for value in values) or isinstance(first, str):
        return (first if isinstance(first, str) else None), None
    mean = first if all(value == first for value in values) else statistics.fmean(values)
    return mean, statistics.stdev(values) if len(values) > 1 else None


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _rounded(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _rounded(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_rounded(value) for value in tree]
    return round(tree, 4) if isinstance(tree, float) else tree
