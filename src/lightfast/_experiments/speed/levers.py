"""What each lever gives: our network measured with all of them, and with each one left out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from lightfast._backends import WeightCache
from lightfast._backends.native import backend as native
from lightfast._backends.triton import backend as triton
from lightfast._experiments.speed.steps import PrecisionName, model_of, step_of
from lightfast._experiments.speed.subjects import Mode, Subject
from lightfast._experiments.speed.timing import Pace, Work, interleaved, quartiles, ratios, rounded

Place = tuple[Any, str]


@dataclass(frozen=True)
class Lever:
    """Something that makes our network faster, in some modes, and how to do without it.

    Without it, other functions are in the places of those in `without`, maps have this memory format, and a CUDA graph
    is replayed or not.
    """

    name: str
    without: Mapping[Place, Any] = field(default_factory=dict)
    layout: str = "channels-last"
    graph: bool = True
    modes: tuple[Mode, ...] = ("training", "inference")


def _make_again(cache: WeightCache, weight: Any, kind: Any, make: Callable[[Any], Any]) -> Any:
    return make(weight)


# The package has a function of the same name in its place.
_NORM_ACT = importlib.import_module("lightfast._backends.norm_act")
_KEPT = Lever("projected weights kept", {(WeightCache, "get"): _make_again}, modes=("inference",))

LEVERS: dict[str, tuple[Lever, ...]] = {
    "cpu": (
        Lever("passes in C", {(native, "_passes"): lambda: None}),
        Lever(
            "all of it image by image",
            {(module, "wants_gradient"): lambda *tensors: True for module in (native, _NORM_ACT)},
            modes=("inference",),
        ),
        Lever("channels-last maps", layout="contiguous"),
        _KEPT,
    ),
    "cuda": (
        Lever("kernels in Triton", {(triton.Triton, "_trusts"): lambda *arguments: False}),
        Lever("idle channels", {(triton.Triton, "channels"): lambda backend, features, dtype: features}),
        Lever("CUDA graph", graph=False),
    ),
}
"""For each kind of device."""


def levers(subject: Subject, precision: PrecisionName, device: torch.device, pace: Pace) -> list[dict[str, Any]]:
    """Measure all levers of the device; a record for each mode, as JSON can hold them."""
    records = []
    for mode in subject.modes:
        works = {"ours": _work(subject, precision, device, mode, Lever("none"))}
        for lever in LEVERS[device.type]:
            if mode in lever.modes:
                works[lever.name] = _work(subject, precision, device, mode, lever)
        samples = interleaved(works, pace)
        records.append(
            {
                "title": f"{subject.title}, {precision}",
                "mode": mode,
                "without": {
                    name: {
                        "milliseconds": rounded(quartiles(values), 1000),
                        "ratio": rounded(ratios(values, samples["ours"])),
                    }
                    for name, values in samples.items()
                },
            }
        )
    return records


def _work(subject: Subject, precision: PrecisionName, device: torch.device, mode: Mode, lever: Lever) -> Work:
    model = model_of(subject, "ours", mode, lever.layout, device)
    step = step_of(subject, precision, mode, lever.layout, model)

    def once() -> None:
        with _replaced(lever.without):
            step()

    return Work(once, device, graph=device.type == "cuda" and lever.graph)


@contextmanager
def _replaced(places: Mapping[Place, Any]) -> Iterator[None]:
    """Put other functions in their places, for a while."""
    before = {(owner, name): getattr(owner, name) for owner, name in places}
    try:
        for (owner, name), value in places.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)
