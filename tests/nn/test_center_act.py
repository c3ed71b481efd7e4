"""Centring and activation in two passes: the formula, with its gradients, however it is computed."""

import pytest
import torch
import torch.nn.functional as F

from lightfast.functional import center, group_pool
from lightfast.nn import _native
from lightfast.nn._center_act import center_act

SHAPES = [(3, 6), (3, 6, 5), (2, 15, 4, 7)]


def spelled_out(u, slope):
    return F.leaky_relu(center(u, 3), slope), group_pool(u, 3).flatten(1)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_formula_with_its_gradient(shape, slope):
    u = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(center_act(u, 3, slope), spelled_out(u, slope))
    assert torch.autograd.gradcheck(lambda u: center_act(u, 3, slope), (u,))
    assert torch.autograd.gradcheck(lambda u: center_act(u, 3, slope)[0], (u,))
    assert torch.autograd.gradcheck(lambda u: center_act(u, 3, slope)[1], (u,))


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("native", [True, False])
def test_in_float32_it_is_the_same(layout, slope, native, monkeypatch):
    if not native:
        monkeypatch.setattr(_native, "_library", lambda: None)
    u = torch.randn(2, 15, 4, 7).contiguous(memory_format=layout)
    weights = torch.randn_like(u), torch.randn(2, 3)
    results = []
    for function in (lambda u: center_act(u, 3, slope), lambda u: spelled_out(u, slope)):
        x = u.clone().requires_grad_()
        z, level = function(x)
        (gradient,) = torch.autograd.grad((z * weights[0]).sum() + (level * weights[1]).sum(), x)
        results.append((z, level, gradient))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(center_act(u, 3, slope), results[1][:2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_maps_stay_in_bfloat16_and_levels_do_not(layout):
    u = torch.randn(2, 15, 4, 7).contiguous(memory_format=layout).bfloat16().requires_grad_()
    z, level = center_act(u, 3)
    assert z.dtype == torch.bfloat16 and level.dtype == torch.float32
    torch.testing.assert_close(z.float(), spelled_out(u.float(), 0.0)[0], atol=0.02, rtol=0.02)
    z.sum().backward()
    assert u.grad.dtype == torch.bfloat16


def test_compiled():
    u = torch.randn(2, 6, 4, 4)
    torch.testing.assert_close(torch.compile(center_act, backend="eager", fullgraph=True)(u, 3), center_act(u, 3))
