"""Several seeds' errors as mean and spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Measured", "StrategySummary", "summarize"]


@dataclass(frozen=True)
class Measured:
    """The mean of a number over seeds, and its sample standard deviation; None for one seed.

    >>> str(Measured.of([8.0, 9.0])), str(Measured.of([8.0]))
    ('8.50 ± 0.71', '8.00')
    """

    mean: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """The summary of one number a seed."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.spread is None else f"{self.mean:.2f} ± {self.spread:.2f}"


@dataclass(frozen=True)
class StrategySummary:
    """All runs of a strategy: errors in per cent.

    Attributes:
        name: the strategy's.
        title: what tables call it.
        parameters: of the network.
        seeds: how many runs.
        saturations: of the light.
        errors: at each of them.
        mixed: under light that turns from one hue into another over the image.
        varying: under each kind of light that varies over the image; older records have no more than the gradient.
    """

    name: str
    title: str
    parameters: int
    seeds: int
    saturations: tuple[float, ...]
    errors: tuple[Measured, ...]
    mixed: Measured
    varying: Mapping[str, Measured]

    def at(self, saturation: float) -> Measured:
        """The error at one of the saturations."""
        return self.errors[self.saturations.index(saturation)]


def summarize(records: Sequence[Mapping[str, Any]]) -> list[StrategySummary]:
    """The records of runs, strategy by strategy, in the order in which strategies first come."""
    by_strategy: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_strategy.setdefault(record["strategy"], []).append(record)
    return [
        StrategySummary(
            name,
            runs[0]["title"],
            runs[0]["parameters"],
            len(runs),
            tuple(runs[0]["saturations"]),
            tuple(Measured.of(values) for values in zip(*(run["errors"] for run in runs), strict=True)),
            Measured.of([run["mixed"] for run in runs]),
            _varying(runs),
        )
        for name, runs in by_strategy.items()
    ]


def _varying(runs: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    """What all runs of a strategy were measured under."""
    measured = [run.get("varying", {"gradient": run["mixed"]}) for run in runs]
    shared = [kind for kind in measured[0] if all(kind in errors for errors in measured)]
    return {kind: Measured.of([errors[kind] for errors in measured]) for kind in shared}
