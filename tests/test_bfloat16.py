"""Networks computed in bfloat16 follow offsets of up to 100: the error is below a hundredth of the output's range."""

import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast import models
from lightfast._experiments.data.generated import draw
from lightfast._pipelines.inpainter import Inpainter
from lightfast._pipelines.load import pretrained_names
from lightfast.functional import add_offset


def log_pictures(size, count=16):
    """Pictures in log RGB, each under a light of its own."""
    linear = lf.color.srgb_to_linear(draw(count, seed=0, size=size)[0].float() / 255)
    lights = lf.light.random_illuminants(count, 0.7, generator=torch.Generator().manual_seed(0))
    return lf.color.linear_to_log(linear * lights[..., None, None], 0.01)


@torch.no_grad()
def error(network, x, output):
    """How far from following an offset, as a share of the output's range."""
    offsets = (torch.rand(len(x), 3, generator=torch.Generator().manual_seed(1)) * 2 - 1) * 100
    with torch.autocast("cpu", torch.bfloat16):
        before, after = (network(each).float() for each in (x, add_offset(x, offsets, 3)))
    if output == "equivariant" and before.shape[1] == 4:
        # Beside the light, the logarithm of the error to expect, which no light changes.
        assert (after[:, 3] - before[:, 3]).abs().max() < 0.1
        before, after = before[:, :3], after[:, :3]
    expected = add_offset(before, offsets, 3) if output == "equivariant" else before
    return ((after - expected).abs().max() / (before.max() - before.min())).item()


def settled(network, x):
    with torch.no_grad():
        for _ in range(3):
            network(x)
    return network.eval()


NETWORKS = {
    "lifted": (lambda: models.create("resnet20"), 32, "invariant"),
    "lifted, free": (lambda: models.create("resnet20", constrained=False), 32, "invariant"),
    "lifted, fused": (lambda: lf.fuse(settled(models.create("resnet20"), log_pictures(32))), 32, "invariant"),
    "wrapped": (lambda: lf.wrap(models.create("resnet20", None)), 32, "invariant"),
    "wrapped, equivariant": (
        lambda: lf.wrap(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1)), output="equivariant"),
        32,
        "equivariant",
    ),
    "cerberus": (lambda: models.create("cerberus"), 64, "equivariant"),
    "cerberus-local": (lambda: models.create("cerberus-local", norm=True), 64, "equivariant"),
    "chroma-histogram": (lambda: models.create("chroma-histogram"), 64, "equivariant"),
    "color-statistics": (lambda: models.create("color-statistics"), 64, "equivariant"),
    "context encoder": (lambda: models.create("context-encoder", base=6, bottleneck=12), 128, "equivariant"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    build, size, output = NETWORKS[name]
    x = log_pictures(size, 2 if size == 128 else 16)
    assert error(settled(build(), x), x, output) < 1e-2


def test_groups_pooled_at_each_pixel_lose_a_little_more():
    x = log_pictures(32)
    assert error(settled(models.create("resnet20", scope="pixel"), x), x, "invariant") < 3e-2


def networks_inside(pipeline):
    """The networks of a pipeline that follow offsets by themselves, the size of their images, and what they answer."""
    if pipeline.config["offset_groups"] is None:
        return [], 0, ""
    if isinstance(pipeline, lf.Estimator):
        return pipeline.networks, pipeline.config["size"], "equivariant"
    if isinstance(pipeline, Inpainter):
        return [pipeline.network], 128, "equivariant"
    return [pipeline.network], pipeline.config["size"], "invariant"


@pytest.mark.parametrize("name", pretrained_names())
def test_pretrained_networks(name):
    networks, size, output = networks_inside(lf.pretrained(name))
    for network in networks:
        x = log_pictures(size)
        assert error(network, x, output) < 1e-2


FRESH = {
    "cerberus": lambda: lf.Estimator("cerberus", members=2, views=2),
    "cerberus-local": lambda: lf.Estimator("cerberus-local", members=2, views=2),
    "general": lambda: lf.Estimator("chroma-histogram+color-statistics", members=2, views=2),
    "inpainter": lambda: Inpainter("context-encoder-slim"),
}


@pytest.mark.parametrize("name", [*pretrained_names(), *FRESH])
@torch.no_grad()
def test_pipelines_with_weights_in_bfloat16(name):
    """The images stay in float32, and are brought to what the network sees in it."""
    pipeline = FRESH[name]().eval() if name in FRESH else lf.pretrained(name)
    images, *others = pipeline.example_inputs(4, pipeline.image_size)
    exact, low = pipeline(images, *others), pipeline.bfloat16()(images, *others).float()
    # Lights lie closer together than other answers do.
    share = 0.1 if isinstance(pipeline, lf.Estimator) else 0.05
    assert (low - exact).abs().max() < share * (exact.max() - exact.min())
