"""The network that weighs pixels by their gray levels, and its training."""

import math

import pytest
import torch

from lightfast._experiments.engine import Recipe, train
from lightfast.constancy import NeutralTask, QuasiUnsupervised, correct, gray_world
from lightfast.light import von_kries
from lightfast.metrics import recovery_error


@pytest.fixture
def network():
    return QuasiUnsupervised(width=4, levels=2).eval()


@pytest.mark.parametrize("size", [(16, 16), (17, 23), (1, 5)])
def test_any_size(network, size):
    images = torch.rand(2, 3, *size)
    weights = network.weights(images)
    assert weights.shape == (2, 1, *size)
    torch.testing.assert_close(weights.sum((1, 2, 3)), torch.ones(2))
    torch.testing.assert_close(network(images).norm(dim=1), torch.ones(2))


def test_weights_do_not_see_colors_or_exposure(network):
    gray = torch.rand(1, 1, 12, 12)
    tinted = torch.cat([1.5 * gray, gray, 0.5 * gray], 1)
    torch.testing.assert_close(network.weights(tinted), network.weights(gray.expand(1, 3, 12, 12)))
    torch.testing.assert_close(network.weights(0.2 * tinted), network.weights(tinted), atol=1e-5, rtol=1e-4)


def test_masked_pixels_do_not_count(network):
    images, mask = torch.rand(1, 3, 8, 8), torch.ones(1, 1, 8, 8, dtype=torch.bool)
    mask[..., :4] = False
    assert network.weights(images, mask)[~mask].abs().max() == 0


def test_batches_are_the_same_for_the_same_generator():
    task = NeutralTask(torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8))
    task.to("cpu")
    first, second = (task.batch(torch.arange(4), torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].shape == (4, 3, 8, 8) and first[1].shape == (4, 3)


def test_the_loss_is_zero_for_the_right_light():
    task = NeutralTask(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
    light = torch.tensor([[1.0, 0.5, 0.2]])
    model = torch.nn.Linear(1, 1)
    model.forward = lambda images: light / light.norm()  # type: ignore[method-assign]
    loss, logged = task.loss(model, (torch.zeros(1, 3, 2, 2), light))
    assert abs(loss.item()) < 1e-6 and logged["angle"].item() < 0.1


def pictures_of_gray_and_colored_things(count, seed):
    """Bright things are gray and dark things are colored, so gray levels tell what to trust, and the mean misleads."""
    generator = torch.Generator().manual_seed(seed)
    bright = torch.rand((count, 1, 16, 16), generator=generator) < 0.2
    cast = torch.rand((count, 3, 1, 1), generator=generator)
    cast = 0.3 * cast / cast.mean(1, keepdim=True)
    return torch.where(bright, torch.full((count, 3, 16, 16), 0.9), cast.expand(-1, -1, 16, 16))


def test_training_learns_what_is_gray(tmp_path):
    images = pictures_of_gray_and_colored_things(64, 0)
    task = NeutralTask((images.clamp(0, 1) * 255).to(torch.uint8))
    recipe = Recipe(40, batch_size=16, optimizer="adamw", lr=1e-2, schedule="cosine", warmup=5)
    network = train(QuasiUnsupervised(width=4, levels=1), task, recipe, tmp_path, progress=False)
    light = torch.tensor([[1.0, 0.6, 0.3]])
    lit = von_kries(pictures_of_gray_and_colored_things(16, 1), light)
    with torch.no_grad():
        learned = recovery_error(network(lit), light.expand(16, 3)).mean()
    naive = recovery_error(gray_world(lit), light.expand(16, 3)).mean()
    assert learned < naive / 2


def test_correction_makes_the_light_white():
    light = torch.tensor([[0.8, 0.5, 0.2]])
    light = light / light.norm()
    white = correct(von_kries(torch.full((1, 3, 2, 2), 0.5), light), light)
    torch.testing.assert_close(white, torch.full((1, 3, 2, 2), 0.5 / math.sqrt(3)))
