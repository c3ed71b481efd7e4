"""The command line: real processes on real files, and what it says when something is wrong."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image

import lightfast
from lightfast._experiments.data.generated import CLASSES, draw
from lightfast._experiments.records import run_folder

QUICK = ["--recipe", "quick", "--model", "resnet20", "--set", "batch_size=8", "--set", "jitter=0.5", "--device", "cpu"]


def lightfast_process(*arguments, cwd):
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2"}
    return subprocess.run(
        [sys.executable, "-m", "lightfast.cli", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def write_pictures(folder, count, seed):
    images, labels = draw(count, seed=seed, size=16)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / CLASSES[label].replace(" ", "-") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_pictures(root / "train", 100, 0)
    write_pictures(root / "val", 40, 1)
    return root


@pytest.fixture(scope="module")
def compared(data, tmp_path_factory):
    """A comparison of two strategies by a real process."""
    out = tmp_path_factory.mktemp("compared") / "out"
    done = lightfast_process(
        "reproduce", "recognition", "--data", data, "--strategies", "original,equivariant", "--steps", 2, "--out", out,
        *QUICK, cwd=data,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A classifier for a folder, trained by a real process."""
    out = tmp_path_factory.mktemp("trained") / "run"
    done = lightfast_process(
        "train", "recognition", "--data", data, "--strategy", "equivariant", "--model", "resnet20", "--steps", 2,
        "--size", 16, "--set", "batch_size=8", "--out", out, "--device", "cpu", cwd=data,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_version():
    done = subprocess.run(
        [sys.executable, "-m", "lightfast.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"lightfast {lightfast.__version__}"


def test_help_is_shown_without_arguments(run):
    _, out, err = run()
    assert "reproduce" in out + err and "classify" in out + err


def test_a_comparison_writes_its_report(compared):
    out, said = compared
    assert {"table.md", "results.json", "errors.png", "examples.png", "report.html"} <= {p.name for p in out.iterdir()}
    assert "| Strategy" in said and "Equivariant" in said
    results = json.loads((out / "results.json").read_text())
    assert "reproduce recognition" in results["report"]["command"]
    assert [record["strategy"] for record in results["runs"]] == ["original", "equivariant"]


def test_a_comparison_goes_on_where_it_was(compared, data, run):
    out, _ = compared
    record = run_folder(out, ("original", 0)) / "evaluation.json"
    before = record.stat().st_mtime_ns
    code, said, err = run(
        "reproduce", "recognition", "--data", data, "--steps", 2, "--out", out, "--only", "original:0,wrapped:0", *QUICK
    )
    assert code == 0, err
    assert "1 of 2 runs are in" in said and "Wrapped" in said
    assert record.stat().st_mtime_ns == before


def test_other_settings_are_refused(compared, data, run):
    out, _ = compared
    code, _, err = run("reproduce", "recognition", "--data", data, "--steps", 3, "--out", out, *QUICK)
    assert code == 2 and "other settings" in err and "steps was 2 and is 3" in err


def test_epochs_where_a_recipe_has_steps_are_refused(tmp_path, run):
    code, _, err = run("reproduce", "spectral", "--set", "epochs=3", "--out", tmp_path, "--device", "cpu")
    assert code == 2 and "say how many with --steps" in err and not list(tmp_path.iterdir())


def test_imagenet(data, tmp_path, run):
    code, out, err = run(
        "reproduce", "imagenet", "--data", data, "--recipe", "quick", "--model", "resnet18", "--size", 16, "--steps", 1,
        "--strategies", "original", "--set", "batch_size=4", "--out", tmp_path / "out", "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    assert "Original" in out and (tmp_path / "out" / "report.html").exists()


def test_evaluate(trained, data, tmp_path, run):
    code, out, err = run("evaluate", trained, "--data", data, "--json", tmp_path / "e.json", "--device", "cpu")
    assert code == 0, err
    numbers = json.loads((tmp_path / "e.json").read_text())
    recorded = json.loads((trained / "evaluation.json").read_text())
    assert numbers["errors"] == pytest.approx(recorded["errors"], abs=2.6) and numbers["images"] == 40
    assert "varying light" in out


def test_classify(trained, data):
    photo = next((data / "val").rglob("*.png"))
    done = lightfast_process("classify", photo, "--model", trained, "--device", "cpu", "--top", 2, cwd=data)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{photo}: ") and done.stdout.count("%") == 2


def test_classify_goes_on_after_a_photo_it_cannot_read(trained, data, tmp_path, run):
    good = next((data / "val").rglob("*.png"))
    text, empty, cut = tmp_path / "notes.txt", tmp_path / "empty.jpg", tmp_path / "cut.jpg"
    text.write_text("not an image")
    empty.write_bytes(b"")
    Image.open(good).resize((200, 200)).save(tmp_path / "whole.jpg")
    cut.write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    missing = tmp_path / "missing.png"
    code, out, err = run("classify", text, empty, cut, missing, tmp_path, good, "--model", trained, "--device", "cpu")
    assert code == 2
    assert out.count("\n") == 1 and str(good) in out
    assert all(str(path) in err for path in (text, empty, cut, missing)) and "Traceback" not in err


def test_a_corrupt_picture_in_the_data_is_named(data, tmp_path, run):
    folder = write_pictures(tmp_path / "pictures", 30, 2)
    bad = next(folder.rglob("*.png"))
    bad.write_bytes(bad.read_bytes()[:60])
    code, _, err = run("train", "recognition", "--data", folder, "--out", tmp_path / "out", "--device", "cpu")
    assert code == 2 and str(bad) in err and err.count("\n") == 1


def test_a_trained_folder_is_not_trained_over(trained, data, run):
    code, _, err = run(
        "train", "recognition", "--data", data, "--model", "resnet20", "--steps", 2, "--size", 16,
        "--set", "batch_size=8", "--out", trained, "--device", "cpu",
    )  # fmt: skip
    assert code == 2 and "holds a trained classifier already" in err


def test_a_killed_training_resumes_to_the_same_result(data, tmp_path, run):
    def command(out, *more):
        return [
            "train", "recognition", "--data", data, "--model", "resnet20", "--size", 16, "--steps", 40,
            "--device", "cpu", "--set", "batch_size=8", "--set", "checkpoint_every=1", "--out", tmp_path / out, *more,
        ]  # fmt: skip

    arguments = [sys.executable, "-m", "lightfast.cli", *map(str, command("killed"))]
    # As many threads as here, where it goes on: sums over another number of threads round differently.
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "checkpoint.safetensors").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "evaluation.json").exists()
    code, _, err = run(*command("killed"))
    assert code != 0 and "holds a training run already" in err
    assert run(*command("killed", "--resume"))[0] == 0
    assert run(*command("whole"))[0] == 0
    weights = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("killed", "whole")]
    assert weights[0] == weights[1]


def test_other_classes_are_refused(trained, run):
    code, _, err = run("evaluate", trained, "--device", "cpu")
    assert code == 2 and "was trained for" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["reproduce", "recognition", "--recipe", "slow"], "the recipe is one of paper, best, quick, demo"),
        (["reproduce", "recognition", "--strategies", "orignal"], "no strategy 'orignal'"),
        (["reproduce", "recognition", "--model", "vgg16"], "no network 'vgg16'"),
        (["reproduce", "recognition", "--device", "tpu"], "the device is auto, cpu or cuda"),
        (["reproduce", "recognition", "--precision", "int8"], "the precision is"),
        (["reproduce", "recognition", "--only", "original"], "is not STRATEGY:SEED"),
        (["reproduce", "recognition", "--set", "speed=9"], "no 'speed'"),
        (["reproduce", "recognition", "--set", "lr"], "is not NAME=VALUE"),
        (["reproduce", "recognition", "--set", "seed=3"], "seed cannot be set"),
        (["reproduce", "recognition", "--set", "steps=3", "--steps", "2"], "steps is given twice"),
        (["reproduce", "recognition", "--set", "graph=true", "--device", "cpu"], "graph cannot be true here"),
        (["reproduce", "recognition", "--strategies", ","], "no strategy was named"),
        (["reproduce", "illuminant", "--networks", ""], "no network was named"),
        (["reproduce", "illuminant", "--protocol", "random"], "the protocol is one of pooled"),
        (["reproduce", "illuminant", "--model", "cerberus"], "a recipe has no 'model'"),
        (["train", "illuminant", "--network", "local,joint"], "names 2 of"),
        (["train", "imagenet"], "imagenet"),
        (["reproduce", "recognition", "--set", "batch_size=0"], "batch_size must be at least 1"),
        (["reproduce", "recognition", "--seeds", "0"], "--seeds"),
        (["reproduce", "recognition", "--data", "nowhere"], "nowhere is not a folder"),
        (["reproduce", "imagenet"], "--data"),
        (["reproduce", "imagenet", "--data", "nowhere"], "nowhere is not a folder"),
        (["train", "recognition", "--data", "nowhere"], "nowhere is not a folder"),
        (["train", "recognition", "--strategy", "preprocessing"], "names 3 of"),
        (["evaluate", "nowhere"], "is no model: it is not in the package"),
        (["evaluate", "."], "model.json"),
        (["classify", "photo.jpg", "--model", "nowhere"], "is no model: it is not in the package"),
        (["classify"], "photos"),
        (["paint"], "paint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_answered_with_a_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*arguments)
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing should be written before the arguments are understood"


def test_tracebacks_can_be_asked_for(run, monkeypatch):
    monkeypatch.setenv("LIGHTFAST_DEBUG", "1")
    with pytest.raises(ValueError, match="is no model"):
        run("evaluate", "nowhere")


def test_an_estimator_of_the_light_is_compared_trained_and_evaluated(tmp_path, run):
    quick = ["--steps", 1, "--set", "size=16", "--set", "batch_size=4", "--device", "cpu"]
    code, out, err = run("reproduce", "illuminant", "--networks", "equivariant", "--out", tmp_path / "all", *quick)
    assert code == 0, err
    assert "Gray world" in out and "Color Cerberus, equivariant" in out
    assert (tmp_path / "all" / "pooled" / "report.html").exists()
    code, out, err = run("train", "illuminant", "--network", "statistics", "--out", tmp_path / "one", *quick)
    assert code == 0 and f"{tmp_path / 'one' / 'model'}.safetensors" in out, err
    code, out, err = run("evaluate", tmp_path / "one", "--json", tmp_path / "e.json", "--device", "cpu")
    assert code == 0 and "median recovery error" in out, err
    medians = [place["all"]["median"] for place in json.loads((tmp_path / "e.json").read_text())["reproduction"]]
    assert max(medians) - min(medians) < 0.01 < medians[0]
