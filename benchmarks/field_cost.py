"""What taking a field of light away costs: the time of a training step with a field, as a ratio to that with one mean.

    python benchmarks/field_cost.py results/speed/fields --steps 200 --rounds 5

A ResNet-20 on drawn pictures of the size of CIFAR-10's, by the engine's own step (in a CUDA graph where there is a
GPU), with all that is done to pictures. The networks take turns; the ratio of a round is to the step of the same round,
and the median of these is told.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.classification import STRATEGIES
from lightfast._experiments.engine import Recipe, train
from lightfast._experiments.plan import Plan
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.pictures import drawn_pictures
from lightfast._experiments.recognition.task import Augmentation, RecognitionTask
from lightfast._experiments.report.tables import markdown
from lightfast._pipelines.preparation import Preparation

FIELDS = {"one mean": 0, "plane": 1, "quadratic": 2}


def step_seconds(task: RecognitionTask, recipe: Recipe, device: torch.device) -> float:
    """Seconds of one step, without the first of two log lines, which has the warming up."""
    torch.manual_seed(0)
    network = lf.models.create("resnet20", None, 10)
    with TemporaryDirectory() as folder:
        train(network, task, recipe, Path(folder), device=device, progress=False)
        lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return (lines[-1]["seconds"] - lines[0]["seconds"]) / (lines[-1]["step"] - lines[0]["step"])


def main() -> None:
    """Measure, and write `results.json` and `table.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    asked = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = provenance()
    pictures = drawn_pictures(max(asked.batch_size, 512), 1, size=32).to_train_on(device)
    norm = STRATEGIES["wrapped"].norm(pictures.train_images)
    recipe = Recipe(
        2 * asked.steps,
        batch_size=asked.batch_size,
        log_every=asked.steps,
        checkpoint_every=0,
        **(Plan.on_gpu if device.type == "cuda" else {}),
    )
    tasks = {
        name: RecognitionTask(
            pictures.train_images,
            pictures.train_labels,
            Preparation(norm, "log", field=field).to(device),
            Augmentation(crop=4),
        )
        for name, field in FIELDS.items()
    }
    rounds = [{name: step_seconds(task, recipe, device) for name, task in tasks.items()} for _ in range(asked.rounds)]
    rows = [["Taken away", "a step, ms", "ratio", "from", "to"]]
    for name in FIELDS:
        ratios = [each[name] / each["one mean"] for each in rounds]
        shown = (median(ratios), min(ratios), max(ratios))
        rows.append([name, f"{1000 * median(e[name] for e in rounds):.2f}", *(f"{ratio:.3f}" for ratio in shown)])
    asked.out.mkdir(parents=True, exist_ok=True)
    settings = {"steps": asked.steps, "batch_size": asked.batch_size}
    write_json(asked.out / "results.json", {"settings": settings, "rounds": rounds, "provenance": before})
    text = markdown(rows)
    write_whole(
        asked.out / "table.md", f"Training of a ResNet-20, {asked.batch_size} images a step.\n\n{text}\n".encode()
    )
    print(text)


if __name__ == "__main__":
    main()
