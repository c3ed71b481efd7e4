"""Centering and activation in two passes: the formula, with its gradients, however it is computed."""

import pytest
import torch
import torch.nn.functional as F

from lightfast._backends import center_act, center_relu_halve
from lightfast.functional import center, group_pool

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
def test_in_float32_it_is_the_same(layout, slope, native, plain_torch):
    if not native:
        plain_torch()
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


LAYOUTS = [torch.contiguous_format, torch.channels_last]
# Whole vectors and not, sizes that two divides and not, more than one stretch of a row.
MAPS = [(3, 2, 2), (15, 64, 8), (6, 5, 7), (33, 8, 6), (63, 3, 2), (129, 4, 9), (15, 7, 151), (600, 2, 5)]


def halving_spelled_out(u):
    z, level = spelled_out(u, 0.0)
    return F.max_pool2d(z, 2), level


def halved_with_gradient(function, u, weights):
    x = u.clone().requires_grad_()
    z, level = function(x)
    (gradient,) = torch.autograd.grad((z * weights[0]).sum() + (level * weights[1]).sum(), x)
    return z, level, gradient


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", MAPS)
def test_halving_first_is_halving_last(shape, layout, native, plain_torch):
    if not native:
        plain_torch()
    u = torch.randn(2, *shape).contiguous(memory_format=layout)
    weights = torch.randn(2, shape[0], shape[1] // 2, shape[2] // 2), torch.randn(2, 3)
    found = halved_with_gradient(lambda u: center_relu_halve(u, 3), u, weights)
    torch.testing.assert_close(found, halved_with_gradient(halving_spelled_out, u, weights), atol=1e-5, rtol=1e-5)
    assert found[0].is_contiguous(memory_format=layout) and found[2].is_contiguous(memory_format=layout)
    with torch.no_grad():
        torch.testing.assert_close(center_relu_halve(u, 3), found[:2])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", MAPS)
def test_halving_in_bfloat16_rounds_once(shape, layout):
    u = torch.randn(2, *shape).contiguous(memory_format=layout).bfloat16()
    weights = torch.randn(2, shape[0], shape[1] // 2, shape[2] // 2).bfloat16(), torch.randn(2, 3)
    low = halved_with_gradient(lambda u: center_relu_halve(u, 3), u, weights)
    assert low[0].dtype == low[2].dtype == torch.bfloat16 and low[1].dtype == torch.float32
    # In float32 the maxima are the same, but for those among equal pixels, whose gradient may go to either.
    exact = halved_with_gradient(lambda u: center_relu_halve(u, 3), u.float(), [w.float() for w in weights])
    torch.testing.assert_close([x.float() for x in low], list(exact), atol=1e-2, rtol=2**-7)


def test_halving_has_the_gradient_of_finite_differences():
    u = torch.randn(2, 6, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u: center_relu_halve(u, 3), (u,))
    assert torch.autograd.gradgradcheck(lambda u: center_relu_halve(u, 3), (u,))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_of_the_gradient_of_halving(layout):
    u = torch.randn(2, 6, 5, 4).contiguous(memory_format=layout)
    weights = torch.randn(2, 6, 2, 2)
    results = []
    for function in (lambda u: center_relu_halve(u, 3), halving_spelled_out):
        x = u.clone().requires_grad_()
        z, level = function(x)
        (first,) = torch.autograd.grad((z * z * weights).sum() + level.square().sum(), x, create_graph=True)
        results.append((first, *torch.autograd.grad(first.square().sum(), x)))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_equal_pixels_one_has_the_gradient(layout):
    u = torch.ones(1, 3, 4, 4).contiguous(memory_format=layout)
    u[:, :, :2] = 0
    z, _ = center_relu_halve(u.requires_grad_(), 3)
    z.sum().backward()
    high = u.grad[:, :, 2:]
    # Half of the pixels are above the mean, in two maxima a feature; each maximum sends all of its gradient to one.
    assert ((high - high.amin((2, 3), keepdim=True)).sum((2, 3)) == 2).all()
    torch.testing.assert_close(u.grad.sum((2, 3)), torch.zeros(1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_halving_keeps_what_is_not_a_number(layout, dtype):
    u = torch.randn(2, 6, 4, 4).contiguous(memory_format=layout).to(dtype)
    u[0, 0, 1, 1] = float("nan")
    z, _ = center_relu_halve(u, 3)
    assert z[0, :2].isnan().all() and not z[0, 2:].isnan().any() and not z[1].isnan().any()


def test_halving_compiled_transformed_and_refused():
    u = torch.randn(2, 6, 4, 4)
    compiled = torch.compile(center_relu_halve, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(u, 3), center_relu_halve(u, 3))
    by_image = torch.func.vmap(lambda u: center_relu_halve(u[None], 3)[0][0])(u)
    torch.testing.assert_close(by_image, center_relu_halve(u, 3)[0])
    gradient = torch.func.grad(lambda u: center_relu_halve(u, 3)[0].sum())(u)
    weights = torch.ones(2, 6, 2, 2), torch.zeros(2, 3)
    torch.testing.assert_close(gradient, halved_with_gradient(halving_spelled_out, u, weights)[2])
    with pytest.raises(RuntimeError, match="too small"):
        center_relu_halve(u[..., :1], 3)


def test_second_derivatives_in_c_are_those_of_torch():
    results = []
    u = torch.randn(2, 6, 4, 4)
    for dtype in (torch.float32, torch.float64):
        x = u.to(dtype).requires_grad_()
        (first,) = torch.autograd.grad(center_act(x, 3, 0.2)[0].pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append(second.double())
    torch.testing.assert_close(*results, atol=1e-3, rtol=1e-4)
