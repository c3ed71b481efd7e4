"""Launching Triton kernels: what was compiled before is used again, for the like of it alone."""

import itertools

import pytest
import torch

from lightfast.nn import _triton
from lightfast.nn._triton import launch


class Kernel:
    """Stands for Triton's: it notes what is compiled, and what is launched."""

    arg_names = ("x", "y", "count", "slope", "WIDE", "LAST")

    def __init__(self, compiles=True):
        self.compiled, self.launched, self.compiles = 0, [], compiles

    def __getitem__(self, grid):
        def run(*arguments, num_warps=4, **constants):
            self.compiled += 1
            assert set(constants) == {"WIDE", "LAST"}
            return Compiled(self) if self.compiles else None

        return run


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.launched.append((grid, arguments))


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    monkeypatch.setattr(_triton, "_compiled", {})


X = torch.zeros(64)
CONSTANTS = {"num_warps": 4, "LAST": True, "WIDE": 8}


def test_the_second_launch_is_of_what_the_first_compiled():
    kernel = Kernel()
    for grid, y, count, slope in (((7,), X[4:], 48, 0.5), ((3, 2), X[8:], 64, 1.0), ((1, 2, 3), X[16:], 80, 2.0)):
        launch(kernel, grid, X, y, count, slope, **CONSTANTS)
    assert kernel.compiled == 1
    (first, arguments), (second, _) = kernel.launched
    assert (first, second) == ((3, 2, 1), (1, 2, 3))
    assert arguments[0] is X and arguments[2:] == (64, 1.0, 8, True)


def test_what_triton_would_compile_anew_is_compiled_anew():
    kernel = Kernel()
    ways = [
        (X, X, 48, 0.5),
        (X, X[1:], 48, 0.5),
        (X, X.to(torch.bfloat16), 48, 0.5),
        (X, X, 1, 0.5),
        (X, X, 49, 0.5),
        (X, X, 2**31, 0.5),
        (X, X, 48, 1),
    ]
    constants = [CONSTANTS, {**CONSTANTS, "WIDE": 16}, {**CONSTANTS, "num_warps": 8}]
    for _ in range(2):
        for arguments, others in itertools.product(ways, constants):
            launch(kernel, (1,), *arguments, **others)
    assert kernel.compiled == len(kernel.launched) == len(ways) * len(constants)


def test_kernels_are_not_taken_for_each_other():
    kernels = Kernel(), Kernel()
    for kernel in kernels:
        launch(kernel, (1,), X, X, 48, 0.5, **CONSTANTS)
    assert [kernel.compiled for kernel in kernels] == [1, 1]


def test_an_interpreter_compiles_nothing():
    kernel = Kernel(compiles=False)
    for _ in range(2):
        launch(kernel, (1,), X, X, 48, 0.5, **CONSTANTS)
    assert kernel.compiled == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_launched_again_on_a_gpu():
    from lightfast.nn._norm_act_triton import norm_act_kernels
    from lightfast.nn._statistics import Statistics

    def run(batch, seed):
        torch.manual_seed(seed)
        u, parameters = torch.randn(batch, 8, 5, 4, device="cuda"), torch.randn(3, 6, device="cuda")
        statistics = Statistics(True, torch.zeros(6, device="cuda"), torch.ones(6, device="cuda"), 0.1, 1e-5)
        return norm_act_kernels(u, None, *parameters, statistics, None, 3, 0.2)

    sizes = [(4, 0), (1, 1), (16, 2), (5, 3)]
    first = [run(*size) for size in sizes]
    torch.testing.assert_close([run(*size) for size in sizes], first, atol=0, rtol=0)
