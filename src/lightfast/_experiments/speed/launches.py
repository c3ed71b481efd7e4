"""What it costs a GPU's user to launch kernels one by one, and the ways around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lightfast._experiments.speed.steps import LAYOUTS, PrecisionName, model_of, step_of
from lightfast._experiments.speed.subjects import Mode, Subject, sample
from lightfast._experiments.speed.timing import Pace, Work, interleaved, quartiles, ratios, rounded

WAYS: dict[str, str] = {
    "graph": "the whole step in a CUDA graph, as training by this library has it",
    "callable": "forward and backward pass in a CUDA graph each, by torch.cuda.make_graphed_callables",
    "eager": "no graph",
}
"""How the kernels of a step are launched, by name."""

LAUNCHED = (Subject("resnet20", 128, 32), Subject("resnet20", 1, 32), Subject("resnet50", 64, 224))
"""What is launched in all ways: where maps are small, where they are least, and where they are large."""

_LAYOUT = "channels-last"
_SHORTEST = 0.05  # Seconds of a sample: a loop of many steps, whose launches may run ahead of the device.


def launches(
    subjects: Sequence[Subject], precision: PrecisionName, device: torch.device, pace: Pace
) -> list[dict[str, Any]]:
    """Measure plain, ours and, in inference, fused in all ways; a record for each subject and mode, for JSON."""
    pace = dataclasses.replace(pace, shortest=_SHORTEST)
    return [_record(subject, precision, device, mode, pace) for subject in subjects for mode in subject.modes]


def _record(subject: Subject, precision: PrecisionName, device: torch.device, mode: Mode, pace: Pace) -> dict[str, Any]:
    training = mode == "training"
    ways = [way for way in WAYS if way != "callable" or (training and device.type == "cuda")]
    names = ("plain", "ours") if training else ("plain", "ours", "fused")
    cases = [(name, way) for name in names for way in ways]
    works = {case: _work(subject, precision, device, mode, *case) for case in cases}
    samples = interleaved(works, pace)
    return {
        "title": f"{subject.title}, {precision}",
        "network": subject.network,
        "batch": subject.batch,
        "mode": mode,
        "variants": {
            name: {
                way: {
                    "milliseconds": rounded(quartiles(samples[name, way]), 1000),
                    "to_plain": rounded(ratios(samples[name, way], samples["plain", way])),
                }
                for way in ways
            }
            for name in names
        },
    }


def _work(subject: Subject, precision: PrecisionName, device: torch.device, mode: Mode, variant: str, way: str) -> Work:
    model = model_of(subject, variant, mode, _LAYOUT, device)
    network = _graphed(model, subject, precision, device) if way == "callable" else model
    step = step_of(subject, precision, mode, _LAYOUT, model, network)
    return Work(step, device, graph=device.type == "cuda" and way == "graph")


def _graphed(model: nn.Module, subject: Subject, precision: PrecisionName, device: torch.device) -> Any:
    images = sample(subject, device)[0].contiguous(memory_format=LAYOUTS[_LAYOUT])
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
        return torch.cuda.make_graphed_callables(model, (images,))
