"""Settings of the illuminant networks, compared on held-out images of a training set.

    python benchmarks/choose_illuminant.py DATA CONFIGURATIONS.json OUT.json --on new-camera --steps 1500

CONFIGURATIONS.json has `{name: [network, {setting: value}]}`; all are trained side by side. Three ways to hold out:

- `new-camera`: inside the training part of the first content-disjoint fold, scenes of held-out cameras that no other
  camera showed in training, split by split.
- `leave-one-set-out`: each data set in turn. With `--without SET` that set has no say at all: settings for a test on it
  are chosen on the others.
- `pooled`: every fourth image, at random, of those that are not in the first published fold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightfast._atomic import write_json
from lightfast._commands.options import choose_device
from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.engine import Job, train_many
from lightfast._experiments.illuminant.evaluation import added_lights, estimates_under_light
from lightfast._experiments.illuminant.plans import NETWORKS, PLANS
from lightfast._experiments.illuminant.protocols import held_out_scenes, splits_of
from lightfast._experiments.illuminant.task import IlluminantTask, even_weights
from lightfast._experiments.provenance import provenance
from lightfast.metrics import recovery_error, reproduction_error, summary


def held_out(scenes: LitScenes, how: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Training and test images, as indices."""
    if how == "pooled":
        rest = torch.where(scenes.folds != 1)[0]
        rest = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))]
        yield rest[len(rest) // 4 :], rest[: len(rest) // 4]
        return
    if how == "leave-one-set-out":
        for split in splits_of(scenes, how):
            yield split.train, split.test
        return
    allowed = held_out_scenes(scenes.shown, 3, 0) != 0
    for split in splits_of(scenes, "new-camera"):
        yield split.train[allowed[split.train]], split.test[allowed[split.test]]


def main() -> None:
    """Train every configuration on every split, and write down the errors over all held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("configurations", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", choices=("new-camera", "leave-one-set-out", "pooled"), default="new-camera")
    parser.add_argument("--without", help="a data set that has no say")
    parser.add_argument("--every", type=int, default=1, help="test on every so many of the held-out images")
    parser.add_argument("--recipe", choices=list(PLANS), default="best")
    parser.add_argument("--steps", type=int, default=1500)
    given = parser.parse_args()
    configurations: dict[str, tuple[str, dict[str, Any]]] = json.loads(given.configurations.read_text())
    device, scenes = choose_device("auto"), load_scenes(given.data)
    if given.without:
        scenes = scenes.subset(torch.where(scenes.sets != scenes.set_names.index(given.without))[0])
        numbers = scenes.sets.unique().tolist()
        names = tuple(scenes.set_names[number] for number in numbers)
        scenes = replace(scenes, set_names=names, sets=scenes.sets.unique(return_inverse=True)[1])
    parts, truth = [(train, test[:: given.every]) for train, test in held_out(scenes, given.on)], scenes.illuminants
    scenes = scenes.to(device)
    lights, found = added_lights(scenes)[:1], {name: [] for name in configurations}
    for train, test in parts:
        estimators, jobs = {}, []
        for name, (network, values) in configurations.items():
            kind, graph = NETWORKS[network], {"graph": device.type == "cuda"}
            if kind.parts:
                raise ValueError(f"{name}: compare the parts of {network}, {', '.join(kind.parts)}, one by one")
            plan = PLANS[given.recipe].with_steps(given.steps).with_values(values | graph).plan_for(network)
            estimators[name] = estimator = plan.estimator(network, 0)
            augmentation = plan.augmentation_for(network)
            weights = even_weights(scenes, train, plan.even) if plan.even else None
            task = IlluminantTask(
                scenes, estimator.encoding, augmentation, plan.recovery, train, weights, plan.confidence
            )
            jobs.append(Job(estimator.networks[0], task, plan.recipe, name=name))
        train_many(jobs, device=device, progress=False)
        for name, estimator in estimators.items():
            found[name].append(estimates_under_light(estimator.to(device).eval(), scenes, test, lights)[0])
    tested = truth[torch.cat([test for _, test in parts])]
    records = {}
    for name, estimates in found.items():
        errors = {"reproduction": reproduction_error, "recovery": recovery_error}
        apart = {
            f"part {number}": summary(recovery_error(some, truth[test])).as_dict()
            for number, (some, (_, test)) in enumerate(zip(estimates, parts, strict=True))
        }
        measured = {kind: summary(error(torch.cat(estimates), tested)).as_dict() for kind, error in errors.items()}
        records[name] = {
            "settings": configurations[name],
            "images": len(tested),
            "steps": given.steps,
            **measured,
            "recovery of": apart,
        }
        by_part = "  ".join(f"{part['mean']:.3f} {part['median']:.3f}" for part in apart.values())
        both = f"{measured['recovery']['mean']:.3f} {measured['recovery']['median']:.3f}"
        print(f"{name:32s} {both}  of each part: {by_part}", flush=True)
    write_json(given.out, {**records, "provenance": provenance()})


if __name__ == "__main__":
    main()
