"""The GPU's projection of weights in Triton's interpreter: the same numbers as `project_weight`, and gradients."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from lightfast import Groups
from lightfast.nn._projection import _Constraint
from lightfast.nn._projection_triton import fit_padded, layout_of, suits_weight

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def interpret(program):
    """Run a program on the CPU: Triton reads TRITON_INTERPRET when it is imported, hence a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "LIGHTFAST_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


PADDED = """
import itertools, torch
from lightfast.functional import project_weight
from lightfast.nn._lifted_transposed import project_transposed
from lightfast.nn._projection_triton import project_padded

torch.manual_seed(0)
layouts = torch.contiguous_format, torch.channels_last
for (shape, stride), before, after in itertools.product({cases}, layouts, layouts):
    weight = torch.randn(shape).contiguous(memory_format=before).requires_grad_()
    first, second = (shape[0], shape[1]) if before == after == layouts[0] else (shape[0] + 2, shape[1] + 3)
    if stride is None:
        padded = project_padded(weight, 3, first, second, torch.float32, after)
        plain = project_weight(weight, 3, 3)
    else:
        how = dict(transposed=True, stride=stride)
        padded = project_padded(weight, 3, second, first, torch.float32, after, **how)
        plain = project_transposed(weight, 3, stride)
    real = padded[: shape[0], : shape[1]]
    torch.testing.assert_close(real, plain, atol=1e-5, rtol=1e-5)
    assert not padded[shape[0] :].any() and not padded[:, shape[1] :].any()
    assert padded.shape == (first, second, *shape[2:]) and padded.is_contiguous(memory_format=after)
    factor = torch.randn_like(padded)
    ours, = torch.autograd.grad((padded * factor).sum(), weight)
    theirs, = torch.autograd.grad((plain * factor[: shape[0], : shape[1]]).sum(), weight)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ours.stride() == weight.stride()
"""

CASES = {
    "3x3": [((3, 9, 3, 3), None)],
    "1x1": [((3, 33, 1, 1), None)],
    "more than fits at once": [((3, 3600, 4, 4), None)],
    "a phase": [((9, 3, 4, 4), 1)],
    "phases": [((9, 6, 4, 4), 2)],
    "a phase a tap": [((9, 3, 4, 4), 4)],
    "phases of other sizes": [((6, 21, 6, 6), 3)],
    "more phases than fit at once": [((12297, 3, 2, 2), 2)],
}


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_it_projects_and_pads(name):
    interpret(PADDED.replace("{cases}", repr(CASES[name])))


FITTED = """
import itertools, torch
from lightfast.nn._projection_triton import fit_padded

torch.manual_seed(0)
layouts = torch.contiguous_format, torch.channels_last
for shape, before, after in itertools.product([(5, 3, 3, 3), (2, 600, 3, 3)], layouts, layouts):
    idle, weight = 3 * (before != after), torch.randn(shape).contiguous(memory_format=before).requires_grad_()
    wide = fit_padded(weight, (shape[0] + idle, shape[1] + idle), torch.bfloat16, after)
    # The interpreter cuts off what the GPU rounds.
    torch.testing.assert_close(wide[: shape[0], : shape[1]].float(), weight, atol=0, rtol=2**-7)
    assert not wide[shape[0] :].any() and not wide[:, shape[1] :].any()
    assert wide.dtype == torch.bfloat16 and wide.is_contiguous(memory_format=after)
    factor = torch.randn_like(wide)
    found, = torch.autograd.grad((wide * factor).sum(), weight)
    assert torch.equal(found, factor[: shape[0], : shape[1]].float()) and found.stride() == weight.stride()
"""


@needs_triton
def test_it_pads_and_rounds_alone():
    interpret(FITTED)


