"""What is promised of files, proofs and interruptions, tried so many times; `make reliability` writes down the counts.

    python tests/fuzz/campaign.py images --count 1000 --out results/reliability

Each campaign counts how its attempts ended. Whatever breaks a promise raises an `AssertionError` that names the
attempt, which comes again with the same seed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mutate import mutated, mutated_json
from PIL import Image
from programs import GROUPS, ONE, SHAPE, TWO, Program, noise

import lightfast as lf
from lightfast._atomic import write_json, write_whole
from lightfast._experiments.engine import CHECKPOINT, Recipe, train
from lightfast._experiments.engine.checkpoint import read_header
from lightfast._experiments.provenance import provenance
from lightfast._experiments.report.tables import markdown
from lightfast._photographs.decode import load_image
from lightfast._photographs.files import read_photo
from lightfast._photographs.fill import fill_file
from lightfast._photographs.photo import PhotoError
from lightfast._photographs.work import balance_one
from lightfast._pipelines.spectral import SpectralClassifier
from lightfast.functional import add_offset

SIZE = (40, 48)
Counts = dict[str, int]


def _pictures() -> dict[str, bytes]:
    """A small picture as a file of each kind, by suffix."""
    ramp = np.linspace(0, 1, SIZE[0] * SIZE[1] * 3).reshape(*SIZE, 3)
    pixels = (255 * ramp * np.random.default_rng(0).uniform(0.5, 1, ramp.shape)).astype(np.uint8)
    color, files = Image.fromarray(pixels), {}
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    for name, image, options in (
        ("a.jpg", color, {"quality": 90, "exif": exif}),
        ("b.jpg", color.convert("L"), {"quality": 60}),
        ("c.png", color, {}),
        ("d.png", color.convert("RGBA"), {}),
        ("e.png", color.convert("P"), {}),
        ("f.tif", color, {}),
        ("g.tif", color, {"compression": "tiff_lzw"}),
        ("h.webp", color, {"quality": 80}),
    ):
        file = io.BytesIO()
        image.save(file, {".jpg": "JPEG", ".png": "PNG", ".tif": "TIFF"}.get(Path(name).suffix, "WEBP"), **options)
        files[name] = file.getvalue()
    return files


def images(count: int, seed: int) -> Counts:
    """Damaged pictures, each balanced, filled and classified: done, or refused with a sentence that names the file."""
    classifier, inpainter = lf.pretrained("resnet20-cifar10"), lf.pretrained("context-encoder-slim")
    files, ended = _pictures(), Counter[str]()

    def classify(source: Path, target: Path) -> None:
        with torch.no_grad():
            assert classifier(load_image(source, 32)[None].float() / 255).isfinite().all()

    # One hole of ten is for the network; the others are thin.
    boxes = [[(8, 8, 12, 12)]] + [[(8, 8, 20, 2)]] * 9
    acts: dict[str, Callable[[Path, Path], Any]] = {
        "balance": lambda source, target: balance_one(source, target.with_suffix(""), "gray-world", {}),
        "inpaint": lambda source, target: fill_file(source, target, randomness.choice(boxes), inpainter),
        "classify": classify,
    }
    for number in range(count):
        randomness = random.Random(f"{seed} {number}")
        name = randomness.choice(sorted(files))
        content = mutated(files[name], randomness)
        for act, call in acts.items():
            with tempfile.TemporaryDirectory() as folder:
                source, target = Path(folder, name), Path(folder, "out", name)
                source.write_bytes(content)
                target.parent.mkdir()
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # Pillow's, about what it finds damaged.
                        call(source, target)
                    ended[f"{act}: done"] += 1
                except PhotoError as error:
                    assert str(source) in str(error), f"image {number}, {act}: {error} does not name the file"
                    ended[f"{act}: refused"] += 1
                assert source.read_bytes() == content, f"image {number}, {act}: the input was overwritten"
                for written in target.parent.iterdir():
                    assert not written.name.startswith("."), f"image {number}, {act}: {written.name} was left"
                    read_photo(written)
    return dict(sorted(ended.items()))


def models(count: int, seed: int) -> Counts:
    """Damaged models: they load and hold numbers, or are refused with a sentence; memory stays bounded."""
    import resource

    kinds = {
        "classifier": lf.pretrained("resnet20-cifar10"),
        "estimator": lf.Estimator("cerberus+color-statistics", members=2),
        "spectral": SpectralClassifier(["a", "b"], [0.0] * 4, [1.0] * 4),
    }
    ended, before = Counter[str](), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        for name, model in kinds.items():
            model.save(Path(folder, name))
        for number in range(count):
            randomness = random.Random(f"{seed} {number}")
            good, bad = Path(folder, randomness.choice(sorted(kinds))), Path(folder, "damaged")
            shutil.copytree(good, bad, dirs_exist_ok=True)
            if randomness.random() < 0.6:
                (bad / "model.json").write_bytes(mutated_json((good / "model.json").read_bytes(), randomness))
            else:
                (bad / "model.safetensors").write_bytes(mutated((good / "model.safetensors").read_bytes(), randomness))
            try:
                loaded = lf.load(bad)
                assert all(value.isfinite().all() for value in loaded.state_dict().values()), f"model {number}"
                ended["loaded"] += 1
            except (ValueError, FileNotFoundError) as error:
                assert str(bad) in str(error), f"model {number}: {error} does not name the file"
                ended["refused"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    assert grown < 2, f"memory grew by {grown:.1f} GB"
    return dict(sorted(ended.items()))


_LINES = 64


def proofs(count: int, seed: int) -> Counts:
    """Random graphs, each an output of a random program: what `certify` proves of it is what is measured."""
    ended, names, number = Counter[str](), [*ONE, *TWO], 0
    while (left := count - ended.total()) > 0:
        randomness = random.Random(f"{seed} {number}")
        lines = [
            # Mostly on the input and what is made of it first: what is lost once stays lost.
            (randomness.choice(names), int(20 * randomness.random() ** 3), int(20 * randomness.random() ** 3))
            for _ in range(min(_LINES, left))
        ]
        program = Program(lines)
        outputs = lf.certify(program, torch.zeros(SHAPE, dtype=torch.float64), GROUPS).outputs
        moved = [_moved(program, sample) for sample in range(3)]
        for place, output in enumerate(outputs):
            proved = "equivariant" if output.equivariant else "invariant" if output.invariant else ""
            worst = max(_difference(*sample, place, proved == "equivariant") for sample in moved)
            if proved and worst != worst:
                ended["proved, but numbers overflow"] += 1
                continue
            if proved and worst >= 1e-6 and _trembles(program, place):
                ended["proved, but rounding decides"] += 1
                continue
            assert not proved or worst < 1e-6, f"program {number}, output {place}: {proved}, but moves by {worst}"
            ended[f"proved {proved}" if proved else "not proved"] += 1
        number += 1
    return dict(sorted(ended.items()))


def _moved(program: Program, sample: int) -> tuple[torch.Tensor, Any, Any]:
    """Offsets, and all values of a program before and after they were added to its input."""
    x, offset = 2 * noise(*SHAPE, seed=sample), 3 * noise(2, 3, seed=sample + 100)
    return offset, program(x), program(add_offset(x, offset, GROUPS))


def _difference(offset: torch.Tensor, before: Any, after: Any, place: int, follows: bool) -> float:
    """How far an output is from what was proved, relative to the largest of all numbers that it was computed from."""
    wanted = add_offset(before[place], offset, GROUPS) if follows else before[place]
    scale = max(1.0, *(float(value.abs().max()) for value in (*before[: place + 1], *after[: place + 1])))
    return float((after[place] - wanted).abs().max()) / scale


def _trembles(program: Program, place: int) -> bool:
    """Whether an output jumps where its input changes by rounding alone, as `1.5 x - 0.5 x < x` does.

    What is compared there is equal in exact arithmetic, of which a proof is; measured, it says nothing.
    """
    for sample in range(3):
        x = 2 * noise(*SHAPE, seed=sample)
        shaken = x * (1 + 1e-14 * noise(*SHAPE, seed=sample + 200))
        if _difference(x[:, :3, 0, 0], program(x), program(shaken), place, False) >= 1e-6:
            return True
    return False


class _Points:
    samples = 16

    def to(self, device: torch.device) -> None:
        pass

    def batch(self, indices: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(len(indices), 32, generator=generator)

    def loss(self, model: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return (model(x) - x.flip(1)).square().mean(), {}


def _train(out: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 32)
    )
    recipe = Recipe(400, 8, "adamw", lr=3e-3, ema=0.9, log_every=7, checkpoint_every=3)
    return train(model, _Points(), recipe, out, resume=True, progress=False).state_dict()


def _killed(act: Callable[[], Any], seconds: float) -> bool:
    """Do it in a process of its own, which is killed after so long; whether it was killed before it ended."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def kills(count: int, seed: int) -> Counts:
    """Processes killed by `kill -9` while they train, save or balance: nothing that was done is lost, nothing is half.

    A training goes on from its last whole checkpoint and ends with the same bits; a model in a folder is the one before
    or the new one; a balanced picture is whole, and the inputs are as they were.
    """
    torch.set_num_threads(1)
    randomness, ended = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = _train(root / "whole")
        run = 0
        models = [SpectralClassifier(["a", "b"], [0.0] * 16, [1.0] * 16, widths=[4, 8, 16]) for _ in range(2)]
        states = [model.state_dict() for model in models]
        models[0].save(root / "model")
        source, balanced = root / "pictures", root / "balanced"
        source.mkdir()
        for name, content in _pictures().items():
            for copy in range(4):
                (source / f"{copy}{name}").write_bytes(content)
        photos = [path for path in sorted(source.iterdir()) if not path.name.endswith("b.jpg")]
        inputs = {path: path.read_bytes() for path in photos}

        def save_again() -> None:
            while True:
                for model in models:
                    model.save(root / "model")

        def balance_all(out: Path) -> None:
            for photo in photos:
                balance_one(photo, out / photo.stem, "gray-world", {"overwrite": False})

        balance_all(root / "whole-balanced")
        whole = {path.name: path.read_bytes() for path in (root / "whole-balanced").iterdir()}
        step, last = 0, {}
        while ended.total() < count:
            kind = ("training", "saving", "balancing")[ended.total() % 3]
            if kind == "training":
                out = root / f"run-{run}"
                if not _killed(lambda out=out: last.update(_train(out)), randomness.uniform(0.02, 0.5)):
                    run, step = run + 1, 0
                    continue
                reached = read_header(out / CHECKPOINT)["step"] if (out / CHECKPOINT).exists() else 0
                assert reached >= step, f"a checkpoint of step {step} was lost: there is one of step {reached}"
                step = reached
            elif kind == "saving":
                assert _killed(save_again, randomness.uniform(0.0, 0.1))
                found = lf.load(root / "model").state_dict()
                assert any(all(torch.equal(found[name], state[name]) for name in state) for state in states)
            else:
                if not _killed(lambda: balance_all(balanced), randomness.uniform(0.0, 0.3)):
                    shutil.rmtree(balanced)
                    continue
                for path in balanced.iterdir() if balanced.exists() else ():
                    assert path.name.startswith(".") or path.read_bytes() == whole[path.name], f"{path} is half"
                assert all(path.read_bytes() == content for path, content in inputs.items()), "an input was changed"
            ended[f"killed while {kind}"] += 1
        found = _train(root / f"run-{run}")
        assert all(torch.equal(found[name], expected[name]) for name in expected), "a resumed training differs"
        balance_all(balanced)
        assert {path.name for path in balanced.iterdir() if not path.name.startswith(".")} == set(whole)
    return dict(sorted(ended.items()))


