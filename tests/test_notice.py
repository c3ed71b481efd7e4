"""sRGB where log RGB is expected is noticed at the first call, and only there."""

import warnings

import pytest
import torch
from torch import nn

import lightfast as lf


def network():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)
    )


@pytest.mark.parametrize(
    "make", [lf.wrap, lambda net: lf.convert(net, torch.zeros(2, 3, 8, 8))], ids=["wrap", "convert"]
)
def test_srgb_is_noticed_once(make):
    net, images = make(network()), torch.rand(2, 3, 8, 8)
    with pytest.warns(UserWarning, match=r"give it lightfast\.color\.srgb_to_log\(images\)"):
        net(images)
    net(images)  # Warnings are errors in these tests.


@pytest.mark.parametrize(
    "images",
    [
        lf.color.srgb_to_log(torch.rand(2, 3, 8, 8)),
        torch.zeros(2, 3, 8, 8),
        torch.randn(2, 3, 8, 8),
        torch.rand(2, 3, 8, 8) * 255,
    ],
    ids=["log", "nothing", "centered", "bytes"],
)
def test_what_is_not_srgb_is_left_alone(images):
    lf.wrap(network())(images)


def test_who_watches_every_operation_sees_nothing_of_it():
    net, images = lf.wrap(network()), torch.rand(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = torch.export.export(net.eval(), (images,))
        torch.func.vmap(net)(images[:, None])
    assert not any("aminmax" in str(node.target) for node in program.graph.nodes)
