"""Lifted maps: the network of the ordinary layers, computed another way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lightfast as lf
from lightfast import assert_equivariant
from lightfast._backends import Form, fit_weight
from lightfast._backends.tensors import fit_channels
from lightfast.functional import add_offset, center, group_pool
from lightfast.nn import ConvNormAct2d, ConvTransposeNormAct2d, Lift, LiftedMap, SqueezeNormAct, lower


class Unit(nn.Module):
    """Two units with a shortcut, from a map to a map."""

    def __init__(self, constrained: bool = True) -> None:
        super().__init__()
        self.lift = Lift(3)
        self.first = ConvNormAct2d(3, 6, 3, padding=1, constrained=constrained)
        self.second = ConvNormAct2d(6, 6, 3, padding=1, slope=0.2, constrained=constrained)

    def forward(self, x):
        y = self.first(self.lift(x))
        return lower(self.second(y, y))


def ordinary(unit: Unit, x: torch.Tensor) -> torch.Tensor:
    """The same network in ordinary operations on whole maps, padded with the offset by hand."""

    def conv(layer, x, outside):
        framed = add_offset(torch.zeros_like(F.pad(x, (1, 1, 1, 1))), outside, 3)
        framed[..., 1:-1, 1:-1] = x
        return F.conv2d(framed, layer.projected_weight(), layer.bias)

    def leaky(x, slope):
        return add_offset(F.leaky_relu(center(x, 3), slope), group_pool(x, 3), 3), group_pool(x, 3)

    outside = group_pool(x, 3)
    y, outside = leaky(unit.first.norm(conv(unit.first.conv, x, outside)), 0.0)
    z, _ = leaky(unit.second.norm(conv(unit.second.conv, y, outside)) + center(y, 3), 0.2)
    return z


@pytest.mark.parametrize("training", [True, False])
def test_a_lifted_network_is_the_ordinary_one(training):
    unit = Unit().double().train(training)
    x = torch.randn(4, 3, 7, 6, dtype=torch.float64)
    unit(x)
    torch.testing.assert_close(unit(x), ordinary(unit, x))
    assert_equivariant(unit, x, offsets=100.0)


@pytest.mark.parametrize("training", [True, False])
def test_free_weights_follow_offsets_as_constrained_ones_do(training):
    unit = Unit(constrained=False).double().train(training)
    assert_equivariant(unit, torch.randn(4, 3, 7, 6, dtype=torch.float64), offsets=100.0)
    assert all(type(layer.conv) is nn.Conv2d for layer in (unit.first, unit.second))


def test_a_free_weight_with_idle_channels_computes_the_same():
    weight, z = torch.randn(5, 3, 3, 3), torch.randn(2, 3, 6, 6)
    wide = fit_weight(weight, None, Form((8, 8, 3, 3), torch.float32, torch.channels_last))
    assert wide.shape == (8, 8, 3, 3)
    torch.testing.assert_close(F.conv2d(fit_channels(z, 8), wide)[:, :5], F.conv2d(z, weight))


def test_the_offset_costs_no_precision():
    """In bfloat16 an offset of 100 would leave nothing of the map; lifted, it does not enter it."""
    unit = Unit().eval()
    x = torch.randn(4, 3, 7, 6)
    offset = torch.tensor([100.0, -100.0, 50.0])
    with torch.autocast("cpu", torch.bfloat16):
        still, moved = unit.lift(x), unit.lift(add_offset(x, offset, 3))
        for layer in (unit.first, unit.second):
            still, moved = layer(still), layer(moved)
    assert (still.map - moved.map).abs().max() < 0.02
    assert (moved.offset - still.offset - offset).abs().max() < 0.02


def test_a_map_without_its_offset_cannot_be_lowered():
    with pytest.raises(ValueError, match="keep_offset=True"):
        lower(Lift(3, keep_offset=False)(torch.zeros(1, 3)))
    assert ConvNormAct2d(3, 3, 1)(LiftedMap(torch.randn(2, 3, 2, 2), None)).offset is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_transforms_go_through():
    unit, x = Unit().double().eval(), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    state = {name: value.detach() for name, value in unit.state_dict().items()}

    def loss(state, x):
        return torch.func.functional_call(unit, state, (x[None],)).square().sum()

    by_image = torch.func.vmap(torch.func.grad(loss, argnums=1), in_dims=(None, 0))(state, x)
    given = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(unit(given).square().sum(), given)
    torch.testing.assert_close(by_image, expected)
    _, along = torch.func.jvp(lambda x: loss(state, x), (x[0],), (torch.ones_like(x[0]),))
    torch.testing.assert_close(along, expected[0].sum())


def test_a_second_derivative_is_refused_rather_than_wrong():
    x = torch.randn(2, 3, 5, 4, requires_grad=True)
    (first,) = torch.autograd.grad(Unit()(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


@pytest.mark.parametrize("channels", [3, 5, 7, 12, 16])
def test_maps_of_other_features_are_refused(channels):
    def made(features):
        return LiftedMap(torch.randn(2, features, 2, 2), None)

    with pytest.raises(ValueError, match=f"9 features, but got one of {channels}"):
        ConvNormAct2d(3, 9, 1)(made(3), made(channels))
    for unit in (ConvNormAct2d(9, 3, 1), ConvTransposeNormAct2d(9, 3, 2, 2), SqueezeNormAct(9, 3, 2)):
        for kind in (unit, lf.fuse(nn.Sequential(unit).eval())):
            with pytest.raises(ValueError, match=f"9 features, but got one of {channels}"):
                kind(made(channels))


def test_idle_channels_are_zeros():
    assert fit_channels(torch.ones(1, 3, 2, 2), 8).sum() == 12


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("resnet20", {}, 32),
        ("cerberus", {}, 64),
        ("cerberus-local", {"norm": True}, 48),
        ("context-encoder", {"base": 6, "bottleneck": 12}, 128),
    ],
)
def test_the_kernels_on_a_gpu(name, options, size, layout):
    """Networks with their gradients, against the CPU in float64; and in bfloat16, against their own float32."""
    from lightfast import models

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    network, twin = models.create(name, 3, **options), models.create(name, 3, **options).double()
    twin.load_state_dict(network.state_dict())
    x = torch.randn(8, 3, size, size)
    weight = torch.randn_like(twin(x.double()))
    (expected := (twin(x.double()) * weight).sum()).backward()
    network, x = network.cuda(), x.cuda().contiguous(memory_format=layout)
    (got := (network(x) * weight.cuda()).sum()).backward()
    torch.testing.assert_close(got.double().cpu(), expected, atol=1e-3, rtol=1e-4)
    whole = sum(other.grad.norm() ** 2 for other in twin.parameters()) ** 0.5
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        # Biases before a centering have no gradient but rounding.
        assert (one.grad.cpu() - other.grad).norm() <= 1e-3 * other.grad.norm() + 1e-5 * whole
    network.eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        low = network(x).float()
    assert (low - network(x)).norm() < 0.05 * low.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_idle_channels_do_not_come_out_on_a_gpu(half):
    unit, x = Unit().eval(), torch.randn(4, 3, 7, 6)
    expected = unit(x)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        got = unit.cuda()(x.cuda()).cpu()
    assert got.shape == (4, 6, 7, 6)
    torch.testing.assert_close(got.float(), expected, atol=0.1 if half else 1e-2, rtol=0.1 if half else 1e-2)
