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
