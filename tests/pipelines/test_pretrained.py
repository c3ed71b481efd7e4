"""The weights inside the package, judged by code that is not the project's."""

import numpy as np
import pytest
import torch

import lightfast as lf
from lightfast import assert_equivariant
from lightfast._pipelines.inpainter import Inpainter
from lightfast._pipelines.load import pretrained_names
from lightfast.light import relight, varying_light


def read_test_images(folder):
    """The test set of CIFAR-10 from its binary release, by numpy alone."""
    raw = np.fromfile(folder / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(10_000, 3073)
    return raw[:, 1:].reshape(-1, 3, 32, 32), raw[:, 0]


def relit(images, saturation, seed=0):
    """Light of random hue on sRGB images, by numpy alone."""
    x = images.astype(np.float64) / 255
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    hue = np.random.default_rng(seed).random(len(x)) * 6
    channels = [np.clip(np.abs((hue + shift) % 6 - 3) - 1, 0, 1) for shift in (0, 4, 2)]
    light = 1 - saturation + saturation * np.stack(channels, 1)
    linear = linear * light[:, :, None, None]
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055).astype(np.float32)


@torch.no_grad()
def error(model, images, labels):
    batches = zip(torch.from_numpy(images).split(250), torch.from_numpy(labels).split(250), strict=True)
    return 100 * sum((model(x).argmax(1) != y).sum().item() for x, y in batches) / len(labels)


@pytest.mark.parametrize("name", ["resnet20-cifar10", "resnet20-cifar10-original"])
def test_it_is_a_module_from_image_to_scores(name):
    model = lf.pretrained(name)
    assert not model.training
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert model.classes[0] == "airplane"


def test_no_plane_of_light_is_seen():
    after_log = lf.pretrained("resnet20-cifar10").from_log
    assert lf.certify(after_log, torch.zeros(2, 3, 32, 32), field=1).invariant
    assert_equivariant(after_log, torch.randn(2, 3, 32, 32), expect="invariant", offsets=100.0)


@torch.no_grad()
def test_a_gradient_of_light_changes_the_scores_of_the_conventional_network_alone():
    torch.manual_seed(0)
    images = 0.2 + 0.6 * torch.rand(8, 3, 32, 32)
    light = varying_light("log-gradient", 8, 0.9, generator=torch.Generator().manual_seed(0)).maps((32, 32))
    for name, moves in (("resnet20-cifar10", False), ("resnet20-cifar10-original", True)):
        model = lf.pretrained(name)
        apart = (model(relight(images, illuminants=light)) - model(images)).abs().amax()
        assert (apart > 1) if moves else (apart < 2e-3)


FRESH = {
    "cerberus": lambda: lf.Estimator("cerberus", members=2, views=4),
    "cerberus-local": lambda: lf.Estimator(
        "cerberus-local", members=2, views=4, options={"cerberus-local": {"norm": True}}
    ),
    "inpainter": lambda: Inpainter("context-encoder-slim"),
}


def compiled_answers(name, backend):
    pipeline = FRESH[name]().eval() if name in FRESH else lf.pretrained(name)
    torch.compiler.reset()
    compiled = torch.compile(pipeline, fullgraph=True, backend=backend)
    for saturation in (0.0, 0.9):
        inputs = pipeline.example_inputs(2, pipeline.image_size, saturation)
        yield compiled(*inputs), pipeline(*inputs)


@pytest.mark.parametrize("name", [*pretrained_names(), *FRESH])
@torch.no_grad()
def test_compilation_does_not_break_the_graph(name):
    for given, expected in compiled_answers(name, "eager"):
        torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*pretrained_names(), *FRESH])
@torch.no_grad()
def test_compiled_pipelines_answer_the_same(name):
    for given, expected in compiled_answers(name, "inductor"):
        torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.data
def test_a_thousand_photographs_under_any_light(data_folder):
    images, labels = read_test_images(data_folder)
    images, labels = images[:1000], labels[:1000]
    ours, original = lf.pretrained("resnet20-cifar10"), lf.pretrained("resnet20-cifar10-original")
    still = error(ours, relit(images, 0.0), labels)
    assert still < 10
    assert abs(error(ours, relit(images, 0.9), labels) - still) < 1
    assert error(ours, relit(images, 1.0), labels) < 12
    assert error(original, relit(images, 0.9), labels) > 20


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("name", "run"), [("resnet20-cifar10", "cifar10-best-plane/runs/wrapped-plane-fill-0")])
def test_the_error_is_the_one_in_the_results(name, run, data_folder, repository):
    import json

    record = json.loads((repository / "results" / "recognition" / run / "evaluation.json").read_text())
    images, labels = read_test_images(data_folder)
    at = dict(zip(record["saturations"], record["errors"], strict=True))
    assert error(lf.pretrained(name), relit(images, 0.0), labels) == pytest.approx(at[0.0], abs=0.1)
    # Other hues than the record's, so a little more room where the light matters.
    assert error(lf.pretrained(name), relit(images, 0.9), labels) == pytest.approx(at[0.9], abs=0.2)
