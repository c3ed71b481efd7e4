"""How long converted networks run beside the conventional ones: `python -m benchmarks.conversion --out FOLDER`.

Each round runs all variants of a network one after the other, so that what else the machine does meets all alike;
times are of the processor, and ratios are medians over rounds. One thread, evaluation mode, weights frozen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from tests import zoo

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "ResNet-50": (lambda: lf.models.create("resnet50", None, 10), 64),
    "ConvNeXt": (lambda: zoo.ConvNeXt(48), 64),
    "ViT": (lambda: zoo.ViT(64, 8, 96, 4), 64),
    "U-Net": (lambda: zoo.UNet(24), 64),
}


def variants(model: nn.Module, example: torch.Tensor) -> dict[str, nn.Module]:
    """The conventional network, and what becomes of it."""
    made = {
        "conventional": model,
        "wrapped": lf.wrap(model),
        "converted": lf.convert(model, example),
        "lifted": lf.convert(model, example, lifted=True),
    }
    made["lifted, fused"] = lf.fuse(made["lifted"])
    return {name: net.eval().requires_grad_(False) for name, net in made.items()}


def measure(networks: dict[str, nn.Module], x: torch.Tensor, rounds: int) -> dict[str, float]:
    """The median time of each, relative to the first."""
    first = next(iter(networks))
    ratios: dict[str, list[float]] = {name: [] for name in networks}
    for number in range(rounds + 1):
        times = {}
        for name, network in networks.items():
            begun = time.process_time()
            network(x)
            times[name] = time.process_time() - begun
        if number:
            for name in networks:
                ratios[name].append(times[name] / times[first])
    return {name: statistics.median(found) for name, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="How long converted networks run beside the conventional ones.")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    source, found = provenance(), {}
    with torch.no_grad():
        for name in chosen.networks.split(","):
            build, size = NETWORKS[name]
            torch.manual_seed(0)
            x = torch.randn(chosen.batch, 3, size, size)
            found[name] = measure(variants(build().eval(), x[:1]), x, chosen.rounds)
            print(f"{name}: " + ", ".join(f"{key} {ratio:.2f}" for key, ratio in found[name].items()), flush=True)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        write_json(chosen.out / "results.json", {**source, "rounds": chosen.rounds, "ratios": found})
        head = ["network", *list(next(iter(found.values())))[1:]]
        rows = [[name, *(f"{ratio:.2f}" for ratio in list(ratios.values())[1:])] for name, ratios in found.items()]
        write_whole(chosen.out / "table.md", markdown([head, *rows]).encode() + b"\n")


if __name__ == "__main__":
    main()
