"""The C passes: the same numbers as torch's, and none of them missed where there is no compiler."""

import itertools

import pytest
import torch

from lightfast import models
from lightfast.nn import _native
from lightfast.nn._norm_act import norm_act
from lightfast.nn._statistics import Statistics

needs_library = pytest.mark.skipif(
    _native._library() is None, reason="there is no C compiler here, or it is switched off"
)


def run(u, shortcut, parameters, training, slope, weights):
    running = torch.zeros(6), torch.ones(6)
    inputs = [tensor.clone().requires_grad_() for tensor in (u, *([] if shortcut is None else [shortcut]), *parameters)]
    statistics = Statistics(training, *running, 0.1, 1e-5)
    z, offset = norm_act(inputs[0], None if shortcut is None else inputs[1], *inputs[-3:], statistics, 3, slope)
    gradients = torch.autograd.grad((z * weights[0]).sum() + (offset * weights[1]).sum(), inputs)
    return [z, offset, *running, *gradients]


@needs_library
@pytest.mark.parametrize(
    ("training", "slope", "with_shortcut"), list(itertools.product([True, False], [0.0, 0.2, 1.0], [True, False]))
)
def test_it_is_what_torch_computes(training, slope, with_shortcut, monkeypatch):
    u = torch.randn(5, 6, 7, 3) + 50
    shortcut = torch.randn_like(u) if with_shortcut else None
    parameters = [torch.randn(6) for _ in range(3)]
    weights = torch.randn_like(u), torch.randn(5, 3)
    assert _native.suits(u, shortcut)
    in_c = run(u, shortcut, parameters, training, slope, weights)
    monkeypatch.setattr(_native, "_library", lambda: None)
    assert not _native.suits(u, shortcut)
    torch.testing.assert_close(in_c, run(u, shortcut, parameters, training, slope, weights), atol=1e-4, rtol=1e-5)


@needs_library
def test_it_takes_only_what_it_can():
    x = torch.zeros(2, 6, 4, 4)
    assert _native.suits(x, None)
    for other in (x.double(), x.to(memory_format=torch.channels_last), torch.zeros(2, 6), x[:, ::2]):
        assert not _native.suits(other)
    assert not _native.suits(x, torch.zeros(2, 6, 2, 2))


@needs_library
def test_not_a_number_stays_one():
    u = torch.full((2, 6, 4, 4), float("nan"))
    z, _ = norm_act(u, None, None, torch.ones(6), torch.zeros(6), Statistics(True, None, None, 0.1, 1e-5), 3, 0.0)
    assert z.isnan().all()


def test_without_a_compiler_torch_does_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert _native._library.__wrapped__() is None
    monkeypatch.undo()
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _native._library.__wrapped__() is None
    monkeypatch.setattr(_native, "_library", lambda: None)
    assert models.create("resnet20", 3)(torch.randn(2, 3, 16, 16)).isfinite().all()


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("LIGHTFAST_NATIVE", "0")
    assert _native._library.__wrapped__() is None
