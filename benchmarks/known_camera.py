"""What it is worth to know lights of a camera: a prior from some of them, or from all that were measured.

    python benchmarks/known_camera.py DATA results/illuminant OUT

`results/illuminant/leave-one-set-out/runs` has the estimates of networks that saw neither the camera nor the data set.
The lights of an image's prior are drawn from the camera's other published folds. Writes OUT/results.json and
OUT/table.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.illuminant.camera import with_prior
from lightfast._experiments.illuminant.evaluation import added_lights, measure
from lightfast._experiments.illuminant.experiment import Illuminant
from lightfast._experiments.illuminant.plans import NETWORKS, PLANS
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast._experiments.summary import mean_and_spread

_HOW_MANY = (0, 6, 12, 24, None)


def main() -> None:
    """Measure each size of the prior with the estimates of each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--network", default="joint", choices=[name for name in NETWORKS if NETWORKS[name].parts])
    given = parser.parse_args()
    scenes = load_scenes(given.data)
    study = Illuminant(scenes, PLANS["cameras"], given.results / "leave-one-set-out", protocol="leave-one-set-out")
    seeds = study.answers(given.network, list(study.finished().values()))
    found, rows = {}, [["recovery error, °, mean / median", *scenes.set_names]]
    for count in _HOW_MANY:
        measured = []
        for seed, answers in enumerate(seeds):
            assert answers.spread is not None
            lights, _ = with_prior(scenes, answers.estimates[0], answers.spread, count, seed)
            measured.append(measure(scenes, lights[None], added_lights(scenes)[:1])["recovery"][0]["sets"])
        name = "all of two thirds" if count is None else str(count) if count else "none"
        found[name] = mean_and_spread(measured)[0]
        cells = [found[name][each]["geometric_mean"] for each in scenes.set_names]
        rows.append([f"lights known: {name}", *(f"{cell['mean']:.2f} / {cell['median']:.2f}" for cell in cells)])
    table = markdown(rows)
    print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    write_whole(given.out / "table.md", f"{table}\n".encode())
    about = {"network": given.network, "seeds": len(seeds), "provenance": provenance()}
    write_json(given.out / "results.json", {**about, "recovery": found})


if __name__ == "__main__":
    main()
