"""Networks whose maps have idle channels, as on a GPU: the same function, in every way to run them."""

import copy

import pytest
import torch

import lightfast as lf
from lightfast import models
from lightfast._backends import choose
from lightfast._backends.reference import Reference
from lightfast._backends.triton.backend import Triton

NETWORKS = [
    ("resnet20", {}, 16),
    ("cerberus", {"size": 32}, 32),
    ("cerberus-local", {}, 32),
    ("cerberus-local", {"norm": True}, 32),
    ("context-encoder", {"base": 6, "bottleneck": 12}, 128),
]


class WithIdleChannels(Reference):
    """As on a GPU without the kernels: what compilers, transforms and several processes see there."""

    fills_channels = True

    def channels(self, features, dtype):
        return filled_up(features, dtype)


def filled_up(features, dtype):
    return Triton().channels(features, dtype)


@pytest.fixture
def with_idle_channels(monkeypatch):
    return lambda: monkeypatch.setitem(choose._BACKENDS, "cpu", WithIdleChannels())


def run(network, x):
    """Training with gradients, evaluation, and evaluation fused."""
    network = copy.deepcopy(network)
    answer = network(x)
    gradients = torch.autograd.grad(answer.square().sum(), list(network.parameters()))
    with torch.no_grad():
        return [answer.detach(), *gradients, network.eval()(x), lf.fuse(network)(x)]


@pytest.mark.parametrize(("name", "options", "size"), NETWORKS)
def test_they_change_nothing(name, options, size, with_idle_channels):
    network, x = models.create(name, 3, **options).double(), torch.randn(4, 3, size, size, dtype=torch.float64)
    expected = run(network, x)
    with_idle_channels()
    torch.testing.assert_close(run(network, x), expected)


@pytest.mark.parametrize(("name", "options", "size"), NETWORKS)
def test_they_compile_whole(name, options, size, with_idle_channels):
    network, x = models.create(name, 3, **options).double(), torch.randn(4, 3, size, size, dtype=torch.float64)
    expected = copy.deepcopy(network)(x)
    with_idle_channels()
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="aot_eager")(x), expected)


def test_they_do_not_come_out(with_idle_channels):
    unit, x = lf.nn.ConvNormAct2d(3, 6, 3, padding=1), torch.randn(2, 3, 5, 5)
    with_idle_channels()
    lifted = unit(lf.nn.Lift(3)(x))
    assert lifted.map.shape[1] == 8 and lifted.features == 6
    assert lf.nn.lower(lifted).shape == (2, 6, 5, 5)


@pytest.mark.parametrize(("first", "second"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_they_are_as_many_as_the_precision_wants(first, second, with_idle_channels):
    units = lf.nn.ConvNormAct2d(3, 9, 3).to(first).eval(), lf.nn.ConvNormAct2d(9, 9, 3).to(second).eval()

    def run(x):
        middle = units[0](lf.nn.Lift(3)(x.to(first)))
        return middle, lf.nn.lower(units[1](middle._replace(map=middle.map.to(second))))

    x = torch.randn(2, 3, 7, 7)
    _, expected = run(x)
    with_idle_channels()
    middle, got = run(x)
    assert middle.map.shape[1] == filled_up(9, first) != filled_up(9, second)
    torch.testing.assert_close(got, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("channels", [1, 4, 6, 8])
def test_they_hide_no_wrong_map(channels, with_idle_channels):
    unit, x = lf.nn.ConvNormAct2d(3, 6, 3, padding=1), lf.nn.LiftedMap(torch.randn(2, channels, 5, 5), None)
    with_idle_channels()
    with pytest.raises(ValueError, match="3 features"):
        unit(x)
