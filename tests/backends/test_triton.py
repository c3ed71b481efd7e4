"""The GPU's code on the CPU, in Triton's interpreter: what is beyond single operations, and whole networks."""

import in_interpreter
import pytest
import torch

from lightfast._backends.choose import backend_of
from lightfast._backends.triton.backend import Triton

PROGRAMS = [
    in_interpreter.saved_for_the_backward_pass,
    in_interpreter.in_parts,
    in_interpreter.gradients_of_gradients_of_centering,
    in_interpreter.rows_are_centered,
    in_interpreter.not_a_number_stays_one,
    in_interpreter.joined_far_apart,
    in_interpreter.derivatives_of_projections,
    in_interpreter.projections_by_the_kernel,
    in_interpreter.large_projections,
    in_interpreter.context_encoder,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program, interpreted):
    interpreted(program)


@pytest.mark.parametrize("training", [True, False])
def test_axes_of_size_one(training, interpreted):
    interpreted(in_interpreter.axes_of_size_one, training)


@pytest.mark.parametrize(("last", "half"), [(False, False), (True, False), (False, True)])
def test_units(last, half, interpreted):
    interpreted(in_interpreter.units, last, half)


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("name", ["cerberus", "cerberus-local"])
def test_networks_with_idle_channels(name, constrained, interpreted):
    interpreted(in_interpreter.cerberus, name, constrained)


def test_the_kernels_stay_away_from_the_cpu():
    assert not isinstance(backend_of(torch.zeros(2, 6, 4, 4)), Triton)


def test_idle_channels_fill_sixteen_bytes():
    counts = [Triton().channels(33, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)]
    assert counts == [36, 40, 40, 36]
