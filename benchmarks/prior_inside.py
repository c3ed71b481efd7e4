"""Where the prior of a camera belongs, on the answer or inside the networks: measured on another data set.

    lightfast train illuminant --data DATA/scenes --recipe cameras --network general --out MODEL
    python benchmarks/prior_inside.py MODEL DATA/nus8 OUT

Rows are of one image; of eight or all images of a camera together, which find its prior; and with the lights of its
other published folds as its prior. Writes OUT/inside.json and OUT/inside.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.illuminant.camera import groups_by_camera, priors
from lightfast._experiments.illuminant.evaluation import added_lights, confident_estimates, measure
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast.constancy import LightPrior
from lightfast.constancy._camera import FEWEST


def main() -> None:
    """Measure each way with one estimator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    estimator, scenes = lf.load(given.model).eval(), load_scenes(given.data)
    assert isinstance(estimator, lf.Estimator)
    lights, spread = confident_estimates(estimator, scenes, torch.arange(len(scenes)))
    everything = torch.arange(len(scenes))

    def found_together(size: int | None) -> list[tuple[Tensor, LightPrior]]:
        groups = [places for places in groups_by_camera(scenes.cameras, everything, size) if len(places) >= FEWEST]
        return [(places, LightPrior.from_estimates(lights[places], spread[places])) for places in groups]

    ways = {
        "8 images of a camera together": found_together(8),
        "all images of a camera together": found_together(None),
        "lights of two folds known": list(priors(scenes, everything)),
    }
    answers = {"one image": lights}
    for name, of_groups in ways.items():
        after, inside = lights.clone(), lights.clone()
        for places, prior in of_groups:
            after[places] = prior(lights[places], spread[places])
            inside[places] = confident_estimates(estimator, scenes, places, prior)[0]
        answers |= {f"{name}: onto the answer": after, f"{name}: inside": inside}
    found = {name: _errors(scenes, estimates) for name, estimates in answers.items()}
    rows = [["recovery error, °, geometric mean over cameras", "mean", "median", "worst 25 %"]]
    rows += [[name, *(f"{e[kind]:.2f}" for kind in ("mean", "median", "worst25"))] for name, e in found.items()]
    table = markdown(rows)
    print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    write_whole(given.out / "inside.md", f"{table}\n".encode())
    write_json(given.out / "inside.json", {"recovery": found, "trained": estimator.about, "provenance": provenance()})


def _errors(scenes: LitScenes, estimates: Tensor) -> dict[str, float]:
    return measure(scenes, estimates[None], added_lights(scenes)[:1])["recovery"][0]["geometric_mean"]


if __name__ == "__main__":
    main()
