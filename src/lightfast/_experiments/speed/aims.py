"""What is aimed at: ratios of times and of memory that are to be at most so much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lightfast._experiments.speed.subjects import COMPILED, Mode
from lightfast._experiments.speed.timing import ratios

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Aim:
    """That a ratio of two variants be at most this; against the straightforward way it is to be at least this.

    It is one of the times of a comparison, of its memory, or of its times launched kernel by kernel on a GPU (`eager`);
    for a network and batches, or for all where none are named.
    """

    variant: str
    base: str
    mode: Mode
    limit: float
    what: Literal["time", "memory", "eager"] = "time"
    network: str = ""
    batches: tuple[int, ...] = ()

    @property
    def at_least(self) -> bool:
        """Whether more is better."""
        return self.variant == "straightforward"

    @property
    def title(self) -> str:
        """What tables show."""
        measure = {"time": self.mode, "memory": "memory", "eager": f"{self.mode}, eager"}[self.what]
        return f"{measure}, {self.variant} / {self.base}"

    def is_for(self, network: str, batch: int) -> bool:
        """Whether it is one for batches of a network."""
        return self.network in ("", network) and (not self.batches or batch in self.batches)

    def is_met_by(self, found: float) -> bool:
        """Whether a ratio is good enough."""
        return found >= self.limit if self.at_least else found <= self.limit


_EVERYWHERE = (
    Aim("ours", "plain", "training", 1.10, "memory"),
    Aim("ours-compiled", "plain-compiled", "training", 1.10),
    Aim("ours-compiled", "plain-compiled", "inference", 1.10),
)

AIMS: dict[str, tuple[Aim, ...]] = {
    "cuda": (
        Aim("ours", "plain", "training", 1.15),
        Aim("straightforward", "ours", "training", 2.0),
        Aim("ours", "plain", "inference", 1.10),
        *_EVERYWHERE,
        Aim("ours", "plain", "training", 1.25, "eager", "resnet20"),
        Aim("ours", "plain", "inference", 1.25, "eager", "resnet20"),
        Aim("ours", "plain", "training", 1.10, "eager", "resnet50"),
        Aim("ours", "plain", "inference", 1.10, "eager", "resnet50"),
    ),
    "cpu": (
        Aim("ours", "same-widths", "training", 1.25),
        Aim("ours", "plain", "training", 1.40),
        Aim("straightforward", "ours", "training", 1.40),
        Aim("ours", "plain", "inference", 1.25),
        *_EVERYWHERE,
        Aim("ours", "plain", "training", 1.15, network="resnet20", batches=(64, 128)),
        Aim("ours", "plain", "inference", 1.15, network="resnet20", batches=(1, 64, 128)),
    ),
}
"""For each kind of device. A later one takes the place of an earlier one with the same title."""


def aims_for(device: str, network: str, batch: int) -> list[Aim]:
    """Those for batches of a network on a kind of device.

    >>> [aim.limit for aim in aims_for("cpu", "resnet20", 128) if aim.title == "inference, ours / plain"]
    [1.15]
    """
    return list({aim.title: aim for aim in AIMS[device] if aim.is_for(network, batch)}.values())


class Outcome(NamedTuple):
    """What was measured where something is aimed at."""

    aim: Aim
    record: Record
    found: float


def outcomes(device: str, comparisons: Sequence[Record], launches: Sequence[Record]) -> Iterator[Outcome]:
    """Each aim for which there is a measurement, in the order of the measurements."""
    for record in (*comparisons, *launches):
        for aim in aims_for(device, record["network"], record["batch"]):
            if record["mode"] == aim.mode and {aim.variant, aim.base} <= record["variants"].keys():
                found = _found(aim, record)
                if found is not None:
                    yield Outcome(aim, record, found)


def _found(aim: Aim, record: Record) -> float | None:
    """The ratio that the aim is about, if the record has it; records of launches say nothing of compilers."""
    variant, base = (record["variants"][name] for name in (aim.variant, aim.base))
    if "compiled" not in record:
        return variant["eager"]["to_plain"][1] if aim.what == "eager" else None
    if aim.what == "eager" or record["compiled"] != (aim.variant in COMPILED):
        return None
    if aim.what == "memory":
        return variant["memory"] / base["memory"]
    return ratios(variant["samples"], base["samples"])[1]
