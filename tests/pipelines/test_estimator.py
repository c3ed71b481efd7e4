"""The estimator: any size, any mask, and an estimate that moves exactly with the light."""

import pytest
import torch
from torch.nn import functional as F

from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._pipelines.estimator import Estimator, SceneEncoding
from lightfast._pipelines.load import load
from lightfast._pipelines.resample import area_weights
from lightfast.constancy import LightPrior
from lightfast.metrics import recovery_error, reproduction_error

LIGHT = torch.tensor([[1.0, 0.3, 0.01], [0.2, 1.0, 0.7]])


@pytest.fixture(scope="module")
def scenes():
    return draw_scenes(scenes=4, cameras=1)


def _stirred(estimator):
    """With weights far from their start, so that a test sees what they do."""
    for parameter in estimator.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return estimator.eval()


KINDS = [
    ("cerberus", 3),
    ("cerberus-local", 3),
    ("cerberus", None),
    ("chroma-histogram", 3),
    ("color-statistics", 3),
    ("cerberus-local+chroma-histogram+color-statistics", 3),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_relighting_a_masked_image_moves_the_estimate_exactly_with_the_light(scenes, kind):
    estimator = _stirred(Estimator(kind[0], offset_groups=kind[1], views=2))
    images = scenes.images[:2]
    assert (images == 0).all(1).any()
    images[0, :, 5:9] = 1.0
    with torch.no_grad():
        before, after = estimator(images), estimator(images * LIGHT[..., None, None])
    assert reproduction_error(after, F.normalize(before * LIGHT)).max() < 1e-3
    assert reproduction_error(before, torch.ones(2, 3)).min() > 1


def test_masked_pixels_do_not_matter(scenes):
    estimator = _stirred(Estimator("cerberus-local"))
    images = scenes.images[:1].clone()
    mask = torch.ones(1, 1, 32, 48, dtype=torch.bool)
    mask[..., 4:20, 8:30] = False
    spoilt = torch.where(mask, images, torch.rand_like(images))
    zeroed = torch.where(mask, images, torch.zeros_like(images))
    with torch.no_grad():
        expected = estimator(images, mask)
        torch.testing.assert_close(estimator(spoilt, mask), expected)
        torch.testing.assert_close(estimator(zeroed), expected)
        assert recovery_error(estimator(images), expected).max() > 0.01


def test_black_images_and_images_that_are_masked_whole_have_a_finite_answer():
    estimator = Estimator().eval()
    images = torch.rand(2, 3, 20, 20)
    images[0] = 0
    mask = torch.ones(2, 1, 20, 20, dtype=torch.bool)
    mask[1] = False
    with torch.no_grad():
        assert estimator(images, mask).isfinite().all()


def test_size_and_shape_of_the_image_hardly_matter(scenes):
    """Sides are squeezed to a square: an image that is stretched by whole pixels is the same image."""
    estimator = _stirred(Estimator("cerberus-local"))
    images = scenes.images[:2]
    with torch.no_grad():
        expected = estimator(images)
        stretched = images.repeat_interleave(3, 3)
        torch.testing.assert_close(estimator(stretched), expected, atol=1e-5, rtol=0)
        larger = images.repeat_interleave(5, 2).repeat_interleave(5, 3)
        torch.testing.assert_close(estimator(larger), expected, atol=1e-5, rtol=0)


def test_area_resampling_is_exact():
    encoding = SceneEncoding(size=4)
    images = torch.rand(2, 3, 8, 12, dtype=torch.float64) + 0.1
    torch.testing.assert_close(encoding.reduce(images), F.adaptive_avg_pool2d(images, 4))
    odd = torch.rand(1, 3, 7, 9, dtype=torch.float64) + 0.1
    torch.testing.assert_close(encoding.reduce(odd).mean((2, 3)), odd.mean((2, 3)))
    boxes = torch.tensor([[2.0, 6.0, 0.0, 8.0]], dtype=torch.float64).expand(2, 4)
    torch.testing.assert_close(encoding.reduce(images, boxes=boxes), F.adaptive_avg_pool2d(images[:, :, 2:6, 0:8], 4))
    weights = area_weights(torch.tensor([1.5]), torch.tensor([6.0]), size=3, pixels=7)
    torch.testing.assert_close(weights.sum(2), torch.full((1, 3), 1.5))


def test_members_and_views_are_averaged(scenes):
    estimator = _stirred(Estimator(members=2, views=8))
    image = scenes.images[:1]
    with torch.no_grad():
        expected = estimator(image)
        torch.testing.assert_close(estimator(image.flip(3)), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(estimator(image.flip(2)), expected, atol=1e-5, rtol=0)
        single = [Estimator.from_config({**estimator.config, "members": 1}) for _ in range(2)]
        for number, one in enumerate(single):
            one.networks[0].load_state_dict(estimator.networks[number].state_dict())
        logs = torch.stack([one.eval()(image).log() for one in single]).mean(0)
    torch.testing.assert_close(F.normalize(logs.exp()), expected, atol=1e-5, rtol=0)


def test_networks_of_several_kinds_are_averaged(scenes):
    both = _stirred(Estimator("chroma-histogram+color-statistics", members=2))
    image = scenes.images[:2]
    with torch.no_grad():
        answers = []
        for place, name in enumerate(["chroma-histogram", "color-statistics"]):
            one = Estimator(name, members=2).eval()
            one.networks.load_state_dict(both.networks[2 * place : 2 * place + 2].state_dict())
            answers.append(one(image).log())
        torch.testing.assert_close(F.normalize(torch.stack(answers).mean(0).exp()), both(image), atol=1e-5, rtol=0)


def test_the_original_sees_light_but_not_exposure(scenes):
    estimator = _stirred(Estimator(offset_groups=None, color="linear"))
    with torch.no_grad():
        expected = estimator(scenes.images)
        torch.testing.assert_close(estimator(scenes.images * 0.1), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(expected.norm(dim=1), torch.ones(4))


def test_saved_and_loaded_it_is_the_same(tmp_path, scenes):
    estimator = _stirred(Estimator("cerberus-local", members=2, views=4, softness=0.02))
    estimator.save(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, Estimator) and loaded.config == estimator.config
    with torch.no_grad():
        torch.testing.assert_close(loaded(scenes.images), estimator(scenes.images))


def test_gradients_reach_the_image(scenes):
    images = scenes.images.clone().requires_grad_()
    Estimator()(images)[:, 0].sum().backward()
    assert images.grad is not None and images.grad.isfinite().all() and images.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"views": 3}, "1, 2, 4 or 8"),
        ({"members": 0}, "at least one"),
        ({"color": "linear"}, "log"),
        ({"softness": 0.0}, "softness"),
        ({"color": "srgb", "offset_groups": None}, "linear or log"),
        ({"network": "resnet"}, "resnet"),
        ({"network": "resnet20"}, "for light"),
        ({"options": {"dropout": 0.2}}, "by network"),
        ({"options": {"cerberu": {"dropout": 0.2}}}, "by network"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Estimator(**arguments)


def test_wrong_images_are_refused():
    with pytest.raises(ValueError, match=r"\(N, 3, H, W\)"):
        Estimator()(torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match="mask"):
        Estimator()(torch.rand(1, 3, 8, 8), torch.ones(1, 3, 8, 8))


SURE = {name: {"spread": True} for name in ("cerberus-local", "chroma-histogram", "color-statistics")}


@pytest.fixture(scope="module")
def sure_estimator():
    torch.manual_seed(0)
    return _stirred(Estimator("+".join(SURE), options=SURE, views=2)).requires_grad_(False)


def test_networks_are_weighed_by_what_error_they_expect(scenes, sure_estimator):
    images, light = scenes.images[:2], LIGHT
    estimates, spread = sure_estimator.confident(images)
    torch.testing.assert_close(sure_estimator(images), estimates)
    assert estimates.shape == (2, 3) and spread.shape == (2,) and (spread > 0).all()
    moved, same = sure_estimator.confident(images * light[..., None, None])
    assert reproduction_error(moved, F.normalize(estimates * light)).max() < 1e-3
    torch.testing.assert_close(same, spread, rtol=1e-3, atol=0)
    alone = Estimator("cerberus-local", options={"cerberus-local": SURE["cerberus-local"]}, views=2).eval()
    alone.networks[0].load_state_dict(sure_estimator.networks[0].state_dict())
    # A network that is believed to be far more sure than the others speaks alone.
    trusting = sure_estimator.with_calibration([1e-4, 1.0, 1.0, 1.0])
    with torch.no_grad():
        assert reproduction_error(trusting(images), alone(images)).max() < 1e-2
        assert reproduction_error(trusting(images), estimates).min() > 0.1
        twice = sure_estimator.with_calibration([1.0, 1.0, 1.0, 2.0]).confident(images)[1]
    torch.testing.assert_close(twice, 2 * spread)


def test_a_calibrated_estimator_is_saved_and_loaded(tmp_path, scenes, sure_estimator):
    sure_estimator.with_calibration([1.0, 2.0, 0.5, 3.0]).save(tmp_path)
    loaded = Estimator.load(tmp_path)
    assert loaded.calibration == (1.0, 2.0, 0.5, 3.0)
    assert loaded.confident(scenes.images[:1])[1] != sure_estimator.confident(scenes.images[:1])[1]
    with pytest.raises(ValueError, match="a factor above 0 for each of 1 networks"):
        Estimator(calibration=[1.0])


def test_photographs_of_a_camera_know_of_each_other(scenes, sure_estimator):
    images = torch.cat([scenes.images] * 3)[:9] * torch.linspace(0.5, 1.5, 9)[:, None, None, None] ** torch.tensor(
        [[[[1.0]], [[0.0]], [[-1.0]]]]
    )
    assert reproduction_error(sure_estimator.for_camera(images), sure_estimator(images)).max() > 1e-3
    assert torch.equal(sure_estimator.for_camera(images[:1]), sure_estimator(images[:1]))
    together, moved = (sure_estimator.for_camera(each) for each in (images, images * LIGHT[:1, :, None, None]))
    assert reproduction_error(moved, F.normalize(together * LIGHT[:1])).max() < 1e-2, "all relit alike"


def test_a_prior_of_the_camera_draws_answers_to_its_lights(scenes, sure_estimator):
    images = scenes.images[:4]
    estimates = sure_estimator(images)
    met = F.normalize(estimates.mean(0) * torch.tensor([[1.3, 1.0, 0.7], [1.31, 1.0, 0.69], [1.29, 1.0, 0.71]]))
    known, _ = sure_estimator.confident(images, prior=LightPrior(met))
    assert (
        reproduction_error(known, met[:1].expand(4, 3)).mean()
        < 0.5 * reproduction_error(estimates, met[:1].expand(4, 3)).mean()
    )
    dim, _ = sure_estimator.confident(0.1 * images, prior=LightPrior(met))
    assert reproduction_error(dim, known).max() < 1e-3, "exposure does not matter"
    for network, name in zip(sure_estimator.networks, SURE, strict=True):
        alone = Estimator(name, options={name: SURE[name]}).eval()
        alone.networks[0].load_state_dict(network.state_dict())
        with torch.no_grad():
            before, after = alone(images), alone.confident(images, prior=LightPrior(met))[0]
        assert (
            reproduction_error(after, met[:1].expand(4, 3)).mean()
            < 0.8 * reproduction_error(before, met[:1].expand(4, 3)).mean()
        ), name


@pytest.mark.parametrize("views", [1, 2, 8])
def test_each_image_may_have_a_prior_of_its_own(scenes, sure_estimator, views):
    images = scenes.images[:3]
    several = Estimator.from_config({**sure_estimator.config, "views": views}).eval()
    several.load_state_dict(sure_estimator.state_dict())
    met = F.normalize(torch.rand(3, 5, 3, generator=torch.Generator().manual_seed(0)) + 0.5, dim=2)
    together = several.confident(images, prior=LightPrior(met))
    for number in range(3):
        alone = several.confident(images[number : number + 1], prior=LightPrior(met[number]))
        for joint, own in zip(together, alone, strict=True):
            torch.testing.assert_close(joint[number], own[0], atol=1e-4, rtol=1e-4)


def test_a_prior_is_multiplied_onto_answers_in_linear_colors(scenes):
    torch.manual_seed(0)
    options = {"cerberus-local": {"spread": True}}
    estimator = Estimator("cerberus-local", offset_groups=None, color="linear", options=options).eval()
    images, prior = scenes.images[:4], LightPrior(F.normalize(torch.tensor([[1.3, 1.0, 0.7], [1.2, 1.0, 0.8]])))
    with torch.no_grad():
        known, wanted = estimator.confident(images, prior=prior), prior.posterior(*estimator.confident(images))
    torch.testing.assert_close(known, wanted)


def test_an_estimator_without_confidence_says_so(scenes):
    with pytest.raises(ValueError, match="does not say how sure it is"):
        Estimator("cerberus-local").confident(scenes.images)
