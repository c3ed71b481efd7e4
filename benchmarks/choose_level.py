"""How the brightness of a picture is measured before a trained network sees it without its light: powers, compared.

    python benchmarks/choose_level.py DATA OUT.json [--model resnet20-cifar10-original] [--images 3000]

A trained conventional network is put behind `FromLog`, with nothing fine-tuned, and counts errors on random images of
its training set, in white light: test images have no say. The power 0.01 is as good as a mean of logarithms, 100 as
the brightest pixel.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import lightfast as lf
from lightfast._atomic import write_json
from lightfast._experiments.provenance import provenance
from lightfast._experiments.recognition.pictures import load_pictures
from lightfast.color import FromLog, srgb_to_log

POWERS = (0.01, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 100.0)


@torch.no_grad()
def main() -> None:
    """Measure every power."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="resnet20-cifar10-original")
    parser.add_argument("--images", type=int, default=3000)
    given = parser.parse_args()
    pictures, plain = load_pictures(given.data), lf.load(given.model).eval()
    assert isinstance(plain, lf.Classifier) and isinstance(pictures.train_images, torch.Tensor)
    order = torch.randperm(len(pictures.train_labels), generator=torch.Generator().manual_seed(0))
    chosen, usual = order[: given.images], order[given.images : given.images + 256]
    images, labels = pictures.train_images[chosen], pictures.train_labels[chosen]
    some = srgb_to_log(pictures.train_images[usual].float() / 255)
    found = {}
    for power in POWERS:
        to_srgb = FromLog(plain.prepare.norm, some, power)
        parts = [plain.network(to_srgb(srgb_to_log(part.float() / 255))).argmax(1) for part in images.split(500)]
        found[str(power)] = round(100 * (torch.cat(parts) != labels).double().mean().item(), 3)
        print(power, found[str(power)], flush=True)
    about = {"model": given.model, "data": pictures.name, "images": given.images}
    write_json(given.out, {**about, "error by power, %": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
