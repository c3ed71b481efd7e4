"""Fused networks compute the same function with plain layers."""

import pytest
import torch
from cases import LINEAR
from torch import nn

import lightfast as lf
from lightfast import Groups, models
from lightfast._fuse import fuse
from lightfast._pipelines.inpainter import Inpainter
from lightfast._pipelines.load import pretrained_names
from lightfast.models._vocabulary.conventional import FromPixel, ToPixel
from lightfast.nn import ConvNormAct2d, Lift
from lightfast.nn._constrained import Constrained

GROUPS = Groups.interleaved(6, 3)


def settled(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """With running statistics that are not those of a fresh layer, and scales and shifts too."""
    for _ in range(3):
        model(x)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.affine:
            layer.weight.data.mul_(0.5 + torch.rand_like(layer.weight))
            layer.bias.data.add_(0.1 * torch.randn_like(layer.bias))
    return model.eval()


def assert_same(model: nn.Module, x: torch.Tensor) -> nn.Module:
    fused = fuse(model)
    torch.testing.assert_close(fused(x), model(x), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(module, Constrained | ConvNormAct2d) for module in fused.modules())
    return fused


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case.name)
def test_every_constrained_layer(case):
    assert_same(case.build(GROUPS).eval(), case.input(GROUPS, torch.float32))


@pytest.mark.parametrize("name", ["resnet20", "resnet18"])
@pytest.mark.parametrize("scope", ["image", "pixel"])
def test_networks(name, scope):
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    network = settled(models.create(name, 3, classes=5, scope=scope).double(), x)
    fused = assert_same(network, x)
    assert lf.equivariance_error(fused, x, expect="invariant", offsets=100.0) < 1e-9


@pytest.mark.parametrize("padding_mode", ["replicate", "mean"])
def test_a_norm_goes_into_the_convolution_before_it(padding_mode):
    x = torch.randn(3, 3, 8, 8)
    network = settled(
        nn.Sequential(lf.nn.Conv2d(3, 6, 3, padding=1, padding_mode=padding_mode), lf.nn.BatchNorm2d(6), lf.nn.ReLU()),
        x,
    )
    fused = assert_same(network, x)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())


def test_a_scale_of_zero_is_left_outside():
    x = torch.randn(3, 3, 8, 8)
    network = nn.Sequential(lf.nn.Conv2d(3, 6, 3), lf.nn.BatchNorm2d(6))
    settled(network, x)
    with torch.no_grad():
        network[1].weight[2] = 0
    assert_same(network, x)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_a_unit_with_shortcut_and_offset(slope):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.first = Lift(3), ConvNormAct2d(3, 6, 3, padding=1)
            self.second = ConvNormAct2d(6, 6, 3, padding=1, slope=slope)

        def forward(self, x):
            y = self.first(self.lift(x))
            return lf.nn.lower(self.second(y, y))

    x = torch.randn(3, 3, 8, 8)
    assert_same(settled(Two(), x), x)


def test_the_given_model_is_left_as_it_is():
    model = nn.Sequential(lf.nn.Conv2d(3, 6, 3), lf.nn.BatchNorm2d(6)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fuse(model)
    assert model.training
    assert isinstance(model[0], lf.nn.Conv2d)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def network(name, **options):
    """As `models.create`, where the large ones have few features."""
    if name == "context-encoder":
        options |= {"base": 6, "bottleneck": 12}
    return models.create(name, **options)


def size_for(name):
    return 128 if name.startswith("context") else 64 if name.startswith("cerberus") else 32


def assert_plain(fused: nn.Module) -> None:
    """Torch's own layers hold all parameters."""
    owners = {type(module) for module in fused.modules() for _ in module.parameters(recurse=False)}
    known = {nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm1d, nn.BatchNorm2d, ToPixel, FromPixel}
    assert owners <= known and not any(isinstance(module, Constrained) for module in fused.modules())


# These are made of the same parts as smaller ones.
LARGE = {"resnet32", "resnet44", "resnet56", "resnet110", "resnet34", "resnet101", "resnet152", "resnet9-wide"}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in models.names()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"constrained": False}, {"offset_groups": None}], ids=str)
@torch.no_grad()
def test_every_network(name, options):
    if name in ("chroma-histogram", "color-statistics") and "offset_groups" in options:
        pytest.skip("statistics of colors have no conventional twin")
    x = torch.randn(2, 3, *[size_for(name)] * 2, dtype=torch.float64)
    model = settled(network(name, **options).double(), x)
    fused = fuse(model)
    torch.testing.assert_close(fused(x), model(x), atol=1e-9, rtol=1e-9)
    assert_plain(fused)


