"""A map of lights, trained on scenes that are lit again by two, and tested on pictures under several lights.

    python benchmarks/several_lights.py SCENES MIMO/lab OUT --steps 8000 --seeds 2

Writes the models OUT/0, OUT/1, ... and their errors, beside those of the baselines, to OUT/results.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path

import torch

from lightfast._atomic import write_json
from lightfast._commands.options import choose_device
from lightfast._experiments.data.mimo import load_mimo
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.engine import Job, Recipe, train_many
from lightfast._experiments.illuminant.several_lights import SeveralLightsTask, TwoLights, evaluate_map
from lightfast._experiments.illuminant.task import SceneAugmentation
from lightfast._experiments.provenance import provenance
from lightfast._pipelines.light_map import LightMap


def main() -> None:
    """Train a model for each seed side by side, test each, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--channels", type=int, nargs="+", default=[24, 48, 96], help="of the network: fewer, finer maps"
    )
    for name, value in dataclasses.asdict(TwoLights()).items():
        parser.add_argument(f"--{name}", type=float, default=value, help="see TwoLights")
    given = parser.parse_args()
    lit = TwoLights(given.along, given.sharpest, given.softest)
    device, scenes, pictures = choose_device("auto"), load_scenes(given.scenes), load_mimo(given.pictures)
    how = SceneAugmentation(smallest_part=0.3, exposure=1.0, sensor=0.05, black=0.01, mix=0.2)
    models, jobs = [], []
    for seed in range(given.seeds):
        torch.manual_seed(seed)
        model = LightMap(options={"channels": given.channels})
        recipe = Recipe(
            given.steps,
            batch_size=64,
            optimizer="adamw",
            lr=2e-3,
            weight_decay=1e-3,
            schedule="cosine",
            warmup=min(200, given.steps),
            ema=0.999,
            clip=1.0,
            seed=seed,
            log_every=1000,
            graph=device.type == "cuda",
        )
        models.append(model)
        task = SeveralLightsTask(scenes, model.encoding, how, lit=lit)
        jobs.append(Job(model.network, task, recipe, name=f"seed {seed}"))
    train_many(jobs, device=device, progress=False)
    found = {}
    for seed, model in enumerate(models):
        model.about = {"scenes": scenes.name, "steps": given.steps, "lit": vars(lit), "provenance": provenance()}
        model.cpu().eval().save(given.out / str(seed))
        measured = evaluate_map(model, pictures, torch.device("cpu"))[1]
        found[f"map of lights, seed {seed}"] = measured.pop("map of lights")
        found |= measured
    for name, errors in found.items():
        print(f"{name:40s} {errors['mean']:.2f} {errors['median']:.2f}")
    ours = [errors for name, errors in found.items() if name.startswith("map")]
    print("mean over seeds", *(round(statistics.fmean(each[n] for each in ours), 3) for n in ("mean", "median")))
    write_json(given.out / "results.json", {"pictures": len(pictures), "errors": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
