"""The Context Encoder: counts, shapes, and offsets that it follows exactly."""

import pytest
import torch
from torch import nn

import lightfast as lf
from lightfast._equivariance import assert_equivariant, equivariance_error
from lightfast.functional import add_offset
from lightfast.models._context_encoder import ContextDiscriminator, ContextEncoder

SMALL = {"base": 6, "bottleneck": 12}


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_counts_of_the_paper():
    with torch.device("meta"):
        assert count(lf.models.create("context-encoder", offset_groups=None, base=64, bottleneck=4000)) == 71_130_531
        assert count(lf.models.create("context-encoder", offset_groups=3, base=63, bottleneck=3999)) == 69_917_493
        assert count(lf.models.create("context-encoder", offset_groups=None)) == 71_130_531
        assert count(lf.models.create("context-encoder", offset_groups=3)) == 69_917_493


def test_the_slim_one_is_small():
    assert 2.5e6 < count(lf.models.create("context-encoder-slim")) < 3.5e6


@pytest.mark.parametrize("groups", [None, 3])
def test_batch_norm_is_everywhere_but_at_the_ends(groups):
    network = ContextEncoder(groups, **SMALL)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()) == 9
    assert not any(isinstance(m, nn.BatchNorm2d) for end in (network.first, network.last) for m in end.modules())
    assert network(torch.randn(2, 3, 128, 128)).shape == (2, 3, 64, 64)


@pytest.mark.parametrize("how", [{}, {"constrained": False}, {"constrained": False, "carry": True}], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_it_follows_offsets(training, how):
    network = ContextEncoder(3, **SMALL, **how).double().train(training)
    assert_equivariant(network, torch.randn(2, 3, 128, 128, dtype=torch.float64), offsets=100.0)


def test_every_image_has_its_own_offset():
    network = ContextEncoder(3, **SMALL).double()
    x, offsets = torch.randn(3, 3, 128, 128).double(), 10 * torch.randn(3, 3).double()
    torch.testing.assert_close(network(add_offset(x, offsets, 3)), add_offset(network(x), offsets, 3))


def test_the_conventional_one_does_not_and_ends_in_tanh():
    network = ContextEncoder(None, **SMALL).double()
    x = torch.randn(2, 3, 128, 128).double()
    assert network(100 * x).abs().max() <= 1
    assert equivariance_error(network, x, offsets=10.0) > 0.1
    free = ContextEncoder(None, **SMALL, tanh=False)
    nn.init.constant_(free.last.bias, 5.0)
    assert free(torch.randn(2, 3, 128, 128)).max() > 1


def test_the_way_through_one_pixel_is_the_convolution():
    network = ContextEncoder(None, **SMALL).double().eval()
    conv, up = network.squeeze[0], network.expand[0]
    x = torch.randn(2, 48, 4, 4).double()
    torch.testing.assert_close(conv(x), nn.Conv2d.forward(conv, x))
    pixel = torch.randn(2, 12, 1, 1).double()
    torch.testing.assert_close(up(pixel), nn.ConvTranspose2d.forward(up, pixel))
    last = network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(last.squeeze[0](x), nn.Conv2d.forward(conv, x))
    torch.testing.assert_close(last.expand[0](pixel), nn.ConvTranspose2d.forward(up, pixel))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_under_autocast_are_those_without(layout):
    """In 16 bits projected weights are not kept for the backward pass, in which linear layers want them as rows."""
    network = ContextEncoder(3, **SMALL).to(memory_format=layout)
    images, gradients = torch.randn(4, 3, 128, 128), []
    for half in (False, True):
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            answer = network(images)
        answer.float().square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in network.parameters()]))
    assert (gradients[0] - gradients[1]).norm() < 0.1 * gradients[0].norm()


def test_the_discriminator_gives_a_score_an_image():
    assert ContextDiscriminator(4)(torch.rand(5, 3, 64, 64)).shape == (5,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"offset_groups": 2}, "colors have 3 groups"),
        ({"offset_groups": 3, "base": 64}, "must divide into the 3 colors"),
        ({"offset_groups": 3, "classes": 5}, "takes no classes"),
        ({"offset_groups": 3, "scope": "pixel"}, "no other scope"),
    ],
)
def test_what_it_cannot_be(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        lf.models.create("context-encoder", **arguments)


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match="128"):
        ContextEncoder(3, **SMALL)(torch.zeros(1, 3, 64, 64))
