"""How to look at pictures under several lights: windows and stiffness of the plane of light, compared.

    python benchmarks/several_lights.py MIMO/valid OUT.json [--tested MIMO/lab] [--known] [--model illuminant]

Writes the errors of all settings, least mean first. What the estimator's own then are on other pictures says
`lightfast evaluate illuminant --data MIMO/lab`. With `--tested`, the best settings are measured there, and a table is
written beside OUT.json. With `--known`, all pictures are of one camera whose lights are known: those of the pictures of
other scenes, and for the tested pictures those of all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.mimo import LitPicture, load_mimo
from lightfast._experiments.illuminant.several_lights import measure_pictures
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast._pipelines.light_plane import Windows
from lightfast.constancy import LightPrior

_LIGHTS = 8
"""Of each picture, that make up a prior."""

_STIFFNESSES = (0.02, 0.05, 0.2)
"""Without any, windows that see a corner alone do not determine a plane; pictures that are seen all over need none."""


@torch.no_grad()
def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tested", type=Path)
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--model", default="illuminant")
    given = parser.parse_args()
    pictures, estimator = load_mimo(given.pictures), lf.load(given.model).eval()
    assert isinstance(estimator, lf.Estimator)
    known = [LightPrior(lights_of(_other_scenes(p, pictures))) if given.known else None for p in pictures]
    found = []
    for across, part in product((3, 5, 7, 9), (0.25, 0.35, 0.5)):
        said = {
            p.name: estimator.window_lights(p.image[None], p.known[None], Windows(across, part), prior)
            for p, prior in zip(pictures, known, strict=True)
        }
        for stiffness in _STIFFNESSES:
            windows = Windows(across, part, stiffness)

            def answer(picture: LitPicture, windows: Windows = windows, said: dict[str, Any] = said) -> torch.Tensor:
                logs, weights = said[picture.name]
                return windows.plane(logs, weights, picture.image.shape[1:])[0].exp()

            errors = measure_pictures(answer, pictures)
            found.append({**windows._asdict(), "errors": errors})
            print(*windows, f"{errors['mean']:.3f} {errors['median']:.3f}", flush=True)
    found.sort(key=lambda each: each["errors"]["mean"])
    best = Windows(found[0]["across"], found[0]["part"], found[0]["stiffness"])
    record = {"pictures": len(pictures), "settings": found}
    if given.tested is not None:
        prior = LightPrior(lights_of(pictures)) if given.known else None
        errors = measure_tested(estimator, load_mimo(given.tested), best, prior)
        record["tested"] = {"a plane of light" + (", lights of the camera known" if given.known else ""): errors}
        rows = [[name, *(f"{e[kind]:.2f}" for kind in ("mean", "median"))] for name, e in record["tested"].items()]
        table = markdown([["recovery error, °", "mean", "median"], *rows])
        print(table)
        write_whole(given.out.with_suffix(".md"), f"{table}\n".encode())
    write_json(given.out, {**record, "provenance": provenance()})


def measure_tested(
    estimator: lf.Estimator, pictures: Sequence[LitPicture], windows: Windows, prior: LightPrior | None
) -> dict[str, float]:
    """The errors of a plane of light, with the prior of the camera or without."""
    return measure_pictures(
        lambda picture: estimator.light_plane(picture.image[None], picture.known[None], windows, prior)[0], pictures
    )


def _other_scenes(picture: LitPicture, pictures: Sequence[LitPicture]) -> list[LitPicture]:
    """Those of MIMO's names SCENE_LIGHT_LIGHT that are of other scenes."""
    return [other for other in pictures if other.name.split("_")[0] != picture.name.split("_")[0]]


def lights_of(pictures: Sequence[LitPicture]) -> torch.Tensor:
    """Some lights of each, (K, 3), of norm 1."""
    lights = [picture.light[:, picture.known[0]].T for picture in pictures]
    return F.normalize(torch.cat([each[torch.linspace(0, len(each) - 1, _LIGHTS).long()] for each in lights]))


if __name__ == "__main__":
    main()
