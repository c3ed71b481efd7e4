"""Launches of kernels: by Triton the first time, and by what it compiled from then on."""

from types import SimpleNamespace

import pytest
import torch

from lightfast._backends import plans
from lightfast._backends.plans import Plans
from lightfast._backends.triton import launch
from lightfast._backends.triton.launch import Launch, power_of_two


class Kernel:
    """Stands for a function of Triton: notes how it is called, and gives what Triton gives for a compiled kernel."""

    arg_names = ("x", "y", "size", "slope", "BLOCK", "LAST")

    def __init__(self):
        self.by_triton, self.direct = [], []

    def __getitem__(self, grid):
        def call(*arguments, **constants):
            self.by_triton.append((grid, arguments, constants))
            return SimpleNamespace(run=self.run, function="function", packed_metadata="metadata")

        return call

    def run(self, *arguments):
        self.direct.append(arguments)


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    return Kernel()


def made(kernel):
    return Launch(kernel, (5, 2), 100, 0.2, LAST=True, BLOCK=64, num_warps=4)


def tensors(dtype=torch.float32):
    """Two of them, at multiples of 16 bytes."""
    return torch.zeros(16, dtype=dtype), torch.zeros(16, dtype=dtype)


def test_the_first_is_by_triton_and_the_second_by_what_it_compiled(kernel):
    work, (x, y) = made(kernel), tensors()
    work(x, y)
    assert kernel.by_triton == [((5, 2), (x, y, 100, 0.2), {"LAST": True, "BLOCK": 64, "num_warps": 4})]
    assert not kernel.direct
    work(y, x)
    assert len(kernel.by_triton) == 1
    (arguments,) = kernel.direct
    # The grid has three axes; constants come in the order of the kernel's arguments, whatever they were given in.
    assert arguments[:4] == (5, 2, 1, 77)
    assert arguments[-6:] == (y.data_ptr(), x.data_ptr(), 100, 0.2, 64, True)
    assert {"function", "metadata"} <= set(arguments)


def test_other_precisions_are_compiled_for_themselves(kernel):
    work = made(kernel)
    for dtype in (torch.float32, torch.bfloat16):
        work(*tensors(dtype))
    work(tensors()[0], tensors(torch.bfloat16)[0])
    assert len(kernel.by_triton) == 3 and not kernel.direct
    for dtype in (torch.float32, torch.bfloat16):
        work(*tensors(dtype))
    assert len(kernel.by_triton) == 3 and len(kernel.direct) == 2


def test_what_does_not_lie_at_sixteen_bytes_goes_by_triton(kernel):
    work, (x, y) = made(kernel), tensors()
    for _ in range(3):
        work(x, y[1:])
    assert len(kernel.by_triton) == 3 and not kernel.direct
    work(x, y)
    work(x, y[4:])
    assert len(kernel.by_triton) == 4 and len(kernel.direct) == 1


def test_in_the_interpreter_all_go_by_triton(kernel, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert launch.interpreted()
    work = made(kernel)
    for _ in range(3):
        work(*tensors())
    assert len(kernel.by_triton) == 3 and not kernel.direct


def test_powers_of_two():
    assert [power_of_two(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_plans_are_made_once_and_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(plans, "_MOST", 2)
    kept, made = Plans(), []
    for key in "aabcbca":
        assert kept.get(key, lambda key=key: made.append(key) or f"plan of {key}") == f"plan of {key}"
    assert "".join(made) == "abca"
