"""What an estimator of the light costs: milliseconds for one image of 64 x 64 pixels on one core, and megabytes.

    python benchmarks/estimator_cost.py MODEL ... [--json OUT.json]

MODEL is a packaged one or a folder. The time is the processor's, the median of 50 calls, after 10 that do not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

import lightfast as lf
from lightfast._atomic import write_json
from lightfast._experiments.provenance import provenance


def milliseconds(model: torch.nn.Module, calls: int = 50, warmup: int = 10) -> float:
    """The median time of an answer for one image."""
    image, taken = torch.rand(1, 3, 64, 64), []
    for _ in range(warmup + calls):
        start = time.process_time()
        model(image)
        taken.append(1e3 * (time.process_time() - start))
    return statistics.median(taken[warmup:])


def main() -> None:
    """Time each model, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in given.models:
        model = lf.load(name)
        megabytes = sum(each.numel() * each.element_size() for each in model.state_dict().values()) / 1e6
        found[name] = {"ms": round(milliseconds(model), 2), "MB in 32 bits": round(megabytes, 2)}
        print(f"{name}: {found[name]['ms']} ms on one core, {megabytes:.2f} MB in 32 bits")
    if given.json:
        write_json(given.json, {"costs": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
