"""How wide the Gaussians of a camera's prior are: the density of its lights that were left out, by ways to choose.

    python benchmarks/light_density.py DATA OUT

For each camera and published fold, a prior is made from lights of the other folds: from 12 at random, or from all of
them. Writes OUT/widths.json and OUT/widths.md: the mean log density of the fold's lights, over folds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.illuminant.camera import groups_by_camera
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast.constancy import LightPrior
from lightfast.constancy._camera import _chroma

_COUNTS = (12, None)


def main() -> None:
    """Measure every way for every camera."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    scenes = load_scenes(given.data)
    found: dict[str, dict[str, list[float]]] = {}
    for own in groups_by_camera(scenes.cameras, torch.arange(len(scenes))):
        camera, lights, folds = scenes.camera_names[scenes.cameras[own[0]]], scenes.illuminants[own], scenes.folds[own]
        found[camera] = {
            name: [_left_out(make, lights, folds, count) for count in _COUNTS] for name, make in WAYS.items()
        }
    rows = [["mean log density, from 12 lights / from all", *WAYS]]
    for camera, ways in found.items():
        rows.append([camera, *(" / ".join(f"{each:.2f}" for each in densities) for densities in ways.values())])
    table = markdown(rows)
    print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    write_whole(given.out / "widths.md", f"{table}\n".encode())
    write_json(given.out / "widths.json", {"log_density": found, "provenance": provenance()})


def _left_out(make: Callable[[Tensor], LightPrior], lights: Tensor, folds: Tensor, count: int | None) -> float:
    generator, densities = torch.Generator().manual_seed(0), []
    for fold in folds.unique():
        others = lights[folds != fold]
        prior = make(others[torch.randperm(len(others), generator=generator)[:count]])
        densities.append(prior.log_density(lights[folds == fold].log()[None]).mean())
    return round(float(torch.stack(densities).mean()), 3)


def _all_as_wide(lights: Tensor) -> LightPrior:
    """The median distance of a light to the nearest other one, at least 0.02."""
    chroma = _chroma(lights)
    distance = torch.cdist(chroma, chroma).fill_diagonal_(torch.inf)
    return LightPrior(lights, max(float(distance.amin(1).median()), 0.02))


WAYS: dict[str, Callable[[Tensor], LightPrior]] = {
    "each to its nearest": LightPrior,
    "all to the median nearest": _all_as_wide,
    **{f"{width:g}": lambda lights, width=width: LightPrior(lights, width) for width in (0.02, 0.04, 0.08)},
}
"""From lights to their prior: what a user gets first."""


if __name__ == "__main__":
    main()
