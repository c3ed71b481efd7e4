"""`lightfast reproduce inpainting` and `lightfast train inpainting`, by real processes and on real files."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image

from lightfast._experiments.data.generated_textures import draw_textures
from lightfast._pipelines.inpainter import Inpainter

QUICK = (
    "--recipe", "slim", "--device", "cpu", "--set", "batch_size=2", "--set", "options={'base': 3, 'bottleneck': 9}",
    "--set", "discriminator=2", "--set", "held_out=2", "--set", "log_every=1", "--set", "sheet_every=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for number, (folder, count) in enumerate((("street128/train", 8), ("street128/test", 3), ("paris_eval", 2))):
        (root / folder).mkdir(parents=True)
        for place, image in enumerate(draw_textures(count, seed=number)):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / folder / f"{place}.png")
    return root


def test_a_comparison_by_a_process_and_its_report(data, tmp_path, run):
    arguments = ["reproduce", "inpainting", "--data", data, "--steps", 2, "--no-photographs", "--out", tmp_path, *QUICK]
    command = [sys.executable, "-m", "lightfast.cli", *map(str, arguments), "--networks", "original,equivariant"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "| Network" in done.stdout and "Published" in done.stdout
    assert {"table.md", "results.json", "psnr.png", "psnr-2.png", "report.html"} <= {p.name for p in tmp_path.iterdir()}
    assert not (tmp_path / "filled.png").exists(), "photographs were to be left out"
    results = json.loads((tmp_path / "results.json").read_text())
    assert "reproduce inpainting" in results["report"]["command"] and len(results["runs"]) == 2
    code, out, err = run(*arguments, "--only", "original:0,equivariant:0")
    assert code == 0 and "2 of 2 runs are in" in out, err
    code, _, err = run(*arguments[:4], "--steps", 3, "--out", tmp_path, *QUICK)
    assert code == 2 and "steps was 2 and is 3" in err


def test_an_inpainter_is_trained_resumed_and_used(data, tmp_path, run):
    out = tmp_path / "run"
    command = ["train", "inpainting", "--data", data, "--steps", 2, "--network", "equivariant-free", *QUICK]
    code, said, err = run(*command, "--out", out, "--name", "mine", "--half", "--resume")
    assert code == 0 and "mine.safetensors" in said, err
    inpainter = Inpainter.load(out / "mine.json")
    assert inpainter.about["kind"] == "equivariant-free" and not inpainter.config["constrained"]
    code, _, err = run(*command, "--out", out)
    assert code == 2 and "holds a trained inpainter already" in err
    inpainter.save(out)
    photo = next((data / "paris_eval").iterdir())
    code, said, err = run("inpaint", photo, "--box", "40,40,20,20", "--model", out, "-o", tmp_path / "filled.png")
    assert code == 0 and "1 hole filled" in said, err
    code, said, err = run("evaluate", out, "--data", data, "--json", tmp_path / "e.json", "--device", "cpu")
    assert code == 0 and "Paris Street View, 2 images" in said and "stability, dB" in said, err
    recorded = json.loads((out / "evaluation.json").read_text())["tests"]
    found = json.loads((tmp_path / "e.json").read_text())["tests"]
    assert found["street128"]["psnr"] == pytest.approx(recorded["street128"]["psnr"], abs=0.05)
    again = [*command, "--out", tmp_path / "more", "--start", out]
    assert run(*again)[0] == 0
    code, _, err = run(*again, "--out", tmp_path / "other", "--set", "options={'base': 6, 'bottleneck': 9}")
    assert code == 2 and "they are not the same network" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "inpainting", "--recipe", "slow"], "the recipe is one of best, slim, demo, quick"),
        (["reproduce", "inpainting", "--networks", "orignal"], "no network 'orignal'"),
        (["reproduce", "inpainting", "--only", "original"], "is not NETWORK:SEED"),
        (["reproduce", "inpainting", "--set", "speed=9"], "no 'speed'"),
        (["reproduce", "inpainting", "--precision", "int8"], "the precision is"),
        (["reproduce", "inpainting", "--data", "nowhere"], "nowhere is not a folder"),
        (["train", "inpainting", "--network", "all"], "names 4 of"),
        (["train", "inpainting", "--set", "hole=square"], "center or random"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_answered_with_a_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*arguments)
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing should be written before the arguments are understood"
