"""The straightforward networks compute what ours compute."""

import pytest
import torch

from lightfast._experiments.speed.subjects import Subject, build

CASES = [Subject("resnet20", 3, 8), Subject("cerberus", 2, 64)]
LARGE = [Subject("resnet50", 2, 64), Subject("context-encoder", 2, 128)]


def pair(subject, dtype, training):
    networks = [build(subject, name).to(dtype).train(training) for name in ("ours", "straightforward")]
    for network in networks:
        generator = torch.Generator().manual_seed(2)
        for name, buffer in network.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand(buffer.shape, generator=generator, dtype=dtype) + 0.5)
    return networks


def images(subject, dtype):
    x = torch.randn(subject.batch, 3, subject.size, subject.size, generator=torch.Generator().manual_seed(3))
    return x.to(dtype)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "subject",
    [*CASES, *(pytest.param(subject, marks=pytest.mark.slow) for subject in LARGE)],
    ids=lambda subject: subject.network,
)
def test_it_is_the_same_function_with_the_same_gradients(subject, training):
    ours, other = pair(subject, torch.float64, training)
    x = images(subject, torch.float64) + torch.tensor([5.0, -3.0, 1.0], dtype=torch.float64)[:, None, None]
    expected, found = ours(x), other(x)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    torch.autograd.backward([expected.square().sum(), found.square().sum()])
    for wanted, got in zip(ours.parameters(), other.parameters(), strict=True):
        scale = max(wanted.grad.abs().max().item(), 1e-3)
        assert (got.grad - wanted.grad).abs().max() < 1e-6 * scale


@pytest.mark.parametrize("subject", CASES, ids=lambda subject: subject.network)
def test_in_float32(subject):
    ours, other = pair(subject, torch.float32, True)
    x = images(subject, torch.float32)
    torch.testing.assert_close(other(x), ours(x), atol=1e-5, rtol=1e-5)


def test_so_is_a_large_one():
    ours, other = pair(LARGE[0], torch.float64, False)
    x = images(LARGE[0], torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(other(x), ours(x), atol=1e-9, rtol=1e-9)


def test_what_there_is_not_is_said():
    with pytest.raises(LookupError, match="no network vgg16"):
        build(Subject("vgg16", 1, 32), "plain")
    with pytest.raises(LookupError, match=r"straightforward\.py has no resnet18"):
        build(Subject("resnet18", 1, 32), "straightforward")
    with pytest.raises(LookupError, match="no resnet18 of other widths"):
        build(Subject("resnet18", 1, 32), "same-widths")