DERIVATIVES = """
import torch
from lightfast.functional import project_weight
from lightfast.nn._projection_triton import project_padded

torch.manual_seed(0)
for shape, how in (((3, 6, 3, 3), dict()), ((6, 3, 4, 4), dict(transposed=True, stride=2))):
    weight = torch.randn(shape, requires_grad=True)
    sizes = (shape[1], shape[0] + 1) if how else (shape[0] + 1, shape[1])
    both, factor = torch.randn(2, shape[0] + 1, *shape[1:]), torch.randn(shape[0] + 1, *shape[1:])
    results = []
    for kernel in (True, False):
        def function(weight):
            if kernel:
                return project_padded(weight, 3, *sizes, torch.float32, torch.channels_last, **how)
            return torch.nn.functional.pad(project_weight(weight, 3, 3, **how), (0, 0, 0, 0, 0, 0, 0, 1))

        projected = function(weight)
        first, = torch.autograd.grad((projected.pow(3) * factor).sum(), weight, create_graph=True)
        second, = torch.autograd.grad(first.square().sum(), weight)
        batched, = torch.autograd.grad(function(weight), weight, both, is_grads_batched=True)
        flat, = torch.autograd.grad(function(weight).sum(), weight)
        results.append((first, second, batched, flat))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
"""


@needs_triton
def test_derivatives_of_every_kind():
    interpret(DERIVATIVES)


LAYERS = """
import torch
from lightfast import Groups
from lightfast.functional import project_weight
from lightfast.nn._projection import project
from lightfast.nn._projection_triton import _Fit

torch.manual_seed(0)
up = dict(transposed=True, stride=(2, 2), dilation=(1, 1))
for shape, options, by_kernel in (
    ((3, 6), dict(), True),
    ((3, 6, 3), dict(), True),
    ((3, 6, 2, 3), dict(), True),
    ((3, 6, 2, 3, 1), dict(), True),
    ((3, 6), dict(constraint="tap"), True),
    ((3, 6, 3, 3), dict(constraint="tap"), False),
    ((3, 6, 4, 4), up, True),
    ((3, 6, 2, 2), up | dict(constraint="tap"), True),
    ((3, 6, 3, 3), up, False),
    ((3, 6, 4, 4), up | dict(stride=(2, 1)), False),
    ((3, 6, 4, 4), up | dict(stride=1, dilation=3), False),
    ((3, 6, 4), dict(transposed=True, stride=2), False),
):
    weight = torch.randn(shape, requires_grad=True)
    groups = [Groups.even(size, 3) for size in shape[:2]]
    groups = groups if options.get("transposed") else groups[::-1]
    found, wanted = project(weight, *groups, **options), project_weight(weight, *groups, **options)
    assert isinstance(found.grad_fn, _Fit._backward_cls) == by_kernel, (shape, options)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    given = torch.randn(shape)
    gradients = [torch.autograd.grad(result, weight, given)[0] for result in (found, wanted)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)
turned = torch.randn(3, 6, 3, 4).transpose(2, 3)
torch.testing.assert_close(project(turned, *[Groups.even(size, 3) for size in (6, 3)]), project_weight(turned, 3, 3))
volume = torch.randn(3, 6, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d)
found = project(volume, *[Groups.even(size, 3) for size in (6, 3)])
assert found.stride() == volume.stride()
torch.testing.assert_close(found, project_weight(volume, 3, 3))
"""


@needs_triton
def test_the_general_projection_goes_through_it():
    interpret(LAYERS)


def test_it_stays_away_from_the_cpu():
    assert not suits_weight(torch.zeros(3, 3, 2, 2), torch.float32)


def test_uneven_groups_and_grouped_convolutions_have_no_kernel():
    even, odd, weight = Groups.even(6, 3), Groups([0, 0, 0, 1, 1, 2]), torch.zeros(6, 6, 3, 3)
    assert _Constraint(even, even, 1, "sum", False, 1, 1).has_kernel(weight)
    assert not _Constraint(even, odd, 1, "sum", False, 1, 1).has_kernel(weight)
    assert not _Constraint(even, even, 3, "sum", False, 1, 1).has_kernel(weight)


def test_what_fits_is_left_as_it_is():
    weight = torch.zeros(3, 3, 2, 2)
    assert fit_padded(weight, (3, 3), torch.float32, torch.contiguous_format) is weight


def test_layouts():
    weight = torch.zeros(3, 4, 2, 2)
    assert layout_of(weight) == layout_of(weight.transpose(2, 3)) == torch.contiguous_format
    assert layout_of(weight.contiguous(memory_format=torch.channels_last)) == torch.channels_last
