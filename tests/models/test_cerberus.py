"""Color Cerberus: the paper's counts, shapes, and exact equivariance."""

import pytest
import torch

from lightfast import models
from lightfast._backends.native import backend as native
from lightfast.functional import add_offset
from lightfast.models._cerberus import Cerberus, LocalCerberus
from lightfast.models._vocabulary import vocabulary


def _count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("offset_groups", "estimates", "parameters"), [(None, 3, 206_345), (None, 1, 203_939), (3, 1, 196_668)]
)
def test_parameters_are_the_papers(offset_groups, estimates, parameters):
    assert _count(models.create("cerberus", offset_groups=offset_groups, estimates=estimates)) == parameters


@pytest.mark.parametrize(
    "network",
    [
        Cerberus(3),
        Cerberus(3, estimates=2, size=32),
        Cerberus(3, dropout=0.3).eval(),
        LocalCerberus(3),
        LocalCerberus(3, norm=True).eval(),
        Cerberus(3, constrained=False),
        LocalCerberus(3, norm=True, constrained=False).eval(),
    ],
    ids=["cerberus", "two estimates", "dropout", "local", "local, normalized", "free", "local, normalized, free"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimates_follow_offsets(network, dtype):
    network = network.to(dtype)
    size = getattr(network, "size", 48)
    x, offset = torch.randn(3, 3, size, size, dtype=dtype), 5 * torch.randn(3, 3, dtype=dtype)
    moved = network(add_offset(x, offset, 3))
    expected = network(x) + (offset if moved.ndim == 2 else offset[:, None])
    torch.testing.assert_close(moved, expected, atol=2e-5 if dtype == torch.float32 else 1e-11, rtol=0)


def test_estimates_follow_offsets_after_training_steps():
    network = Cerberus(3, size=16)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(5):
        network(torch.randn(4, 3, 16, 16)).square().sum().backward()
        optimizer.step()
    x, offset = torch.randn(2, 3, 16, 16), torch.tensor([1.0, -2.0, 3.0])
    torch.testing.assert_close(network(add_offset(x, offset, 3)), network(x) + offset, atol=1e-4, rtol=0)


LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 7), (16, 16), (33, 3)])
def test_images_are_joined_with_their_mean_in_c_as_in_torch(size, layout, monkeypatch):
    images = (3 * torch.randn(2, 3, *size) + 20).contiguous(memory_format=layout)
    found = vocabulary(3).join_average(images)
    with torch.autocast("cpu", torch.bfloat16):
        low = vocabulary(3).join_average(images)
    monkeypatch.setattr(native, "_passes", lambda: None)
    wanted = vocabulary(3).join_average(images)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(low.map.float(), wanted.map, atol=1e-4, rtol=2**-8)
    assert low.offset.dtype == torch.float32 and found.map.is_contiguous(memory_format=layout)
    assert torch.equal(vocabulary(None).join_average(images)[:, ::2], images)


def test_the_log_mean_bears_colors_far_apart():
    images = torch.zeros(1, 3, 8, 8)
    images[0, 0, 0, 0], images[0, 1, 0, 0] = -300, 300
    found = vocabulary(3).join_average(images).offset[0]
    wanted = -(images.double().flatten(2).neg().logsumexp(2)[0] - torch.tensor(64.0).double().log())
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [lambda: Cerberus(3, size=32), lambda: LocalCerberus(3)], ids=["global", "local"])
def test_in_c_the_network_learns_what_it_learns_in_torch(make, layout, monkeypatch):
    network = make().to(memory_format=layout)
    images = torch.randn(3, 3, 32, 32).contiguous(memory_format=layout)
    weights, results = torch.randn(3, 3), []
    for in_c in (True, False):
        if not in_c:
            monkeypatch.setattr(native, "_passes", lambda: None)
        answer = network(images)
        gradients = torch.autograd.grad((answer * weights).sum(), list(network.parameters()))
        with torch.no_grad():
            torch.testing.assert_close(network(images), answer, atol=1e-5, rtol=1e-5)
        results.append((answer, *gradients))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_the_gradient_of_an_image():
    images = torch.randn(2, 3, 32, 32)
    network = Cerberus(3, size=32)
    images.requires_grad_()
    network(images).sum().backward()
    # An offset moves the three answers of an image by as much.
    torch.testing.assert_close(images.grad.sum((2, 3)), torch.ones(2, 3), atol=1e-3, rtol=0)
    transformed = torch.func.grad(lambda x: vocabulary(3).join_average(x).offset.sum())(images.detach())
    torch.testing.assert_close(transformed.sum((2, 3)), torch.ones(2, 3))


@pytest.mark.parametrize("offset_groups", [None, 3])
def test_shapes(offset_groups):
    assert models.create("cerberus", offset_groups=offset_groups)(torch.rand(2, 3, 64, 64)).shape == (2, 3)
    assert Cerberus(offset_groups, estimates=3)(torch.rand(2, 3, 64, 64)).shape == (2, 3, 3)
    assert models.create("cerberus-local", offset_groups=offset_groups)(torch.rand(2, 3, 40, 70)).shape == (2, 3)


def test_a_conventional_network_on_linear_colors_gives_no_negative_light():
    assert (Cerberus(None)(10 * torch.randn(8, 3, 64, 64)) >= 0).all()
    assert (Cerberus(None, rectify=False)(10 * torch.randn(64, 3, 64, 64)) < 0).any()


@pytest.mark.parametrize("network", [Cerberus(3), LocalCerberus(3), LocalCerberus(3, norm=True), LocalCerberus(None)])
def test_every_parameter_learns(network):
    network(torch.randn(4, 3, 64, 64)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cerberus(3, size=50), "multiple of 16"),
        (lambda: Cerberus(2), "3 groups"),
        (lambda: LocalCerberus(2), "3 groups"),
        (lambda: Cerberus(3)(torch.rand(1, 3, 32, 32)), "64 x 64"),
        (lambda: LocalCerberus(3)(torch.rand(1, 4, 32, 32)), r"\(N, 3, H, W\)"),
        (lambda: models.create("cerberus", classes=10), "no classes"),
        (lambda: models.create("resnet20", estimates=3), "estimates"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
