"""`lightfast data` reads folders as experiments do."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pictures(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_a_good_folder_is_described(run, pictures):
    code, out, err = run("data", "recognition", str(pictures))
    assert code == 0, err
    assert "classes: 2: cat, dog" in out
    assert out.splitlines()[-1] == f"good: lightfast reproduce recognition --data {pictures}"


def test_a_wrong_folder_is_named(run, pictures):
    code, out, err = run("data", "illuminant", str(pictures))
    assert code == 2 and "index.csv" in err and "good" not in out


def test_an_unknown_experiment_is_named(run, pictures):
    code, _, err = run("data", "weather", str(pictures))
    assert code == 2 and "there are recognition, imagenet" in err


def test_pictures_of_any_shape_need_a_size(run, pictures):
    Image.new("RGB", (20, 16)).save(pictures / "cat" / "wide.png")
    code, _, err = run("data", "recognition", str(pictures))
    assert code == 2 and "wide.png has 20 x 16 pixels" in err and "--size 64" in err
    code, out, _ = run("data", "recognition", str(pictures), "--size", 8)
    assert code == 0 and out.endswith(f"--data {pictures} --size 8\n")
    code, _, err = run("data", "illuminant", str(pictures), "--size", 8)
    assert code == 2 and "no --size" in err


def test_every_experiment_answers_with_a_sentence(run, tmp_path):
    from lightfast._experiments import EXPERIMENTS

    for name in EXPERIMENTS:
        code, _, err = run("data", name, str(tmp_path))
        assert code == 2 and err.startswith("lightfast: ") and str(tmp_path) in err, name
