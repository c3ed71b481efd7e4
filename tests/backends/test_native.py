"""The passes in C: the same numbers as torch's, and none of them missed where there is no compiler."""

import copy
import itertools

import pytest
import torch
from operations import compare_in_c, native_cases, operation_of
from torch.autograd import forward_ad

from lightfast import models
from lightfast import nn as lfnn
from lightfast._backends import Operands, Statistics, norm_act
from lightfast._backends.native import backend as native
from lightfast._backends.native.backend import Native
from lightfast._backends.reference import Reference


def run(u, shortcut, parameters, training, slope, weights):
    running = torch.zeros(6), torch.ones(6)
    inputs = [tensor.clone().requires_grad_() for tensor in (u, *([] if shortcut is None else [shortcut]), *parameters)]
    statistics = Statistics(training, *running, 0.1, 1e-5)
    z, offset = norm_act(
        Operands(inputs[0], None if shortcut is None else inputs[1], *inputs[-3:], statistics, 3, slope)
    )
    gradients = torch.autograd.grad((z * weights[0]).sum() + (offset * weights[1]).sum(), inputs)
    return [z, offset, *running, *gradients]


LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize(
    ("training", "slope", "with_shortcut", "layout"),
    list(itertools.product([True, False], [0.0, 0.2, 1.0], [True, False], LAYOUTS)),
)
def test_it_is_what_torch_computes(training, slope, with_shortcut, layout, passes, plain_torch):
    u = (torch.randn(5, 6, 7, 3) + 50).contiguous(memory_format=layout)
    shortcut = torch.randn_like(u) if with_shortcut else None
    parameters = [torch.randn(6) for _ in range(3)]
    weights = torch.randn_like(u), torch.randn(5, 3)
    in_c = run(u, shortcut, parameters, training, slope, weights)
    assert in_c[0].is_contiguous(memory_format=layout)
    plain_torch()
    torch.testing.assert_close(in_c, run(u, shortcut, parameters, training, slope, weights), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("features", [3, 15, 33, 63, 64, 90])
def test_any_width_and_any_size(features, layout, passes):
    """Vectors are filled from several pixels where features are few, and the last of them are cut."""
    for size in ((1, 1), (1, 5), (7, 9)):
        u = torch.randn(3, features, *size).contiguous(memory_format=layout)
        scale, shift, dz = torch.randn(features), torch.randn(3, features), torch.randn_like(u)
        results = []
        for by in (Native(passes), Reference()):
            mean, var, of_shortcut = by.moments(u, u)
            z = by.apply(u, u, scale, shift, 0.1)
            back = by.backward_moments(dz, z, u, mean, 0.1)
            results.append((mean, var, of_shortcut, z, *back))
            results[-1] += by.backward_apply(dz, z, u, (scale, scale, shift, shift), 0.1, True)
        torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("with_shortcut", [True, False])
def test_in_bfloat16_it_rounds_once(with_shortcut, layout, passes):
    u = torch.randn(5, 6, 7, 3).contiguous(memory_format=layout).bfloat16()
    shortcut = torch.randn_like(u) if with_shortcut else None
    parameters = [torch.randn(6) for _ in range(3)]
    weights = torch.randn_like(u), torch.randn(5, 3)
    low = run(u, shortcut, parameters, True, 0.0, weights)
    exact = run(u.float(), None if shortcut is None else shortcut.float(), parameters, True, 0.0, weights)
    torch.testing.assert_close(low[0], exact[0].bfloat16(), atol=0.0, rtol=2**-7)
    torch.testing.assert_close([t.float() for t in low[1:]], [t.float() for t in exact[1:]], atol=0.05, rtol=0.02)
    assert low[0].dtype == low[4].dtype == torch.bfloat16


def test_a_shortcut_may_lie_otherwise(passes):
    """As one that was padded does: in another type and memory format than the map it is added to."""
    u = torch.randn(2, 6, 4, 4).contiguous(memory_format=torch.channels_last)
    shortcut = torch.randn(2, 6, 4, 4, dtype=torch.float64)
    parameters = [torch.randn(6) for _ in range(3)]
    weights = torch.randn_like(u), torch.randn(2, 3)
    expected = run(u, shortcut.float().to(memory_format=torch.channels_last), parameters, True, 0.0, weights)
    for found, wanted in zip(run(u, shortcut, parameters, True, 0.0, weights), expected, strict=True):
        torch.testing.assert_close(found.float(), wanted)
    with pytest.raises(ValueError, match="does not fit"):
        run(u, shortcut[..., :2], parameters, True, 0.0, weights)


def test_it_takes_only_what_it_can(passes):
    """All else is torch's, even where a pass would crash."""
    x, called = torch.zeros(2, 6, 4, 4), []

    class Counted(native.Passes):
        def run(self, name, *arguments):
            called.append(name)
            super().run(name, *arguments)

    by = Native(Counted(passes.library, {}))
    for known in (x, x.bfloat16(), x.to(memory_format=torch.channels_last), x[0]):
        by.moments(known, None)
        assert called.pop().startswith("moments")
    for other in (x.double(), x.half(), torch.zeros(2, 6), x[:, ::2], x.to("meta")):
        by.moments(other, None)
    by.apply(x[:0], None, torch.zeros(6), torch.zeros(0, 6), 0.0)
    assert not called


@pytest.mark.parametrize("name", ["moments", "apply", "infer", "center", "halve", "join", "project_rows"])
def test_a_pass_that_was_refused_is_not_used(name, passes):
    class Refusing(native.Passes):
        def run(self, pass_name, *arguments):
            assert not pass_name.startswith(name)
            super().run(pass_name, *arguments)

    by = Native(Refusing(passes.library, {name: "wrong"}))
    operation = {"moments": "norm_act", "apply": "norm_act", "project_rows": "fit_weight"}.get(name, name)
    for case in [case for case in native_cases() if operation_of(case) == operation][:12]:
        compare_in_c(case, by)


def test_not_a_number_stays_one(passes):
    for dtype in (torch.float32, torch.bfloat16):
        u = torch.full((2, 6, 4, 4), float("nan"), dtype=dtype)
        z, _ = norm_act(
            Operands(u, None, None, torch.ones(6), torch.zeros(6), Statistics(True, None, None, 0.1, 1e-5), 3, 0.0)
        )
        assert z.isnan().all()


def test_without_the_passes_torch_does_the_work(plain_torch):
    plain_torch()
    assert models.create("resnet20", 3)(torch.randn(2, 3, 16, 16)).isfinite().all()


@pytest.fixture(params=[torch.float64, torch.bfloat16], ids=str)
def another_default(request):
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


def test_torchs_default_precision_does_not_matter(another_default, passes, plain_torch):
    """Passes write where there is room for them, and the same numbers as torch."""
    torch.manual_seed(0)
    images = torch.randn(8, 3, 16, 16, dtype=torch.float32)
    network = models.create("cerberus", size=16).float()
    layer = lfnn.ConvTranspose2d(6, 9, 4, stride=2, dtype=torch.float32)

    def results():
        answer = network(images)
        gradients = torch.autograd.grad(answer.square().sum(), list(network.parameters()))
        with torch.no_grad():
            return [answer, network(images), layer.projected_weight(), *gradients]

    found = results()
    plain_torch()
    for ours, plain in zip(found, results(), strict=True):
        torch.testing.assert_close(ours, plain, atol=2e-4, rtol=1e-3)


def test_torchs_default_device_does_not_matter(passes):
    network, images = models.create("cerberus", size=16), torch.randn(2, 3, 16, 16)
    expected = network(images)
    with torch.device("meta"):
        torch.testing.assert_close(network(images), expected)


# Torch's own forward derivatives are written in TorchScript.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_derivatives_see_every_operation():
    network = models.create("cerberus", size=16).requires_grad_(False)
    images, direction = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
    exact, step = copy.deepcopy(network).double(), 1e-6 * direction.double()
    expected = (exact(images + step) - exact(images - step)) / 2e-6
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(network(forward_ad.make_dual(images, direction))).tangent
    torch.testing.assert_close(tangent, expected.float(), atol=1e-4, rtol=1e-3)
