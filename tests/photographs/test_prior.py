"""When to leave a photograph as it is: the second opinion, and what follows from it."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lightfast as lf
import lightfast._photographs as photographs
from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.photographs.render import _MATRIX, unrendered
from lightfast._experiments.photographs.task import CastTask, fit_reader
from lightfast._photographs.cast import CastReader, cast_reader, chroma_maps, light_of_chroma, log_chroma
from lightfast._photographs.prior import likely_light
from lightfast.color import srgb_to_linear


class _Says(CastReader):
    """A reader with one answer."""

    def __init__(self, answer, **options):
        super().__init__(**options)
        self.given = torch.tensor([answer])

    def forward(self, linear_images):
        return self.given


LIGHT = torch.nn.functional.normalize(torch.tensor([0.9, 0.6, 0.4], dtype=torch.float64), dim=0)
PICTURE = torch.rand(1, 3, 8, 8)


def test_chroma_goes_there_and_back():
    torch.testing.assert_close(light_of_chroma(log_chroma(LIGHT)), LIGHT)
    wild = light_of_chroma(log_chroma(torch.tensor([1.0, 1e-5, 1e-3])))
    assert wild.max() / wild.min() < 8.001


def test_what_is_doubtful_is_left_and_what_is_sure_is_changed():
    lights = {}
    for odds in (0.9, 1.0, 1.5, 2.0, 5.0):
        reader = _Says([0.2, 0.1, -2.0, odds], doubt=(1.0, 2.0), believed=0.25)
        lights[odds], spread = likely_light(LIGHT, PICTURE, reader)
        assert spread == pytest.approx(np.degrees(np.exp(-2)) / 3**0.5)
    white = torch.full((3,), 3**-0.5, dtype=torch.float64)
    torch.testing.assert_close(lights[0.9], white)
    torch.testing.assert_close(lights[1.0], white)
    full = 0.25 * torch.tensor([0.2, 0.1], dtype=torch.float64) + 0.75 * log_chroma(LIGHT)
    torch.testing.assert_close(log_chroma(lights[5.0]), full)
    torch.testing.assert_close(log_chroma(lights[1.5]), full / 2)


def test_histograms_hold_every_pixel_and_shift_with_a_light():
    images = torch.rand(2, 3, 64, 64) * 0.5 + 0.2
    maps = chroma_maps(images, 32)
    assert maps.shape == (2, 5, 32, 32)
    torch.testing.assert_close(maps.square().sum((2, 3)), torch.ones(2, 5))
    torch.testing.assert_close(chroma_maps(1.3 * images, 32)[:, :4], maps[:, :4], atol=1e-4, rtol=0)
    at = torch.arange(32.0)
    redder = chroma_maps(images * torch.tensor([1.5, 1.0, 1.0])[:, None, None], 32)
    assert (((redder - maps).square().sum((2, 3))) > 0.1).all()
    assert ((redder.square().sum(3) * at).sum(2) > (maps.square().sum(3) * at).sum(2)).all()
    assert chroma_maps(torch.zeros(1, 3, 64, 64), 32).isfinite().all(), "black"


def test_the_packaged_reader_is_small_and_leaves_gray_things_alone():
    weights = Path(photographs.__file__).with_name("weights") / "cast.safetensors"
    assert weights.stat().st_size < 300_000
    gray = np.random.default_rng(0).uniform(0.1, 0.9, (60, 80, 1)).repeat(3, -1)
    found = lf.balance((255 * gray).round().astype(np.uint8), "gray-world")
    assert found.done == "left as it was" and found.spread is not None and found.spread > 0
    assert (found.picture == (255 * gray).round().astype(np.uint8)).all(), "bit by bit"
    assert 0 <= cast_reader().believed <= 1 and cast_reader().doubt[0] < cast_reader().doubt[1]


def test_raw_and_linear_pictures_and_those_without_a_prior_follow_the_estimate():
    scene = np.random.default_rng(0).uniform(0.05, 0.9, (30, 40, 1)) * np.array([0.6, 0.55, 0.5])
    for found in (lf.balance(scene, "gray-world", linear=True), lf.balance(scene, "gray-world", prior="none")):
        assert found.light == found.estimated
    with pytest.raises(ValueError, match="the prior is 'auto' or 'none'"):
        lf.balance(scene, "gray-world", prior="maybe")  # pyright: ignore[reportArgumentType]


def test_pictures_are_rendered_right_and_wrong_and_the_loss_tells_them_apart():
    scenes = draw_scenes(8)
    task = CastTask(scenes, CastReader().encoding)
    pictures, chroma, cast = batch = task.batch(torch.arange(len(scenes)), torch.Generator().manual_seed(0))
    assert pictures.shape == (len(scenes), 3, 32, 32) and 0 < (cast > 1).sum() < len(scenes)
    # For small angles, log chroma is the angle times sqrt(3).
    small = cast < 8
    torch.testing.assert_close(chroma.norm(dim=1)[small].rad2deg(), 3**0.5 * cast[small], rtol=0.1, atol=0.05)
    again = task.batch(torch.arange(len(scenes)), torch.Generator().manual_seed(1))[0]
    assert (again - pictures).abs().mean() > 0.01, "each time anew"
    loss, logged = task.loss(CastReader().network, batch)
    assert loss.isfinite() and float(logged["told"]) == pytest.approx(0.69, abs=0.3)


def test_photographs_become_scenes_that_render_to_them():
    pictures = torch.rand(4, 3, 8, 8) * 0.5 + 0.25
    raw = unrendered(pictures)
    back = torch.einsum("ij,njhw->nihw", _MATRIX, raw)
    inside = (raw > 1e-3).all(1, keepdim=True).expand_as(back)
    torch.testing.assert_close(back[inside], srgb_to_linear(pictures)[inside], atol=1e-5, rtol=1e-4)


def test_a_fit_keeps_to_the_share_of_right_pictures_that_may_change():
    estimator = lf.Estimator("color-statistics").eval()
    reader = CastReader().eval()
    fit = fit_reader(reader, draw_scenes(8), estimator, (0.2, 0.1), 4, 10)
    assert fit["right_left"] == pytest.approx(80, abs=6) and reader.doubt[0] < reader.doubt[1]
    assert reader.config["believed"] == reader.believed == fit["believed"]


@pytest.mark.slow
def test_the_command_trains_fits_and_saves(tmp_path, run):
    from lightfast._pipelines.saving import read_model

    arguments = ["--steps", 4, "--rounds", 1, "--half", "--name", "cast", "--out", tmp_path / "cast", "--device", "cpu"]
    code, said, err = run("train", "photographs", *arguments)
    assert code == 0 and "of pictures that are right are left alone" in said, err
    reader = read_model(tmp_path / "cast", "cast")
    assert isinstance(reader, CastReader) and reader.about["fit"]["believed"] == reader.believed
    assert tuple(reader.config["doubt"]) == reader.doubt
