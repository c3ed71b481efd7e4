"""Pictures as cameras render them, and differences of color as people see them."""

import json

import numpy as np
import pytest
import torch

from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.photographs.difference import delta_e, lab
from lightfast._experiments.photographs.render import render


def test_differences_are_those_of_scikit_image():
    from skimage.color import deltaE_ciede2000, rgb2lab

    first, second = torch.rand(2, 4, 3, 8, 8, dtype=torch.float64)
    ours = delta_e(lab(first), lab(second)).numpy()
    theirs = deltaE_ciede2000(*(rgb2lab(x.permute(0, 2, 3, 1).numpy()) for x in (first, second)))
    np.testing.assert_allclose(ours, theirs, atol=0.05)


@pytest.mark.parametrize("cast", [0.0, 5.0, 20.0])
def test_renders_are_wrong_by_as_much_as_they_should_be(cast):
    scenes = draw_scenes(12)
    renders = render(scenes.images, scenes.illuminants, cast, torch.Generator().manual_seed(0))
    angle = (renders.gray.sum(1) / 3**0.5).clamp(max=1).acos().rad2deg()
    np.testing.assert_allclose(angle, cast, atol=0.1)
    assert renders.pictures.shape == scenes.images.shape and 0.05 < renders.pictures.mean() < 0.8
    difference = delta_e(lab(renders.pictures), lab(renders.right)).mean()
    assert difference == 0 if cast == 0 else difference > cast / 3


def test_methods_are_measured_and_what_is_measured_is_kept(tmp_path, run):
    arguments = ["reproduce", "photographs", "--scenes", 4, "--networks", "nothing,white-patch", "--out", tmp_path]
    code, said, err = run(*arguments, "--device", "cpu")
    assert code == 0 and "| White patch" in said, err
    results = json.loads((tmp_path / "results.json").read_text())
    nothing, white_patch = results["runs"]
    assert nothing["before"] == nothing["after"] == white_patch["before"] and nothing["before"][0] == 0
    assert white_patch["moved"][0] > 0 and not any(nothing["worse"])
    code, said, err = run(*arguments, "--device", "cpu")
    assert code == 0 and ":0 is done" not in said, err
