"""Lifted maps: the network of the ordinary layers, computed another way."""

import importlib.util
import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lightfast as lf
from lightfast import assert_equivariant
from lightfast.functional import add_offset, center, group_pool
from lightfast.nn import _norm_act_triton
from lightfast.nn._lifted import ConvNormAct2d, Lift, Lifted, fit_channels, fit_weight, lower
from lightfast.nn._lifted_transposed import ConvTransposeNormAct2d, SqueezeNormAct
from lightfast.nn._norm_act import norm_act
from lightfast.nn._norm_act_triton import padded_width, suits
from lightfast.nn._statistics import Operands, Statistics

OPTIONS = list(itertools.product([True, False], [0.0, 0.2, 1.0], [True, False]))


def spelled_out(u, shortcut, pre_bias, weight, bias, mean, var, training, slope):
    """The formula of `norm_act`, one operation after another."""
    biased = u + pre_bias.reshape(1, -1, *[1] * (u.dim() - 2))
    y = F.batch_norm(center(biased, 3), mean, var, weight, bias, training)
    y = y if shortcut is None else y + center(shortcut, 3)
    offset = group_pool(biased, 3) + group_pool(y, 3)
    return F.leaky_relu(center(y, 3), slope), offset.flatten(1)


@pytest.mark.parametrize(("training", "slope", "with_shortcut"), OPTIONS)
@pytest.mark.parametrize("positions", [(3, 5), (), (4,)])
def test_norm_act_is_the_formula_with_its_gradients(training, slope, with_shortcut, positions):
    options = {"dtype": torch.float64}
    u = torch.randn(4, 6, *positions, **options) + 5
    shortcut = torch.randn(4, 6, *positions, **options) if with_shortcut else None
    parameters = [torch.randn(6, **options) for _ in range(3)]
    inputs = [u, *([shortcut] if with_shortcut else []), *parameters]
    for tensor in inputs:
        tensor.requires_grad_()
    running = [torch.randn(6, **options), torch.rand(6, **options) + 0.5]
    other = [value.clone() for value in running]
    z, offset = norm_act(Operands(u, shortcut, *parameters, Statistics(training, *running, 0.1, 1e-5), 3, slope))
    expected, expected_offset = spelled_out(u, shortcut, *parameters, *other, training, slope)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(offset, expected_offset)
    torch.testing.assert_close(running, other)
    weights = torch.randn_like(z), torch.randn_like(offset)
    got = torch.autograd.grad((z * weights[0]).sum() + (offset * weights[1]).sum(), inputs)
    wanted = torch.autograd.grad((expected * weights[0]).sum() + (expected_offset * weights[1]).sum(), inputs)
    torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("training", "slope", "with_shortcut"), OPTIONS)
