"""Transposed convolutions of lifted maps: they are the ordinary layers, and exact at the border."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from lightfast.equivariance import assert_equivariant
from lightfast.functional import center, group_pool, project_weight
from lightfast.nn import LeakyReLU, Lift, Lifted, lower
from lightfast.nn._lifted_transposed import ConvTransposeNormAct2d, SqueezeNormAct, project_transposed


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


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_projection_is_the_general_one(stride, layout):
    weight = torch.randn(6, 9, 4, 4, dtype=torch.float64).contiguous(memory_format=layout)
    wanted = project_weight(weight, 3, 3, transposed=True, stride=stride)
    torch.testing.assert_close(project_transposed(weight, 3, stride), wanted)


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
    unit, x = make().double().eval(), Lifted(torch.randn(shape, dtype=torch.float64), None)
    plain = unit(x).map
    torch.testing.assert_close(unit.to(memory_format=torch.channels_last)(x).map, plain)


@pytest.mark.parametrize("name", UNITS)
def test_gradients_are_those_of_finite_differences(name):
    make, shape = UNITS[name]
    unit = make().double()
    tensors = [torch.randn(shape, dtype=torch.float64), *(parameter.detach() for parameter in unit.parameters())]
    directions = [torch.randn_like(tensor) for tensor in tensors]
    weight = torch.randn_like(unit(Lifted(tensors[0], None)).map)
    names = [name for name, _ in unit.named_parameters()]

    def loss(step):
        moved = [tensor + step * direction for tensor, direction in zip(tensors, directions, strict=True)]
        state = dict(zip(names, moved[1:], strict=True))
        return (torch.func.functional_call(unit, state, (Lifted(moved[0], None),)).map * weight).sum()

    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(step), step)
    # So short a way crosses hardly any kink of the activation.
    difference = (loss(1e-7) - loss(-1e-7)) / 2e-7
    torch.testing.assert_close(slope, difference.detach(), atol=1e-4, rtol=1e-4)


def test_low_precision_keeps_large_offsets():
    make, shape = UNITS["up"]
    unit, z = make().eval(), torch.randn(shape)
    with torch.autocast("cpu", torch.bfloat16):
        low = unit(Lifted(z, torch.full((3, 3), 100.0)))
    high = unit(Lifted(z, torch.full((3, 3), 100.0)))
    torch.testing.assert_close(low.map.float(), high.map, atol=0.1, rtol=0.05)
    torch.testing.assert_close(low.offset, high.offset, atol=0.05, rtol=0)


def test_a_kernel_that_the_stride_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="multiple of the stride"):
        ConvTransposeNormAct2d(6, 6, 3, 2)


KERNEL_CHECK = """
import copy, torch
from lightfast.models.context_encoder import ContextEncoder
from lightfast.nn import _lifted, _lifted_transposed

torch.manual_seed(0)
network = ContextEncoder(3, base=3, bottleneck=9, carry=True)
x, weight = torch.randn(2, 3, 128, 128), torch.randn(2, 3, 64, 64)
results = []
for kernels in (False, True):
    if kernels:
        _lifted.suits = _lifted_transposed.suits = lambda x, *_: x.dim() == 4
    ours = copy.deepcopy(network).train()
    answer = ours(x)
    (answer * weight).mean().backward()
    results.append([answer.detach(), *(p.grad for p in ours.parameters()), *ours.buffers()])
torch.testing.assert_close(*results, atol=2e-5, rtol=2e-4)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_network_on_the_kernels_in_tritons_interpreter():
    """The GPU's code on the CPU: Triton reads TRITON_INTERPRET when it is imported, hence a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KERNEL_CHECK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


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
