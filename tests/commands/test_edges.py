"""Commands at their edges: small data, interruptions, networks that cannot be made, names that are no formulas."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import lightfast as lf
from lightfast._experiments.data.generated import CLASSES, draw
from lightfast._experiments.recognition.plans import PLANS

NETWORKS = """
from torch import nn
def fails(): raise KeyError("a weight is missing")
def wants(width, *, depth): return nn.Identity()
def good(): return nn.Identity()
number = 5
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fails", "'networks:fails' fails with KeyError: 'a weight is missing'"),
        ("wants", "'networks:wants' needs width, depth: name a function without arguments that calls it with them"),
        ("number", "'networks:number' is int, and no function that makes a network"),
        ("none", "cannot find 'networks:none'"),
    ],
)
def test_certify_with_a_factory_that_gives_no_network(tmp_path, monkeypatch, run, name, sentence):
    (tmp_path / "networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "networks", raising=False)
    code, _, said = run("certify", f"networks:{name}", "--input", "1,3,8,8")
    assert code == 2 and sentence in re.sub(r"\s+", " ", said)


def test_certify_with_a_module_that_cannot_be_imported(tmp_path, monkeypatch, run):
    (tmp_path / "broken_networks.py").write_text("def net(:\n")
    monkeypatch.chdir(tmp_path)
    code, _, said = run("certify", "broken_networks:net", "--input", "1,3,8,8")
    assert code == 2 and "importing broken_networks fails with SyntaxError" in re.sub(r"\s+", " ", said)


def test_steps_follow_the_data():
    plan = PLANS["imagenet-quick"]
    small, large = plan.for_samples(240), plan.for_samples(100_000)
    assert small.recipe.steps * small.recipe.batch_size == 60 * 240 and small.recipe.warmup == 60
    assert small.recipe.lr / small.recipe.batch_size == pytest.approx(plan.recipe.lr / plan.recipe.batch_size)
    assert large == plan and PLANS["paper"].for_samples(10) == PLANS["paper"]


@pytest.fixture
def pictures(tmp_path):
    """A data set in a folder whose name is half of a formula."""
    images, labels = draw(48, seed=0, size=16)
    root = tmp_path / "$\\frac{a$"
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = root / ("train" if number < 36 else "val") / f"{label % 3}${CLASSES[label % 3]}$" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return root


def test_a_training_is_interrupted_resumed_and_reported_on(pictures, tmp_path):
    """By real processes, without a terminal: told to end between two steps, then the rest, and a report of it all."""
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "lightfast.cli", "reproduce", "recognition", "--data", pictures, "--out", out,
        "--strategies", "wrapped", "--model", "resnet20", "--device", "cpu",
        "--set", "epochs=12", "--set", "checkpoint_every=0", "--set", "log_every=1",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LIGHTFAST_NATIVE": "0"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    log, deadline = out / "runs" / "wrapped-0" / "log.jsonl", time.monotonic() + 120
    while not log.exists() or not log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    steps = 12 * 36 // 16
    assert process.returncode == 143 and re.search(rf"interrupted after step \d+ of {steps}, and all of it is in", said)
    assert "give the same command with --resume" in said and "Traceback" not in said
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert (out / "report.html").exists() and f"{steps}/{steps}" in done.stderr


def test_every_kind_of_model_is_evaluated(tmp_path, run):
    from lightfast._experiments.data.spectral import drawn_cubes
    from lightfast._pipelines.spectral import SpectralClassifier

    lf.Estimator("color-statistics").save(tmp_path / "light")
    code, out, said = run("evaluate", tmp_path / "light", "--json", tmp_path / "light.json", "--device", "cpu")
    assert code == 0 and "| median recovery error" in out, said
    cubes = drawn_cubes()
    SpectralClassifier(list(cubes.classes), [0.0] * 8, [1.0] * 8).save(tmp_path / "spectral")
    code, out, said = run("evaluate", tmp_path / "spectral", "--device", "cpu")
    assert code == 0 and "| error, %" in out, said
    SpectralClassifier(["a", "b"], [0.0] * 8, [1.0] * 8).save(tmp_path / "other")
    code, _, said = run("evaluate", tmp_path / "other", "--device", "cpu")
    assert code == 2 and "but the classifier was trained for a, b" in said


def test_options_list_their_values_and_resume_means_one_thing(run):
    said = {
        command: re.sub(r"\s+", "", run(*command, "--help")[1])
        for command in [
            ("train", "recognition"),
            ("train", "inpainting"),
            ("reproduce", "spectral"),
            ("bench", "speedrun"),
        ]
    }
    assert "resnet20,resnet32" in said["train", "recognition"] and "wrapped" in said["train", "recognition"]
    assert "context-encoder,context-encoder-slim" in said["train", "inpainting"]
    assert all("Goonwithwhatwasinterrupted:whatisinOUTalreadyiskept" in text for text in said.values())


def test_a_model_that_answers_with_no_numbers_is_no_success(tmp_path, monkeypatch, run):
    Image.new("RGB", (40, 40), (200, 100, 50)).save(tmp_path / "a.jpg")
    monkeypatch.setattr(lf.Classifier, "forward", lambda self, images: torch.full((1, 10), float("nan")))
    code, out, said = run("classify", tmp_path / "a.jpg", "--device", "cpu")
    assert code == 1 and "no number" in said and "nan" not in out


def test_an_estimator_in_training_goes_on_where_it_was_interrupted(tmp_path, run):
    """The members of an ensemble have folders of their own, which are emptied at the end."""
    out = tmp_path / "estimator"
    command = ("train", "illuminant", "--steps", 2, "--out", out, "--device", "cpu", "--resume")
    code, said, errors = run(*command)
    assert code == 0 and "written:" in said, errors
    assert not list(Path(out).rglob("checkpoint.safetensors")) and (out / "model.json").exists()