@pytest.mark.parametrize(
    "model",
    [
        lambda: lf.wrap(models.create("resnet20", None)),
        lambda: lf.wrap(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 1))),
        lambda: lf.wrap(nn.Sequential(nn.ConvTranspose2d(3, 6, 4, 2, 1), nn.BatchNorm2d(6)), output="equivariant",
                        out_groups=3),
    ],
)  # fmt: skip
@torch.no_grad()
def test_wrapped_networks(model):
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    wrapped = settled(model().double(), x)
    fused = fuse(wrapped)
    torch.testing.assert_close(fused(x), wrapped(x), atol=1e-9, rtol=1e-9)
    assert_plain(fused)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())


PIPELINES = {
    "cerberus": lambda: lf.Estimator("cerberus", members=2, views=4),
    "cerberus-local": lambda: lf.Estimator(
        "cerberus-local", members=2, views=4, options={"cerberus-local": {"norm": True}}
    ),
    "general": lambda: lf.Estimator("chroma-histogram+color-statistics", members=2, views=2),
    "linear": lambda: lf.Estimator("cerberus", offset_groups=None, color="linear"),
    "inpainter": lambda: Inpainter("context-encoder-slim"),
}


@pytest.mark.parametrize("name", [*pretrained_names(), *PIPELINES])
@torch.no_grad()
def test_pipelines(name):
    pipeline = PIPELINES[name]().eval() if name in PIPELINES else lf.pretrained(name)
    fused = fuse(pipeline)
    assert_plain(fused)
    for saturation in (0.0, 0.9):
        inputs = pipeline.example_inputs(3, pipeline.image_size, saturation)
        torch.testing.assert_close(fused(*inputs), pipeline(*inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("groups", [3, Groups.interleaved(6, 3)], ids=["runs", "interleaved"])
@pytest.mark.parametrize("padding_mode", ["replicate", "mean"])
@torch.no_grad()
def test_a_norm_at_each_pixel_goes_into_the_convolution_whole(groups, padding_mode):
    x = torch.randn(3, 6, 8, 8)
    conv = lf.nn.Conv2d(6, 6, 3, padding=1, bias=False, padding_mode=padding_mode, offset_groups=groups)
    model = settled(nn.Sequential(conv, lf.nn.BatchNorm2d(6, offset_groups=groups, scope="pixel")), x)
    fused = assert_same(model, x)
    assert isinstance(fused[1], nn.Identity) and not list(fused.buffers())


@torch.no_grad()
def test_norms_that_cannot_go_into_a_convolution_stay():
    x = torch.randn(3, 3, 8, 8)
    for norm in (
        lf.nn.BatchNorm2d(6, pool="max"),
        lf.nn.BatchNorm2d(6, affine=False),
        lf.nn.BatchNorm2d(6, scope="pixel", offset_groups=GROUPS),
        lf.nn.BatchNorm2d(6, offset_groups=GROUPS),
        nn.BatchNorm2d(6, track_running_stats=False),
    ):
        model = nn.Sequential(lf.nn.Conv2d(3, 6, 3), norm)
        for _ in range(2):
            model(x)
        assert type(assert_same(model.eval(), x)[1]) is type(norm)


@torch.no_grad()
def test_fused_networks_in_bfloat16():
    x = torch.randn(8, 3, 32, 32)
    model = settled(models.create("resnet20", classes=5), x)
    exact, fused = model(x), fuse(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert (fused(x) - exact).abs().max() < 0.05 * exact.abs().max()
    assert (fused.bfloat16()(x.bfloat16()) - exact).abs().max() < 0.05 * exact.abs().max()


def test_gradients_reach_the_input_of_a_fused_network():
    x = torch.randn(2, 3, 32, 32, requires_grad=True)
    model = settled(models.create("resnet20", classes=5), x)
    expected = torch.autograd.grad(model(x).square().sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(fuse(model)(x).square().sum(), x)[0], expected, atol=1e-4, rtol=1e-3)
