"""Which light to take away from log RGB, where light is no plane: short trainings, tested on held-out training images.

    python benchmarks/choose_field.py DATA OUT --fields 0,1,2,4,ridge4:0.1 --steps 4000 --seeds 2

A field is an order, or `ridgeN:λ` for :class:`lightfast.fields.Ridge`. All are trained together where there is a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.classification import STRATEGIES
from lightfast._experiments.engine import Job, Recipe, train_many
from lightfast._experiments.plan import Plan
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.evaluation import evaluate
from lightfast._experiments.recognition.pictures import drawn_pictures, load_pictures
from lightfast._experiments.recognition.task import Augmentation, RecognitionTask
from lightfast._experiments.report.tables import markdown
from lightfast._pipelines.preparation import Preparation
from lightfast.fields import FieldSpec, Ridge
from lightfast.light import LIGHT_KINDS


class Seeing(nn.Module):
    """A conventional network on sRGB pictures, by way of its preparation."""

    def __init__(self, prepare: Preparation, network: nn.Module) -> None:
        super().__init__()
        self.prepare, self.network = prepare, network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.prepare(images))


def field_of(text: str) -> FieldSpec:
    """`2` or `ridge4:0.1`."""
    if not text.startswith("ridge"):
        return int(text)
    order, strength = text.removeprefix("ridge").split(":")
    return Ridge(int(order), float(strength))


def main() -> None:
    """Train, test, and write `results.json` and `table.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="CIFAR-10, or `drawn` for pictures that are drawn")
    parser.add_argument("out", type=Path)
    parser.add_argument("--fields", default="0,1,2,3,4,ridge4:0.03,ridge4:0.3,ridge6:0.03,ridge6:0.3,ridge8:0.1")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures = drawn_pictures() if asked.data == "drawn" else load_pictures(Path(asked.data))
    pictures = pictures.held_out().to_train_on(device)
    norm = STRATEGIES["wrapped"].norm(pictures.train_images)
    recipe = Recipe(
        asked.steps,
        batch_size=asked.batch_size,
        lr=asked.lr,
        nesterov=True,
        weight_decay=5e-4,
        schedule="cosine",
        warmup=asked.steps // 10,
        ema=0.999,
        **(Plan.on_gpu if device.type == "cuda" else {}),
    )
    seen: dict[tuple[str, int], Seeing] = {}
    jobs = []
    for name in asked.fields.split(","):
        for seed in range(asked.seeds):
            torch.manual_seed(seed)
            prepare = Preparation(norm, "log", field=field_of(name)).to(device)
            seen[name, seed] = Seeing(prepare, lf.models.create("resnet20", None, len(pictures.classes)))
            task = RecognitionTask(pictures.train_images, pictures.train_labels, prepare, Augmentation(crop=4))
            made = dataclasses.replace(recipe, seed=seed)
            jobs.append(Job(seen[name, seed].network, task, made, name=f"{name}, seed {seed}"))
    train_many(jobs, device=device, progress=False)

    runs = []
    for (name, seed), network in seen.items():
        found = evaluate(network, pictures.test_images, pictures.test_labels, saturations=(0.0, 0.9), device=device)
        runs.append({"field": name, "seed": seed, **dataclasses.asdict(found)})
    asked.out.mkdir(parents=True, exist_ok=True)
    settings = {key: str(value) for key, value in vars(asked).items() if key not in ("data", "out")}
    about = {"data": pictures.name, "train_images": len(pictures.train_labels), "held_out": len(pictures.test_labels)}
    write_json(asked.out / "results.json", about | {"settings": settings, "runs": runs, "provenance": provenance()})
    text = markdown(rows_of(runs))
    write_whole(asked.out / "table.md", f"Error on held-out images, %, light of saturation 0.9.\n\n{text}\n".encode())
    print(text)


def rows_of(runs: list[dict[str, Any]]) -> list[list[str]]:
    """A row per field, means over seeds."""
    rows = [["Field", "white", "one light", *(kind.replace("-", " ") for kind in LIGHT_KINDS), "seeds"]]
    for name in dict.fromkeys(run["field"] for run in runs):
        own = [run for run in runs if run["field"] == name]
        columns = zip(*([*run["errors"], *(run["varying"][kind] for kind in LIGHT_KINDS)] for run in own), strict=True)
        rows.append([name, *(f"{sum(column) / len(own):.2f}" for column in columns), str(len(own))])
    return rows


if __name__ == "__main__":
    main()
