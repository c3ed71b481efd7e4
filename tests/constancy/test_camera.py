"""What is known of a camera: a prior over its lights, measured or found from estimates."""

import pytest
import torch
from torch.nn import functional as F

from lightfast.constancy import LightPrior, pull_together
from lightfast.constancy._camera import _DEGREES, _chroma, _light
from lightfast.metrics import reproduction_error

RED_TO_BLUE = torch.tensor([0.7071, 0.0, -0.7071])
GREEN = torch.tensor([-0.4082, 0.8165, -0.4082])


def camera(n=60, seed=0, green=0.0):
    """True lights on a parabola in log chroma, and estimates whose errors are larger along it than across."""
    generator = torch.Generator().manual_seed(seed)
    along = 0.3 * torch.randn(n, 1, generator=generator)
    truth = along * RED_TO_BLUE + (green + 0.5 * along.square()) * GREEN
    noise = torch.randn(n, 2, 1, generator=generator)
    estimates = truth + 0.1 * noise[:, 0] * RED_TO_BLUE + 0.04 * noise[:, 1] * GREEN
    return F.normalize(truth.exp()), F.normalize(estimates.exp())


def test_estimates_come_closer_to_the_truth_and_follow_the_light():
    truth, estimates = camera()
    spread = torch.full((60,), 4.0)
    pulled = pull_together(estimates, spread)
    assert reproduction_error(pulled, truth).mean() < 0.95 * reproduction_error(estimates, truth).mean()
    gain = torch.tensor([[1.0, 0.4, 0.05]])
    moved = pull_together(F.normalize(estimates * gain), spread)
    assert reproduction_error(moved, pulled * gain).max() < 1e-3


def test_the_unsure_are_pulled_and_the_sure_are_not():
    _, estimates = camera()
    spread = torch.full((60,), 4.0)
    spread[::2] = 0.2
    moved = reproduction_error(pull_together(estimates, spread), estimates)
    assert moved[::2].max() < 0.2 < moved[1::2].mean()
    assert torch.equal(pull_together(estimates[:3], spread[:3]), estimates[:3]), "a few are left alone"


def test_two_cameras_in_one_folder_do_no_harm():
    first, second = camera(), camera(seed=1, green=0.35)
    truth, estimates = (torch.cat(pair) for pair in zip(first, second, strict=True))
    pulled = pull_together(estimates, torch.full((120,), 4.0))
    assert reproduction_error(pulled, truth).mean() < 1.02 * reproduction_error(estimates, truth).mean()


def test_strangers_do_no_harm():
    truth, estimates = camera()
    strange = F.normalize(torch.tensor([[0.2, 1.0, 0.1]])).expand(6, 3)
    spread = torch.full((66,), 4.0)
    pulled = pull_together(torch.cat([estimates, strange]), spread)[:60]
    assert reproduction_error(pulled, truth).mean() < 0.99 * reproduction_error(estimates, truth).mean()


def test_a_prior_from_a_few_lights_helps_where_they_are_true_and_says_so_little_to_the_sure():
    truth, estimates = camera(200)
    prior, spread = LightPrior(truth[:40]), torch.full((160,), 4.0)
    better = reproduction_error(prior(estimates[40:], spread), truth[40:]).mean()
    assert better < 0.9 * reproduction_error(estimates[40:], truth[40:]).mean()
    assert reproduction_error(prior(estimates, torch.full((200,), 0.01)), estimates).max() < 0.1
    beside = F.normalize(truth[:1] * torch.tensor([[0.9, 1.2, 0.9]]))
    assert reproduction_error(prior(beside, torch.tensor([4.0])), beside) > 4, "what the camera never met is doubted"
    far = F.normalize(torch.tensor([[0.05, 1.0, 0.05]]))
    assert reproduction_error(prior(far, torch.tensor([4.0])), far) < 3, "but not what is unlike all that was measured"
    few = LightPrior(truth[:6])(estimates[40:], spread)
    assert reproduction_error(few, truth[40:]).mean() < reproduction_error(estimates[40:], truth[40:]).mean()
    with pytest.raises(ValueError, match="at least two lights"):
        LightPrior(truth[:1])


def test_the_density_is_that_of_which_posteriors_are_the_mean():
    """The posterior by sums over a fine grid: density times the Gaussian about the estimate."""
    truth, estimates = camera(12)
    prior, spread = LightPrior(truth[:8]), 3.0
    line = torch.linspace(-1.5, 1.5, 301, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    density = prior.log_density(_light(grid).log()[None])[0].exp()
    for estimate in estimates[8:]:
        near = (-(grid - _chroma(estimate[None])).square().sum(1) / (2 * (spread * _DEGREES) ** 2)).exp()
        weights = near * density / (near * density).sum()
        mean = weights @ grid
        expected = (weights @ (grid - mean).square().sum(1) / 2).sqrt() / _DEGREES
        light, error = prior.posterior(estimate[None], torch.tensor([spread]))
        assert reproduction_error(light, _light(mean[None]).float()).max() < 0.02
        torch.testing.assert_close(error[0], expected.float(), rtol=0.01, atol=0)


def test_estimates_of_several_cameras_each_have_their_own():
    truth, estimates = camera(20)
    cameras = torch.stack([truth[:8], truth[8:16]])
    logs, spread = truth[16:].log().repeat(2, 1, 1), torch.tensor([3.0, 4.0])
    densities, (lights, expected) = (
        LightPrior(cameras).log_density(logs),
        LightPrior(cameras).posterior(estimates[:2], spread),
    )
    for number in range(2):
        alone, own = LightPrior(cameras[number]), slice(number, number + 1)
        torch.testing.assert_close(densities[own], alone.log_density(logs[own]))
        light, error = alone.posterior(estimates[own], spread[own])
        torch.testing.assert_close((lights[own], expected[own]), (light, error))


def test_low_precision_does_not_round_densities():
    truth = camera(20)[0]
    prior, logs = LightPrior(truth[:12]), truth[12:].log()[None]
    wanted = prior.log_density(logs.double())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(prior.log_density(logs).double(), wanted, atol=2e-4, rtol=0)
    assert prior.log_density(logs.bfloat16()).dtype == torch.float32


def test_no_estimates_are_no_camera():
    with pytest.raises(ValueError, match="at least one"):
        LightPrior.from_estimates(torch.ones(0, 3), torch.ones(0))
