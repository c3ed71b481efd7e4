"""The projection of a layer's weight in C: the same numbers as `project_weight`, with all its gradients."""

import itertools
import weakref

import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast import Groups
from lightfast import nn as lfnn
from lightfast._backends import Constraint, Form, fit_weight
from lightfast._backends import constraint as constraints
from lightfast._backends import projection as projections
from lightfast._backends.native import backend as native
from lightfast._backends.tensors import layout_of
from lightfast.functional import project_weight
from lightfast.nn import ConvNormAct2d, LiftedMap

LAYOUTS = [torch.contiguous_format, torch.channels_last]
TRANSPOSED = {"transposed": True}
# Of each: the shape of the weight, and what the projection is told.
WEIGHTS = {
    "3x3": ((6, 9, 3, 3), {}),
    "1x1": ((3, 6, 1, 1), {}),
    "one feature a group": ((3, 3, 3, 3), {}),
    "wide": ((99, 51, 4, 4), {}),
    "phases": ((9, 6, 4, 4), TRANSPOSED | {"stride": (2, 2)}),
    "phases of unequal size": ((9, 300, 3, 3), TRANSPOSED | {"stride": (2, 2)}),
    "dilated phases": ((9, 6, 3, 3), TRANSPOSED | {"stride": (2, 2), "dilation": (3, 3)}),
    "a phase a tap": ((9, 6, 4, 4), TRANSPOSED | {"stride": (4, 4)}),
    "in several parts": ((1500, 213, 4, 4), TRANSPOSED | {"stride": (4, 4)}),
    "phases in several parts": ((1500, 213, 4, 4), TRANSPOSED | {"stride": (2, 2)}),
    "every tap": ((9, 6, 3, 3), TRANSPOSED | {"taps": "tap"}),
}


def constraint_on(weight, options):
    first, second = (Groups.even(size, 3) for size in weight.shape[:2])
    return Constraint(*((first, second) if options.get("transposed") else (second, first)), **options)


def project(weight, constraint, dtype=None):
    return fit_weight(weight, constraint, Form.of(weight, dtype))


def by_torch(weight, constraint, dtype=None):
    """The public function."""
    into, out, conv_groups, taps, transposed, stride, dilation = constraint
    geometry = {"transposed": transposed, "stride": stride, "dilation": dilation}
    projected = project_weight(weight, into, out, conv_groups=conv_groups, constraint=taps, **geometry)
    return projected if dtype is None else projected.to(dtype)


def in_one_pass(projected):
    return isinstance(projected.grad_fn, projections._Fit._backward_cls)


@pytest.mark.parametrize(("name", "layout"), list(itertools.product(WEIGHTS, LAYOUTS)))
def test_it_is_what_torch_computes(name, layout, passes):
    shape, options = WEIGHTS[name]
    weight = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    constraint, given = constraint_on(weight, options), torch.randn(shape)
    found, wanted = project(weight, constraint), by_torch(weight, constraint)
    assert in_one_pass(found) and found.stride() == weight.stride()
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    gradients = [torch.autograd.grad(result, weight, given)[0] for result in (found, wanted)]
    assert gradients[0].stride() == weight.stride()
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "layout"), list(itertools.product(WEIGHTS, LAYOUTS)))
def test_it_rounds_as_it_projects(name, layout, passes):
    shape, options = WEIGHTS[name]
    weight = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    constraint, given = constraint_on(weight, options), torch.randn(shape).bfloat16()
    found = project(weight, constraint, torch.bfloat16)
    wanted = by_torch(weight, constraint)
    assert in_one_pass(found) and found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=1e-6, rtol=2**-8)
    gradients = [torch.autograd.grad(y, weight, given.to(y.dtype))[0] for y in (found, wanted)]
    assert gradients[0].dtype == torch.float32
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["3x3", "phases"])
def test_derivatives_of_every_kind(name, passes):
    shape, options = WEIGHTS[name]
    weight = torch.randn(shape, requires_grad=True)
    constraint = constraint_on(weight, options)
    results = []
    for function in (project, by_torch):
        (first,) = torch.autograd.grad(function(weight, constraint).pow(3).sum(), weight, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), weight)[0]
        both = torch.stack([torch.ones(shape), torch.randn(shape, generator=torch.Generator().manual_seed(0))])
        projected = function(weight, constraint)
        batched = torch.autograd.grad(projected, weight, both, is_grads_batched=True)[0]
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(weight.detach(), both[1])
            tangent = torch.autograd.forward_ad.unpack_dual(function(dual, constraint)).tangent
        transformed = torch.func.grad(lambda w, of=function: of(w, constraint).pow(3).sum())(weight.detach())
        results.append((first, second, batched, tangent, transformed))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_in_float64_torch_has_all_derivatives():
    weight = torch.randn(3, 6, 2, 2, dtype=torch.float64, requires_grad=True)
    constraint = constraint_on(weight, {})
    assert torch.autograd.gradcheck(lambda w: project(w, constraint), (weight,))
    assert torch.autograd.gradgradcheck(lambda w: project(w, constraint).pow(3), (weight,))


