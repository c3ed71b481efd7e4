"""Several lights in one picture: pictures, and what estimators get wrong over their pixels."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.mimo import LitPicture, load_mimo
from lightfast._experiments.illuminant.experiment import Illuminant
from lightfast._experiments.illuminant.several_lights import BASELINES, measure_pictures
from lightfast._photographs.photo import Photo
from lightfast._pipelines.estimator import Estimator

pytestmark = pytest.mark.usefixtures("one_thread")


def half_and_half():
    """A gray wall under two lights that meet in the middle."""
    light = torch.tensor([0.8, 0.5, 0.33])[:, None, None].repeat(1, 8, 12)
    light[..., 6:] = torch.tensor([0.33, 0.5, 0.8])[:, None, None]
    return LitPicture("wall", 0.5 * light, F.normalize(light, dim=0))


def test_pictures_are_read_and_measured_where_their_light_is_known(tmp_path):
    picture = half_and_half()
    light = picture.light.clone()
    light[:, :2] = 0
    for name, values in (("wall", picture.image), ("wall_light", light)):
        pixels = np.round(values.permute(1, 2, 0).numpy() * 65535).astype(np.uint16)
        (tmp_path / "lab").mkdir(exist_ok=True)
        Photo(pixels).save(tmp_path / "lab" / f"{name}.png")
    (read,) = load_mimo(tmp_path)
    assert read.name == "lab/wall" and (read.light[:, :2] == 0).all()
    torch.testing.assert_close(read.image, picture.image, atol=1e-4, rtol=0)
    assert measure_pictures(lambda each: half_and_half().light, [read])["mean"] < 0.1
    errors = {name: measure_pictures(answer, [read])["mean"] for name, answer in BASELINES.items()}
    between = torch.rad2deg(torch.acos((picture.light[:, 0, 0] * picture.light[:, 0, -1]).sum()))
    assert errors["best single light, knowing the truth"] == pytest.approx(float(between) / 2, rel=0.01)
    assert errors["gray world"] >= errors["best single light, knowing the truth"] - 1e-3
    assert errors["best plane of light, knowing the truth"] < 0.5 * errors["best single light, knowing the truth"]
    estimator = Estimator("color-statistics", options={"color-statistics": {"spread": True}})
    table, found = Illuminant.evaluate(estimator, tmp_path, None, 0, torch.device("cpu"))
    assert "a plane of light" in table
    assert found["errors"]["gray world"]["mean"] == pytest.approx(errors["gray world"])
    with pytest.raises(DataError, match="name the folder that holds MIMO"):
        load_mimo(tmp_path / "nowhere")
