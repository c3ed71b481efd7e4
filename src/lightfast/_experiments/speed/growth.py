"""What the cost grows with: a layer's training step over batch, pixels, channels and groups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightfast._experiments.speed.timing import Pace, Work, interleaved, quartiles
from lightfast.nn import ConvNormAct2d, LiftedMap


@dataclass(frozen=True)
class Setting:
    """A layer, and the map that it is given: (batch, inputs, side, side) to (batch, outputs, side, side)."""

    batch: int
    side: int
    inputs: int
    outputs: int
    kernel: int
    groups: int = 3


GROUPS = (1, 2, 3, 5, 6, 10, 15, 30, 31)
"""The divisors of 930, from the least on."""

AXES: dict[str, dict[str, dict[int, Setting]]] = {
    "cpu": {
        "batch": {n: Setting(n, 16, 30, 60, 3) for n in (4, 8, 16, 32, 64)},
        "pixels": {side**2: Setting(4, side, 30, 60, 3) for side in (8, 16, 24, 32, 48, 64)},
        "channels": {c: Setting(8, 16, 30, c, 3) for c in (30, 60, 120, 240, 480, 930)},
        "groups": {g: Setting(8, 8, 930, 930, 1, g) for g in GROUPS},
    },
    "cuda": {
        "batch": {n: Setting(n, 32, 60, 120, 3) for n in (64, 128, 256, 512, 1024)},
        "pixels": {side**2: Setting(64, side, 60, 120, 3) for side in (16, 32, 64, 96, 128)},
        "channels": {c: Setting(128, 32, 30, c, 3) for c in (60, 120, 240, 480, 930)},
        "groups": {g: Setting(128, 16, 930, 930, 1, g) for g in GROUPS},
    },
}
"""For each kind of device, what is varied and the settings by value."""


def growth(device: torch.device, pace: Pace) -> list[dict[str, Any]]:
    """Measure along every axis, the plain layer beside ours; one record an axis, as JSON can hold it."""
    records = []
    for axis, settings in AXES[device.type].items():
        works: dict[str, Work] = {}
        for value, setting in settings.items():
            works[f"plain {value}"] = _work(_plain(setting), setting, device)
            works[f"ours {value}"] = _work(_Ours(setting), setting, device)
        samples = interleaved(works, pace)
        times = {
            who: [[1000 * t for t in quartiles(samples[f"{who} {value}"])] for value in settings]
            for who in ("plain", "ours")
        }
        values = list(settings)
        records.append(
            {
                "axis": axis,
                "values": values,
                "milliseconds": {who: [[round(t, 5) for t in row] for row in rows] for who, rows in times.items()},
                "exponent": {who: round(exponent(values, [row[1] for row in rows]), 3) for who, rows in times.items()},
                "setting": f"{next(iter(settings.values()))}",
            }
        )
    return records


def exponent(values: Sequence[float], times: Sequence[float]) -> float:
    """The `k` of `time = constant * value^k`, by least squares over the logarithms: 1 is linear, 0 no growth at all.

    >>> round(exponent([1, 2, 4], [3.0, 6.0, 12.0]), 6)
    1.0
    """
    return statistics.linear_regression([math.log(value) for value in values], [math.log(t) for t in times]).slope


def _plain(setting: Setting) -> nn.Module:
    conv = nn.Conv2d(setting.inputs, setting.outputs, setting.kernel, padding=setting.kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(setting.outputs), nn.ReLU())


class _Ours(nn.Module):
    """The layer on maps that are lifted already, as it is inside a network."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.unit = ConvNormAct2d(
            setting.inputs,
            setting.outputs,
            setting.kernel,
            padding=setting.kernel // 2,
            bias=False,
            offset_groups=setting.groups,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(LiftedMap(x, None)).map


def _work(layer: nn.Module, setting: Setting, device: torch.device) -> Work:
    """Forward and backward through the layer, in the precision and memory format that the device likes."""
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    kind: Any = {"device": device, "memory_format": torch.channels_last}
    layer = layer.to(**kind).train()
    x = torch.randn(setting.batch, setting.inputs, setting.side, setting.side).to(**kind).requires_grad_()
    wanted = [x, *layer.parameters()]

    def once() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            y = layer(x)
        torch.autograd.grad(y, wanted, y.detach())

    return Work(once, device, graph=on_gpu)
