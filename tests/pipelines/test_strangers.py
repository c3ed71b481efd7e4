"""Models in files that somebody else made, or that a full disk cut short: a sentence, and nothing half-written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lightfast as lf


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return lf.pretrained("resnet20-cifar10").save(tmp_path / "model")


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"size": 1_000_000}, "size must be from 1 to 4096, but is 1000000"),
        ({"size": "x"}, "size must be a whole number or null, but is 'x'"),
        ({"size": 10**5000}, "size must be from 1 to 4096, but is too long to show"),
        ({"offset_groups": 0}, "offset_groups must be from 1 to 1024, but is 0"),
        ({"classes": ["a"] * 100_001}, "classes is too long"),
        ({"model": "resnet152"}, "holds the weights of another network"),
        ({"field": -1}, "field must be from 0 to 8"),
    ],
)
def test_what_a_description_asks_for_is_bounded(saved: Path, config: dict[str, Any], sentence: str) -> None:
    about = json.loads((saved / "model.json").read_text())
    sys.set_int_max_str_digits(0)
    try:
        (saved / "model.json").write_text(json.dumps(about | {"config": about["config"] | config}))
    finally:
        sys.set_int_max_str_digits(4300)
    with pytest.raises(ValueError, match=f"{sentence}|Exceeds the limit"):
        lf.load(saved)


@pytest.mark.parametrize("options", [deep(20), {"base": 60_000}, {"base": [1, 2]}])
def test_options_of_networks_are_bounded_before_memory_is_taken(tmp_path: Path, options: dict[str, Any]) -> None:
    packaged = Path(lf.__file__).parent / "_pipelines" / "weights" / "context-encoder-slim"
    about = json.loads(packaged.with_suffix(".json").read_text())
    (tmp_path / "model.safetensors").symlink_to(packaged.with_suffix(".safetensors"))
    about["config"]["options"] = options
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"model\.(json does not describe|safetensors holds the weights of another)"):
        lf.load(tmp_path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[1, 2]", '{"lightfast": ["Classifier"]}', '{"lightfast": "Classifier", "format": 2}', ""]
)
def test_odd_descriptions(saved: Path, text: str) -> None:
    (saved / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.json"):
        lf.load(saved)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(saved: Path, number: float, run: Callable[..., tuple[Any, str, str]]) -> None:
    weights = load_file(saved / "model.safetensors")
    name = next(name for name, value in weights.items() if value.dtype == torch.float32)
    weights[name].view(-1)[0] = number
    save_file(weights, saved / "model.safetensors")
    code, out, said = run("classify", saved / "none.jpg", "--model", saved)
    assert code == 2 and f"holds NaN or infinity in {name}: it is damaged, or its training diverged" in said
    assert not out


def test_every_kind_of_model_is_read_again(tmp_path: Path) -> None:
    """In a process that has imported none of them."""
    from lightfast._pipelines.spectral import SpectralClassifier

    lf.Estimator("color-statistics").save(tmp_path / "light")
    SpectralClassifier(["a", "b"], [0.0] * 4, [1.0] * 4).save(tmp_path / "spectral")
    code = "import sys, lightfast as lf; print(*(type(lf.load(path)).__name__ for path in sys.argv[1:]))"
    command = [sys.executable, "-c", code, tmp_path / "light", tmp_path / "spectral"]
    assert subprocess.check_output(command, text=True).split() == ["Estimator", "SpectralClassifier"]


FULL = """
import resource, sys
from pathlib import Path
import torch
from torch import nn
import lightfast as lf
from lightfast._experiments.engine import Recipe, train
from lightfast._pipelines.spectral import SpectralClassifier

torch.set_num_threads(1)
out, model = Path(sys.argv[1]), SpectralClassifier(["a", "b"], [0.0] * 3, [1.0] * 3).eval()
model.save(out / "before")
kept = (out / "before" / "model.safetensors").read_bytes()
# A file may grow to this size: what a disk that fills up looks like to the one who writes.
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

class Points:
    samples = 8
    def to(self, device): pass
    def batch(self, indices, generator): return torch.randn(len(indices), 100, generator=generator)
    def loss(self, model, x): return model(x).square().mean(), {}

def attempt(name, act):
    try:
        act()
        print(f"{name}: went well")
    except OSError as error:
        print(f"{name}: {error}")

attempt("save", lambda: model.save(out / "before"))
attempt("save anew", lambda: model.save(out / "new"))
attempt("export", lambda: lf.export(model, out / "model.pt2", size=(8, 8)))
recipe = Recipe(3, 4, checkpoint_every=1)
attempt("train", lambda: train(nn.Linear(100, 100), Points(), recipe, out / "run", progress=False))
print("kept" if kept == (out / "before" / "model.safetensors").read_bytes() else "lost")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_full_disk_leaves_a_sentence_and_nothing_half_written(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, env=environment(), check=True
    )
    *lines, kept = found.stdout.splitlines()
    assert kept == "kept"
    for line, path in zip(
        lines,
        ["before/model.safetensors", "new/model.safetensors", "model.pt2", "run/checkpoint.safetensors"],
        strict=True,
    ):
        assert f"there is no room for {tmp_path / path} (File too large): nothing of it was written" in line
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in left if not path.startswith("run/tensorboard")} == {
        "before/model.json",
        "before/model.safetensors",
        "run/log.jsonl",
    }


def environment() -> dict[str, str]:
    """So that nothing but what is tested writes files: the passes in C are compiled into a cache otherwise."""
    import os

    return {**os.environ, "LIGHTFAST_NATIVE": "0"}
