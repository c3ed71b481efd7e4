"""What it costs a GPU's user to launch kernels one by one, and the ways around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lightfast.bench.steps import LAYOUTS, PrecisionName, step_of
from lightfast.bench.subjects import Mode, Subject, build, sample
from lightfast.bench.timing import Pace, Work, interleaved, quartiles, ratios

__all__ = ["WAYS", "launches"]

WAYS: dict[str, str] = {
    "graph": "the whole step in a CUDA graph, as training by this library has it",
    "callable": "forward and backward pass in a CUDA graph each, by torch.cuda.make_graphed_callables",
    "eager": "no graph",
}
"""How the kernels of a step are launched, by name."""

_LAYOUT = "channels-last"


def launches(subject: Subject, precision: PrecisionName, device: torch.device, pace: Pace) -> list[dict[str, Any]]:
    """Measure plain and ours in all ways; one record for training and one for inference, as JSON can hold them."""
    records = []
    modes: tuple[Mode, ...] = ("training", "inference")
    for mode in modes:
        ways = [way for way in WAYS if way != "callable" or (mode == "training" and device.type == "cuda")]
        cases = [(name, way) for name in ("plain", "ours") for way in ways]
        works = {f"{name} {way}": _work(subject, precision, device, mode, name, way) for name, way in cases}
        samples = interleaved(works, pace)
        base = samples["plain graph"]
        records.append(
            {
                "title": f"{subject.title}, {precision}",
                "mode": mode,
                "variants": {
                    name: {
                        way: {
                            "milliseconds": [round(1000 * value, 4) for value in quartiles(samples[f"{name} {way}"])],
                            "ratio": [round(value, 4) for value in ratios(samples[f"{name} {way}"], base)],
                        }
                        for way in ways
                    }
                    for name in ("plain", "ours")
                },
            }
        )
    return records


def _work(subject: Subject, precision: PrecisionName, device: torch.device, mode: Mode, variant: str, way: str) -> Work:
    model: Any = build(subject, variant)
    model = model.to(device, memory_format=LAYOUTS[_LAYOUT]).train(mode == "training")
    network = _graphed(model, subject, precision, device) if way == "callable" else model
    step = step_of(subject, precision, mode, _LAYOUT, model, network)
    return Work(step, device, graph=device.type == "cuda" and way == "graph")


def _graphed(model: nn.Module, subject: Subject, precision: PrecisionName, device: torch.device) -> Any:
    images = sample(subject, device)[0].contiguous(memory_format=LAYOUTS[_LAYOUT])
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
        return torch.cuda.make_graphed_callables(model, (images,))