def test_norm_act_passes_gradcheck(training, slope, with_shortcut):
    u = torch.randn(3, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    shortcut = torch.randn_like(u, requires_grad=True) if with_shortcut else None
    parameters = [torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def run(u, shortcut, *parameters):
        running = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
        return norm_act(Operands(u, shortcut, *parameters, Statistics(training, *running, 0.1, 1e-5), 3, slope))

    assert torch.autograd.gradcheck(run, (u, shortcut, *parameters))


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
    wide = fit_weight(weight, 8, 8, torch.float32, torch.channels_last)
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
    assert ConvNormAct2d(3, 3, 1)(Lifted(torch.randn(2, 3, 2, 2), None)).offset is None


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
        return Lifted(torch.randn(2, features, 2, 2), None)

    with pytest.raises(ValueError, match=f"9 features, but got one of {channels}"):
        ConvNormAct2d(3, 9, 1)(made(3), made(channels))
    for unit in (ConvNormAct2d(9, 3, 1), ConvTransposeNormAct2d(9, 3, 2, 2), SqueezeNormAct(9, 3, 2)):
        for kind in (unit, lf.fuse(nn.Sequential(unit).eval())):
            with pytest.raises(ValueError, match=f"9 features, but got one of {channels}"):
                kind(made(channels))


def test_a_compiler_does_not_see_how_the_kernels_are_looked_for(monkeypatch):
    """It knows no way through `importlib`, and gets the plain version in any case."""
    monkeypatch.setattr(_norm_act_triton, "observed", lambda x: True)
    monkeypatch.setattr(_norm_act_triton, "available", lambda: pytest.fail("looked for Triton"))
    assert not suits(SimpleNamespace(is_cuda=True), 6, 3)


def test_the_kernels_stay_away_from_the_cpu():
    assert not suits(torch.zeros(2, 6, 4, 4), 6, 3)
    assert padded_width(15, torch.zeros(1), torch.float32) == 15
    assert fit_channels(torch.ones(1, 3, 2, 2), 8).sum() == 12


KERNEL_CHECK = """
import itertools
import torch
from lightfast.nn import _norm_act, _norm_act_triton
from lightfast.nn._norm_act import norm_act
from lightfast.nn._norm_act_triton import norm_act_kernels
from lightfast.nn._statistics import Operands, Statistics

torch.manual_seed(0)
for training, slope, shortcut, last, idle in {cases}:
    features, layout = 6, torch.channels_last if last else torch.contiguous_format
    make = lambda: torch.randn(5, features + idle, 3, 4).contiguous(memory_format=layout)
    u, s, weights = make() + 3, make() if shortcut else None, (make(), torch.randn(5, 3))
    parameters = [torch.randn(features) for _ in range(3)]
    results = []
    for kernels in (True, False):
        inputs = [t.clone().requires_grad_() for t in (u, *([s] if shortcut else []), *parameters)]
        running, tracked = [torch.zeros(features), torch.ones(features)], torch.zeros((), dtype=torch.int64)
        statistics = Statistics(training, *running, 0.1, 1e-5)
        a, b, rest = inputs[0], inputs[1] if shortcut else None, inputs[-3:]
        if kernels:
            z, offset = norm_act_kernels(Operands(a, b, *rest, statistics, 3, slope), tracked)
            assert tracked == training and not z[:, features:].any()
        else:
            cut = lambda t: None if t is None else t[:, :features]
            z, offset = norm_act(Operands(cut(a), cut(b), *rest, statistics, 3, slope))
        loss = (z[:, :features] * weights[0][:, :features]).sum() + (offset * weights[1]).sum()
        results.append([z[:, :features], offset, *running, *torch.autograd.grad(loss, inputs)])
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-5)
# Without running statistics, those of the batch are written down; parameters may lie anyhow.
parameters = torch.randn(6, 3).unbind(1)
given = Operands(torch.randn(4, 6, 3, 5), None, *parameters, Statistics(True, None, None, 0.1, 1e-5), 3, 0.2)
passed, offset = _norm_act_triton.forward_passes(given, None)
torch.testing.assert_close((passed, offset), _norm_act.forward_passes(given), atol=1e-5, rtol=1e-5)
statistics = Statistics(False, *torch.rand(6, 2).unbind(1), 0.1, 1e-5)
with torch.no_grad():
    given = given._replace(statistics=statistics)
    results = [norm_act_kernels(given, None), norm_act(given)]
torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
# Of axes of size 1 the strides say nothing, in maps, shortcuts and gradients.
flat = lambda z: z.squeeze(3).transpose(1, 2)
for last, turned, read in itertools.product([True, False], [True, False], [flat, lambda z: z.transpose(2, 3)]):
    u = torch.randn(2, 6, 5, 1).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    s = torch.randn(2, 6, 1, 5).transpose(2, 3) if turned else torch.randn(2, 6, 5, 1)
    parameters, results = [torch.randn(6) for _ in range(3)], []
    weights = torch.randn_like(read(u).contiguous())
    for kernels in (True, False):
        inputs = [t.clone().requires_grad_() for t in (u, s)]
        statistics = Statistics({training}, torch.zeros(6), torch.ones(6), 0.1, 1e-5)
        given = Operands(inputs[0], s.detach() if turned else inputs[1], *parameters, statistics, 3, 0.2)
        z, _ = norm_act_kernels(given, torch.zeros((), dtype=torch.int64)) if kernels else norm_act(given)
        wanted = inputs[:1] if turned else inputs
        results.append([z, *torch.autograd.grad((read(z) * weights).sum(), wanted)])
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-5)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("training", [True, False])
def test_the_kernels_in_tritons_interpreter(training):
    """The GPU's code on the CPU: Triton reads TRITON_INTERPRET when it is imported, hence a process of its own."""
    cases = [(training, 0.0, True, True, 2), (training, 1.0, False, False, 0), (training, 0.2, True, True, 0)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    program = KERNEL_CHECK.replace("{cases}", repr(cases)).replace("{training}", repr(training))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
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
        # Biases before a centring have no gradient but rounding.
        assert (one.grad.cpu() - other.grad).norm() <= 1e-3 * other.grad.norm() + 1e-5 * whole
    network.eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        low = network(x).float()
    assert (low - network(x)).norm() < 0.05 * low.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("half", [False, True])
def test_idle_channels_do_not_come_out_on_a_gpu(half):
    unit, x = Unit().eval(), torch.randn(4, 3, 7, 6)
    expected = unit(x)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        got = unit.cuda()(x.cuda()).cpu()
    assert got.shape == (4, 6, 7, 6)
    torch.testing.assert_close(got.float(), expected, atol=0.1 if half else 1e-2, rtol=0.1 if half else 1e-2)
