"""What is run in Triton's interpreter, by name: programs that compare the kernels with plain torch, and networks."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from unittest import mock

import torch
import torch.nn.functional as F

import lightfast as lf
from lightfast import Groups, models
from lightfast._backends import (
    Constraint,
    Form,
    Operands,
    Statistics,
    center_act,
    center_relu_halve,
    choose,
    fit_weight,
)
from lightfast._backends.projection import _Fit
from lightfast._backends.reference import Reference
from lightfast._backends.triton import center_act as center_launches
from lightfast._backends.triton.backend import Triton
from lightfast.functional import center, group_pool, project_weight

KERNELS, REFERENCE = Triton(trusted=True), Reference()
LAYOUTS = torch.contiguous_format, torch.channels_last


@contextlib.contextmanager
def kernels_on_the_cpu() -> Iterator[None]:
    """What is done for a GPU is done here, where the current device is that of every tensor."""
    current = mock.patch.object(torch._C, "_cuda_getDevice", lambda: -1, create=True)
    with mock.patch.dict(choose._BACKENDS, cpu=KERNELS), current:
        yield


def saved_for_the_backward_pass() -> None:
    """Without running statistics, those of the batch are written down; parameters may lie anyhow."""
    parameters = torch.randn(6, 3).unbind(1)
    given = Operands(torch.randn(4, 6, 3, 5), None, *parameters, Statistics(True, None, None, 0.1, 1e-5), 3, 0.2)
    (saved, offset), (wanted, wanted_offset) = (by.norm_act_forward(given) for by in (KERNELS, REFERENCE))
    torch.testing.assert_close(offset, wanted_offset, atol=1e-5, rtol=1e-5)
    for name in ("u", "z", "of_features"):
        torch.testing.assert_close(getattr(saved, name), getattr(wanted, name), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(saved.of_images[:2], wanted.of_images[:2], atol=1e-5, rtol=1e-5)


def axes_of_size_one(training: bool) -> None:
    """Their strides say nothing, in maps, shortcuts and gradients."""
    for last, turned, flat in itertools.product([True, False], repeat=3):
        layout = LAYOUTS[last]
        u = torch.randn(2, 6, 5, 1).contiguous(memory_format=layout)
        s = torch.randn(2, 6, 1, 5).transpose(2, 3) if turned else torch.randn(2, 6, 5, 1)
        parameters, results = [torch.randn(6) for _ in range(3)], []
        weights = torch.randn(2, 5, 6) if flat else torch.randn(2, 6, 1, 5)
        dz = weights.transpose(1, 2)[..., None] if flat else weights.transpose(2, 3)
        for by in (KERNELS, REFERENCE):
            statistics = Statistics(training, torch.zeros(6), torch.ones(6), 0.1, 1e-5)
            given = Operands(u, s, *parameters, statistics, 3, 0.2)
            saved, offset = by.norm_act_forward(given)
            results.append([saved.z, offset, *by.norm_act_backward(dz, None, saved, given.options, statistics)])
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-5)


def in_parts() -> None:
    """Images that are too large for one program."""
    import operations

    with mock.patch.object(center_launches, "_TILE", 64), mock.patch.object(center_launches, "_WHOLE", 0):
        cases = [case for case in operations.triton_cases(8, True) if case[0] in ("center", "halve")]
        found = operations.failures([case for case in cases if case.features * case.size[0] < 200], KERNELS)
    assert not found, found


def spelled_out(u, bias, groups, slope, halved):
    v = u[:, : bias.shape[0]] + bias.reshape(-1, 1, 1)
    z = F.leaky_relu(center(v, groups), slope)
    return F.max_pool2d(z, 2) if halved else z, group_pool(v, groups).flatten(1)


def gradients_of_gradients_of_centering() -> None:
    u, bias = torch.randn(2, 8, 4, 5), torch.randn(6)
    with kernels_on_the_cpu():
        for halved in (False, True):
            results = []
            for by_kernels in (True, False):
                x, b = u.clone().requires_grad_(), bias.clone().requires_grad_()
                if by_kernels:
                    z, level = center_relu_halve(x, 3, b) if halved else center_act(x, 3, 0.2, b)
                else:
                    z, level = spelled_out(x, b, 3, 0.0 if halved else 0.2, halved)
                first = torch.autograd.grad(z.pow(3).sum() + level.square().sum(), (x, b), create_graph=True)
                second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, b))
                results.append([*first, *second])
            torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
        by_image = torch.func.vmap(lambda u: center_act(u[None], 3, 0.2, bias)[0][0])(u)
        torch.testing.assert_close(by_image, center_act(u, 3, 0.2, bias)[0])


def rows_are_centered() -> None:
    with kernels_on_the_cpu():
        rows, bias = torch.randn(5, 16), torch.randn(15)
        rows[:, 15:] = 0
        z, level = center_act(rows, 3, 0.2, bias)
        wanted, wanted_level = center_act(rows[:, :15].double(), 3, 0.2, bias.double())
        assert not z[:, 15:].any()
        torch.testing.assert_close((z[:, :15].double(), level.double()), (wanted, wanted_level), atol=1e-5, rtol=1e-5)


def not_a_number_stays_one() -> None:
    u = torch.randn(2, 6, 4, 4)
    u[0, 0, 1, 1] = float("nan")
    with kernels_on_the_cpu():
        z, _ = center_relu_halve(u, 3)
    assert z[0, :2].isnan().all() and not z[0, 2:].isnan().any() and not z[1].isnan().any()


def joined_far_apart() -> None:
    images = torch.zeros(1, 3, 8, 8)
    images[0, 0, 0, 0], images[0, 1, 0, 0] = -300, 300
    wanted = REFERENCE.join(images.double(), torch.float64)[1]
    torch.testing.assert_close(KERNELS.join(images, torch.float32)[1], wanted.float())


def derivatives_of_projections() -> None:
    with kernels_on_the_cpu():
        for shape, how in (((3, 6, 3, 3), {}), ((6, 3, 4, 4), {"transposed": True, "stride": 2})):
            weight = torch.randn(shape, requires_grad=True)
            first, second = (Groups.even(size, 3) for size in shape[:2])
            constraint = Constraint(*((first, second) if how else (second, first)), **how)
            form = Form((shape[0] + 1, *shape[1:]), torch.float32, torch.channels_last)
            both, factor = torch.randn(2, *form.shape), torch.randn(form.shape)
            results = []
            for kernel in (True, False):

                def function(weight, kernel=kernel, constraint=constraint, form=form, how=how):
                    if kernel:
                        return fit_weight(weight, constraint, form)
                    return F.pad(project_weight(weight, 3, 3, **how), (0, 0, 0, 0, 0, 0, 0, 1))

                (one,) = torch.autograd.grad((function(weight).pow(3) * factor).sum(), weight, create_graph=True)
                (two,) = torch.autograd.grad(one.square().sum(), weight)
                (batched,) = torch.autograd.grad(function(weight), weight, both, is_grads_batched=True)
                (flat,) = torch.autograd.grad(function(weight).sum(), weight)
                results.append((one, two, batched, flat))
            torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


_UP = {"transposed": True, "stride": (2, 2), "dilation": (1, 1)}


def projections_by_the_kernel() -> None:
    """And those for which there is none."""
    even, odd = Groups.even(6, 3), Groups([0, 0, 0, 1, 1, 2])
    with kernels_on_the_cpu():
        for shape, options, by_kernel in (
            ((3, 6), {}, True),
            ((3, 6, 3), {}, True),
            ((3, 6, 2, 3), {}, True),
            ((3, 6, 2, 3, 1), {}, True),
            ((3, 6), {"taps": "tap"}, True),
            ((3, 6, 3, 3), {"taps": "tap"}, False),
            ((3, 6, 4, 4), _UP, True),
            ((3, 6, 2, 2), _UP | {"taps": "tap"}, True),
            ((3, 6, 3, 3), _UP, False),
            ((3, 6, 4, 4), _UP | {"stride": (2, 1)}, False),
            ((3, 6, 4, 4), _UP | {"stride": 1, "dilation": 3}, False),
            ((3, 6, 4), {"transposed": True, "stride": 2}, False),
        ):
            weight = torch.randn(shape, requires_grad=True)
            groups = [Groups.even(size, 3) for size in shape[:2]]
            constraint = Constraint(*(groups if options.get("transposed") else groups[::-1]), **options)
            found = fit_weight(weight, constraint, Form.of(weight))
            wanted = REFERENCE.fit_weight(weight, constraint, Form.of(weight), True)
            assert isinstance(found.grad_fn, _Fit._backward_cls) == by_kernel, (shape, options)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
            given = torch.randn(shape)
            gradients = [torch.autograd.grad(result, weight, given)[0] for result in (found, wanted)]
            torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)
            assert gradients[0].stride() == weight.stride()
        volume = torch.randn(3, 6, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d)
        found = fit_weight(volume, Constraint(even, Groups.even(3, 3)), Form.of(volume))
        assert found.stride() == volume.stride()
        torch.testing.assert_close(found, project_weight(volume, 3, 3))
    weight = torch.zeros(6, 6, 3, 3)
    assert KERNELS.takes_weight(weight, Constraint(even, even), Form.of(weight))
    assert not KERNELS.takes_weight(weight, Constraint(even, odd), Form.of(weight))
    assert not KERNELS.takes_weight(weight, Constraint(even, even, 3), Form.of(weight))


def large_projections() -> None:
    """More than a program holds at once."""
    for shape, options in (((3, 3600, 4, 4), {}), ((12297, 3, 2, 2), {"transposed": True, "stride": 2})):
        weight = torch.randn(shape)
        first, second = (Groups.even(size, 3) for size in shape[:2])
        constraint = Constraint(*((first, second) if options else (second, first)), **options)
        form = Form((shape[0], shape[1], *shape[2:]), torch.float32, torch.channels_last)
        found, wanted = (by.fit_weight(weight, constraint, form, True) for by in (KERNELS, REFERENCE))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def cerberus(name: str, constrained: bool) -> None:
    """Trained and fused, against the formula in float64."""
    options = {"size": 32, "channels": (4, 6, 9, 12)} if name == "cerberus" else {"channels": (4, 7, 9, 12)}
    network = models.create(name, 3, constrained=constrained, hidden=15, **options)
    images, weights, results = torch.randn(2, 3, 32, 32), torch.randn(2, 3), []
    with kernels_on_the_cpu():
        for dtype in (torch.float32, torch.float64):
            twin = copy.deepcopy(network).to(dtype)
            answer = twin(images.to(dtype))
            gradients = torch.autograd.grad((answer * weights).sum(), list(twin.parameters()))
            results.append([x.double() for x in (answer, *gradients)])
            with torch.no_grad():
                torch.testing.assert_close(lf.fuse(twin)(images.to(dtype)), answer, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def context_encoder() -> None:
    network = models.create("context-encoder", 3, base=3, bottleneck=9)
    x, weight = torch.randn(2, 3, 128, 128), torch.randn(2, 3, 64, 64)
    results = []
    for place in (contextlib.nullcontext(), kernels_on_the_cpu()):
        with place:
            ours = copy.deepcopy(network).train()
            answer = ours(x)
            (answer * weight).mean().backward()
        results.append([answer.detach(), *(p.grad for p in ours.parameters()), *ours.buffers()])
    torch.testing.assert_close(*results, atol=2e-5, rtol=2e-4)


class Block(torch.nn.Module):
    """Two units with a shortcut, and a third without a constraint."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = lf.nn.Lift(3)
        self.first = lf.nn.ConvNormAct2d(3, 15, 3, padding=1)
        self.second = lf.nn.ConvNormAct2d(15, 15, 3, padding=1, slope=0.2)
        self.third = lf.nn.ConvNormAct2d(15, 6, 3, stride=2, constrained=False)

    def forward(self, x):
        y = self.first(self.lift(x))
        return lf.nn.lower(self.third(self.second(y, y)))


def units(last: bool, half: bool) -> None:
    """Training, and evaluation, in which weights and plans are kept; against the formula in float64."""
    block = Block()
    exact, x = copy.deepcopy(block).double(), torch.randn(3, 3, 8, 7).contiguous(memory_format=LAYOUTS[last])
    weights, results = torch.randn(3, 6, 3, 3), []
    for network, place in ((exact, contextlib.nullcontext()), (block, kernels_on_the_cpu())):
        given = x.to(next(network.parameters()).dtype).clone().requires_grad_()
        with place, torch.autocast("cpu", torch.bfloat16, enabled=half and network is block):
            network.train()
            answer = network(given)
            gradients = torch.autograd.grad((answer * weights).sum(), [given, *network.parameters()])
            network.eval()
            with torch.no_grad():
                used = [network(given), network(given), lf.fuse(network)(given)]
        results.append([t.detach().double() for t in (answer, *gradients, *used, *network.buffers())])
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() <= (0.05 if half else 1e-4) * (1 + other.norm())
