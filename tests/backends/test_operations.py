"""Every operation by every backend, on awkward maps: it is the formula in float64."""

import operations
import pytest
from operations import compare_in_c, native_cases, operation_of, triton_cases

from lightfast._backends.native.backend import Native
from lightfast._backends.reference import Reference
from lightfast._backends.triton.backend import Triton

NAMES = ["norm_act", "infer", "center", "halve", "join", "fit_weight"]
IN_C = native_cases()


@pytest.mark.parametrize("case", IN_C, ids=str)
def test_in_c(case, passes):
    compare_in_c(case, Native(passes))


@pytest.mark.parametrize("name", NAMES)
def test_in_torch(name):
    """The plain version in low precision is what all others fall back on."""
    assert not operations.failures([case for case in IN_C if operation_of(case) == name], Reference())


def failures_by_kernels(name, most, small, device):
    found = [case for case in triton_cases(most, small) if operation_of(case) == name]
    return operations.failures(found, Triton(trusted=True), device)


@pytest.mark.parametrize("name", NAMES)
def test_in_tritons_interpreter(name, interpreted):
    assert not interpreted(failures_by_kernels, name, 16, True, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name):
    assert not failures_by_kernels(name, 40, False, "cuda")


def test_every_two_values_meet():
    """Of the options of an operation in C: here, of features, sizes and layouts."""
    maps = [case for case in IN_C if operation_of(case) == "norm_act"]
    met = {(case.features, case.groups, case.layout) for case in maps}
    assert len(met) == 4 * len({(case.features, case.groups) for case in maps})
    assert len({(case.size, case.dtype) for case in maps}) == 12
