"""Spectral recognition: cubes of many bands, each a group of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import lightfast as lf
from lightfast._experiments.data import DataError
from lightfast._experiments.data.spectral import drawn_cubes, load_cubes
from lightfast._experiments.records import Run
from lightfast._experiments.spectral.experiment import STRENGTHS, Spectral
from lightfast._pipelines.spectral import SpectralClassifier
from lightfast.light import spectral_gains


@pytest.fixture
def folder(tmp_path):
    """Twelve cubes of 16 bands in two classes, named after their views, in no order."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "cubes.npz", cubes=rng.integers(850, 30_000, (12, 16, 4, 8)).astype(np.uint16))
    names = [f"{kind}{view}" for kind in ("mug", "bag") for view in (10, 2, 1, 3, 11, 4)]
    rows = [f"{number},{name.rstrip('0123456789')},{name}" for number, name in enumerate(names)]
    (tmp_path / "index.csv").write_text("number,class,name\n" + "\n".join(rows) + "\n")
    return tmp_path


def pines(folder, side=40):
    rng = np.random.default_rng(0)
    np.save(folder / "Indian_pines_corrected.npy", rng.integers(900, 9000, (side, side, 6)).astype(np.uint16))
    np.save(folder / "Indian_pines_gt.npy", rng.integers(0, 17, (side, side)).astype(np.uint8))
    return folder


def test_cubes_are_split_by_blocks_of_views(folder):
    cubes = load_cubes(folder)
    assert cubes.classes == ("bag", "mug") and cubes.cubes.shape == (12, 16, 4, 8) and not cubes.per_pixel
    assert cubes.cubes.min() > 0
    assert cubes.folds.tolist() == [2, 0, 0, 1, 2, 1] * 2


def test_the_folds_of_pixels_are_squares(tmp_path):
    cubes = load_cubes(pines(tmp_path))
    assert cubes.per_pixel and cubes.labels.min() == -1 and len(cubes.classes) == 16
    assert cubes.folds.unique().tolist() == [0, 1, 2, 3]
    assert (cubes.folds[0, :19, :19] == 0).all() and (cubes.folds[0, :19, 19:38] == 2).all()


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda folder: (folder / "cubes.npz").unlink(), "has neither cubes.npz and index.csv"),
        (lambda folder: (folder / "cubes.npz").write_bytes(b"PK"), "cannot be read"),
        (lambda folder: (folder / "index.csv").write_text("number,class,name\n0,mug,mug1\n"), "but 1 are named"),
        (lambda folder: (folder / "index.csv").write_text("a,b\n0,1\n"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        load_cubes(folder)


@pytest.mark.parametrize("kind, constrained", [("wrapped", True), ("equivariant", True), ("equivariant", False)])
@pytest.mark.parametrize("per_pixel", [False, True])
def test_no_spectrum_of_light_moves_the_scores(kind, constrained, per_pixel):
    if per_pixel and kind == "equivariant" and constrained:
        with pytest.raises(ValueError, match="can only copy a band"):
            SpectralClassifier(["a", "b"], [0.0] * 5, [1.0] * 5, kind, per_pixel=True)
        return
    torch.manual_seed(0)
    options = {"constrained": constrained, "widths": [2, 2], "per_pixel": per_pixel}
    net = SpectralClassifier(["a", "b", "c"], [0.1] * 5, [0.5 + 0.1 * k for k in range(5)], kind, **options).double()
    cubes = torch.rand(3, 5, 8, 8, dtype=torch.float64) + 0.1
    gains = spectral_gains(3, 5, 1.0, generator=torch.Generator().manual_seed(1)).double()[:, :, None, None]
    net.eval()
    scores, moved = net(cubes), net(cubes * gains)
    assert scores.shape == ((3, 3, 8, 8) if per_pixel else (3, 3))
    assert (moved - scores).abs().max() < 1e-12 < 1e-4 < (net(cubes**2) - scores).abs().max()


def test_a_classifier_is_saved_and_loaded(tmp_path):
    net = SpectralClassifier(["a", "b"], [0.1] * 4, [0.5] * 4, "wrapped", widths=[2, 2]).eval()
    cubes = torch.rand(2, 4, 8, 8) + 0.1
    assert torch.equal(lf.load(net.save(tmp_path / "model"))(cubes), net(cubes))


def test_pixels_are_classified_by_squares_of_others(tmp_path):
    """Training sees no pixel of the fold that is tested, and the light of a square of pixels is one."""
    study = Spectral(
        load_cubes(pines(tmp_path)), Spectral.plans["pixels"], tmp_path / "out", ["original", "equivariant"]
    )
    assert study.trains() == ["original"]
    train, test = study._sides("1")
    assert not (train & test).any() and (train | test).all()
    made = study.make(Run("augmentation", 0, "1"), tmp_path)
    made.task.to(torch.device("cpu"))
    x, labels = made.task.batch(torch.randint(made.task.samples, (2048,)), torch.Generator().manual_seed(0))
    assert x.shape == (2, 6, 32, 32) and labels.shape == (2, 32, 32) and made.task.samples == int(train.sum())
    loss, values = made.task.loss(made.pipeline.network, (x, labels))
    assert loss.isfinite() and 0 <= values["error"] <= 100
    assert (
        study.measure(Run("original", 0, "1"), made.pipeline)["known"]
        == torch.bincount(study.data.labels[test & (study.data.labels >= 0)], minlength=16).tolist()
    )


def test_the_command(tmp_path):
    """From drawn cubes to tables and a page, with every strategy; those that light cannot fool have one error."""
    command = [sys.executable, "-m", "lightfast.cli", "reproduce", "spectral", "--steps", "2", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--device", "cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())["summary"]
    assert list(results) == ["original", "augmentation", "wrapped", "equivariant", "equivariant-free"]
    for name in ("wrapped", "equivariant", "equivariant-free"):
        errors = results[name]["mean"]["errors"]
        assert len(errors) == len(STRENGTHS) and max(errors) - min(errors) < 1e-6
    assert (tmp_path / "errors.png").exists() and "Test error, %" in (tmp_path / "table.md").read_text()


def test_drawn_cubes_are_the_same_each_time():
    assert torch.equal(drawn_cubes(12).cubes, drawn_cubes(12).cubes)
