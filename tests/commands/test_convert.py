"""`lightfast convert`: real processes on a network that only a file in the folder knows, and drawn pictures."""

import json
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from lightfast._experiments.data.generated import CLASSES, draw
from lightfast._pipelines.load import load

CODE = f"""
from torch import nn

def small():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(12, {len(CLASSES)}),
    )
"""


def small() -> nn.Module:
    namespace = {}
    exec(CODE, namespace)
    torch.manual_seed(0)
    return namespace["small"]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A network in a file, weights of two kinds, and pictures."""
    root = tmp_path_factory.mktemp("convert")
    (root / "mine.py").write_text(CODE)
    save_file(small().state_dict(), root / "weights.safetensors")
    torch.save({"state_dict": small().state_dict()}, root / "weights.pt")
    for part, count, seed in (("train", 100, 0), ("val", 40, 1)):
        images, labels = draw(count, seed=seed, size=16)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = root / "data" / part / CLASSES[label].replace(" ", "-") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return root


def process(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "lightfast.cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_network_is_converted_fine_tuned_and_used_without_its_code(folder, tmp_path):
    done = process(
        "convert", "mine:small", "--weights", "weights.safetensors", "--data", "data", "--finetune", 1, "--out",
        tmp_path / "out", "--batch-size", 25, "--device", "cpu", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "invariant" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["as it was", "converted", "after 1 epoch"]
    for row in rows[3:]:
        white, *others = (float(cell) for cell in row.split("|")[2:5])
        assert others == [white, white]
    model = load(tmp_path / "out")
    assert model.about == {"from": "mine:small", "way": "convert", "epochs": 1}
    picture = next((folder / "data" / "val").rglob("*.png"))
    done = process("classify", picture, "--model", tmp_path / "out", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0 and " %" in done.stdout, done.stderr


def test_commands_take_what_was_converted(folder, tmp_path, run, monkeypatch):
    """In this process, which is quicker: without pictures, by the other way, from the other kind of weights."""
    monkeypatch.chdir(folder)
    code, _, err = run(
        "convert", "mine:small", "--weights", "weights.pt", "--way", "wrap", "--size", 16, "--out", tmp_path / "out",
        "--classes", ",".join(name.replace(" ", "-") for name in sorted(CLASSES)),
    )  # fmt: skip
    assert code == 0, err
    code, _, err = run("evaluate", tmp_path / "out", "--data", folder / "data", "--json", tmp_path / "found.json")
    assert code == 0, err
    errors = json.loads((tmp_path / "found.json").read_text())["errors"]
    # At saturation 1 a channel is dark, and what it showed is lost.
    assert max(errors[:10]) - min(errors[:10]) < 5
    code, _, err = run("export", tmp_path / "out", "-o", tmp_path / "model.pt2")
    assert code == 0 and (tmp_path / "model.pt2").exists(), err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--finetune", "1"], "fine-tuning needs pictures"),
        (["--way", "bend"], "the way is convert or wrap"),
        (["--mean", "0.5"], "three numbers"),
        (["--classes", "a,b", "--size", "16"], f"gives {len(CLASSES)} scores, but there are 2 classes"),
        (["--weights", "evil.pt", "--size", "16"], "does not hold a state_dict of tensors alone"),
        (["--weights", "other.pt", "--size", "16"], "holds the weights of another network"),
    ],
)
def test_what_is_wrong_is_a_sentence(folder, tmp_path, run, monkeypatch, arguments, says):
    class Evil:
        def __reduce__(self):
            return os.system, ("touch evil",)

    monkeypatch.chdir(folder)
    torch.save({"0.weight": Evil()}, folder / "evil.pt")
    torch.save({"0.weight": torch.zeros(2)}, folder / "other.pt")
    code, _, err = run("convert", "mine:small", "--out", tmp_path / "out", *arguments)
    assert code == 2 and says in " ".join(err.split())
    assert not (folder / "evil").exists() and not (tmp_path / "out").exists()
