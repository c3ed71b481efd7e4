"""Several lights in one picture: pictures, training under two lights, and a map that follows one light exactly."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lightfast._experiments.data.error import DataError
from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.mimo import LitPicture, load_mimo
from lightfast._experiments.engine import Recipe, train
from lightfast._experiments.illuminant.several_lights import (
    BASELINES,
    SeveralLightsTask,
    measure_pictures,
    two_lights,
)
from lightfast._experiments.illuminant.task import SceneAugmentation
from lightfast._photographs.photo import Photo
from lightfast._pipelines.light_map import LightMap
from lightfast.metrics import reproduction_error

pytestmark = pytest.mark.usefixtures("one_thread")


def small_map():
    torch.manual_seed(0)
    return LightMap(size=32, options={"channels": [6, 12], "hidden": 24})


def half_and_half():
    """A gray wall under two lights that meet in the middle."""
    light = torch.tensor([0.8, 0.5, 0.33])[:, None, None].repeat(1, 8, 12)
    light[..., 6:] = torch.tensor([0.33, 0.5, 0.8])[:, None, None]
    return LitPicture("wall", 0.5 * light, F.normalize(light, dim=0))


def test_a_map_follows_one_light_exactly_and_is_of_the_size_of_the_image():
    model = small_map().eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    images, gain = torch.rand(2, 3, 20, 28) + 0.05, torch.tensor([1.0, 0.3, 0.02])[:, None, None]
    with torch.no_grad():
        before, after = model(images), model(images * gain)
    assert before.shape == images.shape
    assert (
        reproduction_error(
            after.permute(0, 2, 3, 1).reshape(-1, 3), (before * gain).permute(0, 2, 3, 1).reshape(-1, 3)
        ).max()
        < 1e-3
    )
    assert (before[..., 0, 0] - before[..., -1, -1]).abs().max() > 1e-4


def test_training_under_two_lights_finds_both():
    scenes, model = draw_scenes(scenes=18, cameras=2, size=(32, 32)), small_map()
    task = SeveralLightsTask(scenes, model.encoding, SceneAugmentation(smallest_part=0.5))
    encoded, offset, field = task.batch(torch.arange(8), torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = task.loss(model.network, (encoded, offset, field))[1]["reproduction"]
    train(model.network, task, Recipe(80, batch_size=16, optimizer="adamw", lr=5e-3, schedule="cosine"), progress=False)
    with torch.no_grad():
        after = task.loss(model.network.eval(), (encoded, offset, field))[1]["reproduction"]
        left, right = (model(half_and_half().image[None])[0, :, 4, place] for place in (1, -2))
    assert after < 0.8 * before
    assert left[0] > left[2] and right[0] < right[2]


def test_two_lights_are_one_in_a_fifth_and_meet_anywhere():
    fields = two_lights(200, 16, torch.Generator().manual_seed(0))
    assert fields.shape == (200, 3, 16, 16) and fields.isfinite().all()
    varies = (fields - fields[..., :1, :1]).abs().amax((1, 2, 3)) > 1e-3
    assert 0.7 < varies.float().mean() < 0.9


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
    assert measure_pictures(lambda each: half_and_half().light, [read])["recovery"]["mean"] < 0.1
    errors = {name: measure_pictures(answer, [read])["recovery"]["mean"] for name, answer in BASELINES.items()}
    between = torch.rad2deg(torch.acos((picture.light[:, 0, 0] * picture.light[:, 0, -1]).sum()))
    assert errors["best single light, knowing the truth"] == pytest.approx(float(between) / 2, rel=0.01)
    assert errors["gray world"] >= errors["best single light, knowing the truth"] - 1e-3
    with pytest.raises(DataError, match="name the folder that holds MIMO"):
        load_mimo(tmp_path / "nowhere")
