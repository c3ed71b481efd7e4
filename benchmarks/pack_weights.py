"""The models inside the package in fewer bits, with what that costs: `make weights`.

    python benchmarks/pack_weights.py --data CIFAR-10 --out results/weights

Weights of layers are rounded to 16 bits, of which the last ones are 0: the file keeps its size, but a wheel, which is
compressed, does not. What a model answers before and after is compared on pictures, and its errors are measured anew.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.generated_textures import drawn_textures
from lightfast._experiments.inpainting.evaluation import evaluate_inpainter
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.pictures import load_test_images
from lightfast._experiments.report.tables import markdown
from lightfast._pipelines.load import pretrained_names
from lightfast.metrics import reproduction_error

WEIGHTS = Path(lf.__file__).parent / "_pipelines" / "weights"
BITS = 6
"""Of the mantissa that are kept, of the ten that 16 bits have: rounding changes a weight by 0.8 % at most."""


def rounded(x: Tensor, bits: int = BITS) -> Tensor:
    """The nearest number with a mantissa of so many bits, in half precision.

    >>> rounded(torch.tensor([1.0, 1.004, 1.01])).tolist()
    [1.0, 1.0, 1.015625]
    """
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp((mantissa * 2 ** (bits + 1)).round(), exponent - bits - 1).half()


@torch.no_grad()
def measured(model: Any, data: Path | None) -> tuple[str, float] | None:
    """What is measured of a model and its value: on CIFAR-10 if it is at hand, else on what the project draws."""
    cpu = torch.device("cpu")
    if isinstance(model, lf.Estimator):
        scenes = draw_scenes(scenes=40)
        found = reproduction_error(model(scenes.images), scenes.illuminants).median()
        return "median reproduction error on drawn scenes, °", float(found)
    if isinstance(model, lf.Inpainter):
        textures = next(iter(drawn_textures().tests.values()))
        return "PSNR on drawn textures, dB", evaluate_inpainter(model, textures, device=cpu).psnr[0]
    if data is None:
        return None
    images, labels, _ = load_test_images(data, None)
    batches = zip(images.split(500), labels.split(500), strict=True)
    wrong = sum(int((model(x.float() / 255).argmax(1) != y).sum()) for x, y in batches)
    return "test error on CIFAR-10, %", 100 * wrong / len(labels)


def main() -> None:
    """Pack every model, and write down what changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder that holds cifar-10-batches-bin")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    # Before the files are others than those of the commit.
    made = provenance()
    found: dict[str, Any] = {}
    rows = [["model", "compressed before, kB", "after, kB", "what is measured", "before", "after"]]
    for name in pretrained_names():
        before, path = lf.pretrained(name), WEIGHTS / f"{name}.safetensors"
        size, was = len(zlib.compress(path.read_bytes())), measured(before, given.data)
        packed = lf.pretrained(name)
        for parameter in packed.parameters():
            if parameter.ndim > 1:
                parameter.data = rounded(parameter.data).float()
        packed.save(WEIGHTS, name, half=True)
        now, fresh = measured(lf.pretrained(name), given.data), len(zlib.compress(path.read_bytes()))
        found[name] = {"bytes": [size, fresh]}
        if was and now:
            found[name] |= {"measured": was[0], "before": was[1], "after": now[1]}
        texts = [was[0], f"{was[1]:.3f}", f"{now[1]:.3f}"] if was and now else ["", "", ""]
        rows.append([name, f"{size / 1e3:.0f}", f"{fresh / 1e3:.0f}", *texts])
        print(" ".join(rows[-1]), flush=True)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        write_json(given.out / "results.json", {"bits": BITS, "models": found, "provenance": made})
        write_whole(given.out / "table.md", f"{markdown(rows)}\n".encode())


if __name__ == "__main__":
    main()