CAMPAIGNS: dict[str, tuple[Callable[[int, int], Counts], int]] = {
    "images": (images, 1000),
    "models": (models, 500),
    "proofs": (proofs, 10_000),
    "kills": (kills, 200),
}


def write_table(out: Path) -> None:
    """`table.md` of all campaigns whose counts are in the folder."""
    rows = [["campaign", "attempts", "how they ended"]]
    for name in CAMPAIGNS:
        if (out / f"{name}.json").exists():
            found = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
            rows.append([name, str(found["attempts"]), "; ".join(f"{key} {n}" for key, n in found["ended"].items())])
    write_whole(out / "table.md", f"{markdown(rows)}\n".encode())


def main() -> None:
    """Run campaigns, and write down how they ended."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("campaigns", nargs="+", choices=[*CAMPAIGNS, "all"])
    parser.add_argument("--count", type=int, help="of attempts; each campaign's own by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    origin = provenance()  # As of now: records that are written change the checkout.
    for name in CAMPAIGNS if "all" in given.campaigns else given.campaigns:
        campaign, usual = CAMPAIGNS[name]
        start = time.monotonic()
        ended = campaign(given.count or usual, given.seed)
        seconds = round(time.monotonic() - start, 1)
        print(f"{name}: {given.count or usual} attempts in {seconds} s, {ended}", flush=True)
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            about = {"attempts": given.count or usual, "seed": given.seed, "ended": ended, "seconds": seconds}
            write_json(given.out / f"{name}.json", {**about, "provenance": origin})
            write_table(given.out)


if __name__ == "__main__":
    main()