def test_a_gradient_may_lie_otherwise(passes):
    weight = torch.randn(6, 9, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    constraint, given = constraint_on(weight, {}), torch.randn(9, 6, 3, 3).transpose(0, 1)
    gradients = [
        torch.autograd.grad(function(weight, constraint), weight, given)[0] for function in (project, by_torch)
    ]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_the_gradient_that_comes_in_is_left_as_it_is(passes):
    weight, given = torch.randn(6, 9, 3, 3, requires_grad=True), torch.randn(6, 9, 3, 3)
    before = given.clone()
    project(weight, constraint_on(weight, {})).backward(given)
    assert torch.equal(given, before)


@pytest.mark.parametrize(
    ("weight", "options"),
    [
        (torch.randn(6, 6, 3, 3).double(), {}),
        (torch.randn(6, 6, 3, 3).bfloat16(), {}),
        (torch.randn(6, 6, 3, 3).transpose(2, 3), {}),
        (torch.randn(6, 6, 3, 3), {"taps": "tap"}),
        (torch.randn(6, 2, 3, 3), {"conv_groups": 3}),
        (torch.randn(6, 6, 1, 200), {}),
    ],
    ids=["float64", "bfloat16", "turned", "every tap", "grouped", "many taps"],
)
def test_what_has_no_pass_goes_through_torch(weight, options):
    constraint = Constraint(Groups.even(6, 3), Groups.even(6, 3), **options)
    found = project(weight.requires_grad_(), constraint)
    assert not in_one_pass(found)
    assert torch.equal(found, by_torch(weight, constraint))


@pytest.mark.parametrize("groups", [Groups.interleaved(6, 3), Groups([0, 0, 0, 1, 1, 2])])
def test_so_do_other_assignments(groups):
    weight, constraint = torch.randn(6, 6, 3, 3), Constraint(groups, groups)
    assert torch.equal(project(weight, constraint), by_torch(weight, constraint))


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize(
    "build", [lf.nn.Linear, lambda m, n: lf.nn.Conv2d(m, n, 3), lambda m, n: lf.nn.ConvTranspose2d(m, n, 4, 2)]
)
def test_layers_under_autocast(build, in_c, plain_torch):
    """The weight comes in the precision of autocast, in training and in use; `projected_weight` stays exact."""
    if not in_c:
        plain_torch()
    layer = build(6, 9)
    x = torch.randn(4, 6) if isinstance(layer, nn.Linear) else torch.randn(4, 6, 8, 8)
    exact = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x)
        assert layer.projected_weight().dtype == torch.float32
    low.float().square().sum().backward()
    assert low.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(low.float(), exact, atol=0.1, rtol=0.05)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        kept = layer.eval()(x)
        torch.testing.assert_close(kept, low)
        nn.init.zeros_(layer.weight)
        assert not torch.equal(layer(x), kept)


@pytest.mark.filterwarnings("ignore")
def test_compiled_and_traced():
    layer, x = lf.nn.Conv2d(6, 9, 3), torch.randn(2, 6, 8, 8)
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))
    traced = torch.jit.trace(layer, x)
    nn.init.normal_(layer.weight)
    torch.testing.assert_close(traced(x), layer(x))


def test_what_is_made_under_autocast_is_not_rounded():
    layer = lf.nn.Conv2d(6, 9, 3).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        fused = lf.fuse(nn.Sequential(layer))
    assert torch.equal(fused[0].weight, layer.projected_weight())


@pytest.mark.parametrize("make", [lambda: lfnn.Conv2d(6, 9, 3), lambda: ConvNormAct2d(6, 9, 3)], ids=["layer", "unit"])
def test_projected_weights_are_not_kept_for_the_backward_pass(make, passes, plain_torch, monkeypatch):
    """They are made again, so the gradients are those of the plain version."""
    layer, x = make(), torch.randn(2, 6, 5, 5, requires_grad=True)
    conv = getattr(layer, "conv", layer)
    made, projected = [], native.Native.fit_weight

    def noted(*given):
        result = projected(*given)
        made.append(weakref.ref(result))
        return result

    monkeypatch.setattr(native.Native, "fit_weight", noted)
    result = layer(LiftedMap(x, None)).map if layer is not conv else layer(x)
    assert len(made) == 1 and made[0]() is None
    found = torch.autograd.grad(result.square().sum(), [x, conv.weight])
    assert len(made) > 1
    plain_torch()
    result = layer(LiftedMap(x, None)).map if layer is not conv else layer(x)
    for gradient, expected in zip(found, torch.autograd.grad(result.square().sum(), [x, conv.weight]), strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-4, rtol=1e-4)


def test_a_weight_that_changed_before_the_backward_pass_is_refused(passes):
    layer = lfnn.Conv2d(6, 9, 3)
    loss = layer(torch.randn(2, 6, 5, 5, requires_grad=True)).sum()
    with torch.no_grad():
        layer.weight += 1
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_phases_by_views_are_the_general_projection(stride, layout):
    weight = torch.randn(6, 9, 4, 4, dtype=torch.float64).contiguous(memory_format=layout)
    wanted = project_weight(weight, 3, 3, transposed=True, stride=stride)
    torch.testing.assert_close(constraints.project_phases(weight, 3, stride), wanted)


def test_what_fits_is_left_as_it_is():
    weight = torch.zeros(3, 3, 2, 2)
    assert fit_weight(weight, None, Form.of(weight)) is weight
    wide = fit_weight(weight + 1, None, Form((5, 4, 2, 2), torch.bfloat16, torch.channels_last))
    assert wide.shape == (5, 4, 2, 2) and wide.sum() == 36 and wide.dtype == torch.bfloat16


def test_layouts():
    weight = torch.zeros(3, 4, 2, 2)
    assert layout_of(weight) == layout_of(weight.transpose(2, 3)) == torch.contiguous_format
    assert layout_of(weight.contiguous(memory_format=torch.channels_last)) == torch.channels_last
