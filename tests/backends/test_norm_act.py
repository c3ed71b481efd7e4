"""`norm_act` is its formula, with its gradients, in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lightfast._backends import Operands, Statistics, norm_act
from lightfast.functional import center, group_pool

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
