import pytest
import torch
from torch import nn

from lightfast import assert_equivariant, models
from lightfast.light import random_illuminants


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "groups", "parameters"),
    [
        ("resnet20", None, 270_410),
        ("resnet20", 3, 267_294),
        ("resnet50", None, 25_557_032),
        ("resnet50", 3, 28_831_107),
        ("resnet18", None, 11_689_512),
        ("resnet34", None, 21_797_672),
        ("resnet101", None, 44_549_160),
        ("resnet152", None, 60_192_808),
    ],
)
def test_parameter_counts(name, groups, parameters):
    with torch.device("meta"):
        assert count(models.create(name, groups)) == parameters


@pytest.mark.parametrize(("depth", "parameters"), [(32, 464), (44, 659), (56, 853), (110, 1728)])
def test_the_deeper_cifar_networks_have_the_sizes_of_the_paper_of_he(depth, parameters):
    with torch.device("meta"):
        assert count(models.create(f"resnet{depth}", None)) // 1000 == pytest.approx(parameters, abs=8)


@pytest.mark.parametrize("scope", ["image", "pixel"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "size"), [("resnet20", 16), ("resnet18", 32)])
def test_scores_do_not_change_with_offsets(name, size, training, scope):
    network = models.create(name, 3, classes=5, scope=scope).train(training)
    x = torch.randn(3, 3, size, size)
    assert_equivariant(network, x, expect="invariant", offsets=100.0, tolerance=1e-9)
    scores = network(x)
    assert scores.shape == (3, 5)
    torch.testing.assert_close(scores.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    assert scores.std() > 1e-4


@pytest.mark.parametrize("training", [True, False])
def test_nor_do_those_of_networks_with_free_weights(training):
    network = models.create("resnet20", offset_groups=3, constrained=False).train(training)
    assert count(network) == 267_294
    assert_equivariant(network, torch.randn(3, 3, 16, 16), expect="invariant", offsets=100.0, tolerance=1e-9)
    with pytest.raises(ValueError, match="pooled over the image"):
        models.create("resnet20", offset_groups=3, scope="pixel", constrained=False)


def test_so_do_those_of_bottleneck_networks():
    network = models.create("resnet50", 3, classes=5).eval()
    assert_equivariant(network, torch.randn(1, 3, 32, 32), expect="invariant", offsets=100.0, tolerance=1e-9)


def test_the_conventional_network_does_change():
    network = models.create("resnet20", None).eval()
    with pytest.raises(AssertionError):
        assert_equivariant(network, torch.randn(2, 3, 16, 16), expect="invariant")


def test_pooling_per_pixel_follows_light_that_varies_more_closely():
    """With local pooling only the convolutions mix places; an offset that changes slowly changes little."""
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    lights = random_illuminants(8, 0.9, generator=torch.Generator().manual_seed(0)).double()
    left, right = lights.log().neg().split(4)
    ramp = torch.linspace(0, 1, 32, dtype=torch.float64)
    offset = left[:, :, None, None] * (1 - ramp) + right[:, :, None, None] * ramp
    change = {}
    for scope in ("image", "pixel"):
        torch.manual_seed(0)
        network = models.create("resnet20", 3, scope=scope).double().eval()
        scores = network(x)
        change[scope] = ((network(x + offset) - scores).norm() / scores.norm()).item()
    assert change["pixel"] < 0.75 * change["image"]


@pytest.mark.parametrize("groups", [None, 3])
def test_it_learns(groups):
    network = models.create("resnet20", groups, classes=2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(16, 3, 16, 16)
    labels = torch.arange(16) % 2
    x[labels == 1] += torch.randn(3, 16, 16)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_it_compiles_whole_and_exports():
    network = models.create("resnet20", 3).eval()
    x = torch.randn(2, 3, 16, 16)
    expected = network(x)
    torch.testing.assert_close(torch.compile(network, fullgraph=True, backend="aot_eager")(x), expected)
    torch.testing.assert_close(torch.export.export(network, (x,)).module()(x), expected)


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(ValueError, match="no network 'resnet21'; there are resnet20, "):
        models.create("resnet21")
