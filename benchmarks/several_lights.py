"""How to look at pictures under several lights: windows and stiffness of the plane of light, compared.

    python benchmarks/several_lights.py MIMO/valid OUT.json [--model illuminant]

Writes the errors of all settings, least mean first. What they then are on other pictures says
`lightfast evaluate illuminant --data MIMO/lab`.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import torch

import lightfast as lf
from lightfast._atomic import write_json
from lightfast._experiments.data.mimo import LitPicture, load_mimo
from lightfast._experiments.illuminant.several_lights import measure_pictures
from lightfast._experiments.provenance import provenance
from lightfast._pipelines.light_plane import Windows


@torch.no_grad()
def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="illuminant")
    given = parser.parse_args()
    pictures, estimator = load_mimo(given.pictures), lf.load(given.model).eval()
    assert isinstance(estimator, lf.Estimator)
    found = []
    for settings in product((3, 5), (0.25, 0.35, 0.5), (0.0, 0.02, 0.05, 0.2)):
        windows = Windows(*settings)

        def answer(picture: LitPicture, windows: Windows = windows) -> torch.Tensor:
            return estimator.light_plane(picture.image[None], picture.known[None], windows)[0]

        errors = measure_pictures(answer, pictures)
        found.append({**windows._asdict(), "errors": errors})
        print(*settings, f"{errors['mean']:.3f} {errors['median']:.3f}", flush=True)
    found.sort(key=lambda each: each["errors"]["mean"])
    write_json(given.out, {"pictures": len(pictures), "settings": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
