import pytest
import torch

from lightfast import assert_equivariant, models


@pytest.mark.parametrize("scope", ["image", "pixel"])
def test_scores_do_not_change_with_offsets(scope):
    network = models.create("resnet9-narrow", 3, classes=4, scope=scope).eval()
    assert_equivariant(network, torch.randn(2, 3, 16, 16), expect="invariant", offsets=100.0, tolerance=1e-9)


def test_the_conventional_network_has_the_usual_size():
    with torch.device("meta"):
        network = models.create("resnet9", None)
    assert models.create("resnet9-narrow", None)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in network.parameters()) == 6_573_130
