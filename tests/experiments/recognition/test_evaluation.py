"""Counting errors under colored light."""

import pytest
import torch
from torch import nn

from lightfast._experiments.data.generated import draw
from lightfast._experiments.lights import SATURATIONS, evaluation_lights
from lightfast._experiments.recognition.evaluation import evaluate
from lightfast.light import LIGHT_KINDS, gradient_light, random_illuminants, relight


class BrightestChannel(nn.Module):
    """Says which channel is brightest: right in white light, and at the mercy of any other."""

    def forward(self, images):
        return images.mean((2, 3))


@pytest.fixture
def colored():
    """Images whose class is their brightest channel."""
    labels = torch.arange(300) % 3
    images = torch.full((300, 3, 4, 4), 100, dtype=torch.uint8)
    images[torch.arange(300), labels] = 140
    return images, labels


def test_error_grows_with_saturation(colored):
    result = evaluate(BrightestChannel(), *colored)
    assert result.saturations == SATURATIONS and result.images == 300
    assert result.errors[0] == 0
    assert list(result.errors) == sorted(result.errors) and result.errors[-1] > 40
    assert 30 < result.mixed < 90
    assert tuple(result.varying) == LIGHT_KINDS and result.varying["gradient"] == result.mixed
    assert all(20 < error < 90 for error in result.varying.values())


def test_the_gradient_is_that_of_older_records(colored):
    """Two illuminants and a direction an image, drawn one after another."""
    generator = torch.Generator().manual_seed(1)
    first, second = (random_illuminants(300, 0.9, generator=generator) for _ in range(2))
    light = gradient_light(first, second, (4, 4), angle=2 * torch.pi * torch.rand(300, generator=generator))
    images, labels = colored
    scores = BrightestChannel()(relight(images.float() / 255, illuminants=light))
    wrong = (scores.argmax(1) != labels).float().mean()
    assert evaluate(BrightestChannel(), *colored).mixed == pytest.approx(100 * wrong.item(), abs=0.4)


def test_neither_batch_size_nor_chance_matters(colored):
    torch.manual_seed(1)
    first = evaluate(BrightestChannel(), *colored, batch_size=7)
    torch.manual_seed(2)
    assert evaluate(BrightestChannel(), *colored, batch_size=300) == first
    assert evaluate(BrightestChannel(), *colored, seed=5) != first


def test_an_image_keeps_its_hue():
    weak, strong = evaluation_lights(50, [0.3, 0.6], seed=0)
    torch.testing.assert_close((1 - weak) / 0.3, (1 - strong) / 0.6)


def test_evaluation_mode_is_used():
    seen = []

    class Watch(nn.Module):
        def forward(self, images):
            seen.append((self.training, torch.is_grad_enabled(), images.dtype))
            return torch.zeros(len(images), 9)

    images, labels = draw(4, size=8)
    evaluate(Watch().train(), images, labels)
    assert set(seen) == {(False, False, torch.float32)} and len(seen) == len(SATURATIONS) + len(LIGHT_KINDS)
