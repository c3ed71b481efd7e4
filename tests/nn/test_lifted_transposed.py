"""Transposed convolutions of lifted maps: they are the ordinary layers, and exact at the border."""

import pytest
import torch
from torch import nn

from lightfast._equivariance import assert_equivariant
from lightfast.functional import center, group_pool
from lightfast.nn import ConvTransposeNormAct2d, LeakyReLU, Lift, LiftedMap, SqueezeNormAct, lower


class Alone(nn.Module):
    """One unit between lifting and lowering."""

    def __init__(self, unit):
        super().__init__()
        self.lift, self.unit = Lift(3), unit

    def forward(self, x):
        return lower(self.unit(self.lift(x)))


UNITS = {
    "up": (lambda **how: ConvTransposeNormAct2d(6, 9, 4, 2, 1, **how), (3, 6, 5, 4)),
    "from a pixel": (lambda **how: ConvTransposeNormAct2d(6, 9, 4, 4, **how), (3, 6, 1, 1)),
    "kernel = stride": (lambda **how: ConvTransposeNormAct2d(6, 9, 2, 2, **how), (3, 6, 3, 2)),
    "to a pixel": (lambda **how: SqueezeNormAct(6, 9, 4, slope=0.2, **how), (3, 6, 4, 4)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_the_ordinary_layers(name, training):
    make, shape = UNITS[name]
    unit = make().double().train(training)
    x = torch.randn(shape, dtype=torch.float64)
    conv = unit.conv
    if name == "to a pixel":
        y = conv(x)
    else:
        y = conv(center(x, 3))
        y = y + group_pool(x, 3).repeat_interleave(3, 1)
    state = {key: value.clone() for key, value in unit.norm.state_dict().items()}
    wanted = LeakyReLU(unit.slope)(unit.norm(y))
    unit.norm.load_state_dict(state)
    torch.testing.assert_close(Alone(unit).train(training)(x), wanted)


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_follows_offsets_up_to_the_border(name, training, constrained):
    make, shape = UNITS[name]
    assert_equivariant(
        Alone(make(constrained=constrained)).double().train(training), torch.randn(shape).double(), offsets=100.0
    )


@pytest.mark.parametrize("name", UNITS)
def test_channels_last_weights_compute_the_same(name):
    make, shape = UNITS[name]
    unit, x = make().double().eval(), LiftedMap(torch.randn(shape, dtype=torch.float64), None)
    plain = unit(x).map
    torch.testing.assert_close(unit.to(memory_format=torch.channels_last)(x).map, plain)


@pytest.mark.parametrize("name", UNITS)
def test_gradients_are_those_of_finite_differences(name):
    make, shape = UNITS[name]
    unit = make().double()
    tensors = [torch.randn(shape, dtype=torch.float64), *(parameter.detach() for parameter in unit.parameters())]
    directions = [torch.randn_like(tensor) for tensor in tensors]
    weight = torch.randn_like(unit(LiftedMap(tensors[0], None)).map)
    names = [name for name, _ in unit.named_parameters()]

    def loss(step):
        moved = [tensor + step * direction for tensor, direction in zip(tensors, directions, strict=True)]
        state = dict(zip(names, moved[1:], strict=True))
        return (torch.func.functional_call(unit, state, (LiftedMap(moved[0], None),)).map * weight).sum()

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(step), step)
    # So short a way crosses hardly any kink of the activation.
    difference = (loss(1e-7) - loss(-1e-7)) / 2e-7
    torch.testing.assert_close(slope, difference.detach(), atol=1e-4, rtol=1e-4)


def test_low_precision_keeps_large_offsets():
    make, shape = UNITS["up"]
    unit, z = make().eval(), torch.randn(shape)
    with torch.autocast("cpu", torch.bfloat16):
        low = unit(LiftedMap(z, torch.full((3, 3), 100.0)))
    high = unit(LiftedMap(z, torch.full((3, 3), 100.0)))
    torch.testing.assert_close(low.map.float(), high.map, atol=0.1, rtol=0.05)
    torch.testing.assert_close(low.offset, high.offset, atol=0.05, rtol=0)


def test_a_kernel_that_the_stride_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="multiple of the stride"):
        ConvTransposeNormAct2d(6, 6, 3, 2)


@pytest.mark.parametrize("kind", UNITS)
def test_training_in_evaluation_mode_is_seen(kind):
    """Fused optimizers leave a weight's version as it is, so nothing may be kept once somebody trains."""
    torch.manual_seed(0)
    make, shape = UNITS[kind]
    network, x = Alone(make()).eval(), torch.randn(shape)
    with torch.no_grad():
        network(x)
    optimizer = torch.optim.Adam(network.parameters(), 0.1, fused=True)
    network(x).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        after = network(x)
        torch.testing.assert_close(after, network.train().eval()(x))
