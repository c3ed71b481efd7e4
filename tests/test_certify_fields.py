"""Certificates for light that varies over the image: fields, and networks that they should not move."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lightfast.nn as lfnn
from lightfast._certify import certify
from lightfast._groups import Groups
from lightfast._pipelines.classifier import Classifier
from lightfast._wrap import wrap
from lightfast.color import ChannelNorm
from lightfast.fields import Cosines, FieldSpec, Polynomial, RemoveField, add_field, project_field
from lightfast.functional import center, project_weight
from tests.zoo.small import Function, Mixing

X = torch.zeros(2, 3, 8, 8)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def resnet_like() -> nn.Module:
    body = [nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.Conv2d(6, 9, 3, 2, 1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def drift(net: nn.Module, x: Tensor, field: FieldSpec, expect: str = "invariant", seed: int = 0) -> float:
    """How far a field of random coefficients, other ones for each image, moves the output from where it should be."""
    net, x = copy.deepcopy(net).double(), x.double()
    shape = project_field(x, 3, field).shape
    light = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        before, after = copy.deepcopy(net)(x), net(add_field(x, light, 3, field))
        moved = add_field(before, light, 3, field) if expect == "equivariant" else before
    return float((after - moved).abs().max())


@pytest.mark.parametrize(("field", "training"), [(1, True), slow(2, False), slow(Cosines(2), False)])
def test_wrapped_network_is_proved_invariant_to_its_fields(field: FieldSpec, training: bool) -> None:
    net = wrap(resnet_like(), field=field).train(training)
    certificate = certify(net, X, field=field)
    assert certificate.invariant and certificate.breaks == ()
    assert drift(net, torch.randn(2, 3, 8, 8), field) < 1e-9
    assert certify(net, X).invariant


@pytest.mark.parametrize(("field", "asked", "proved"), [(1, 1, True), slow(0, 1, False), slow(0, 0, True)])
def test_classifier_is_certified_from_log_rgb_on(field: int, asked: int, proved: bool) -> None:
    norm = ChannelNorm([2.0] * 3, [1.0, 1.5, 2.0])
    classifier = Classifier("resnet20", ["cat", "dog"], norm, color="log", field=field).eval()
    certificate = certify(classifier, torch.zeros(1, 3, 32, 32), field=asked)
    assert certificate.invariant == proved and not certificate.training
    assert ("from log RGB on" in str(certificate)) == proved
    srgb = Classifier("resnet20", ["cat", "dog"]).eval()
    assert srgb.from_log is None


def test_certificate_says_what_was_proved_and_for_which_size() -> None:
    words = str(certify(wrap(resnet_like(), field=1), torch.zeros(1, 3, 12, 8), field=1))
    assert words.startswith("invariant to every light that is a plane in log RGB, in training mode")
    assert "all inputs of 12 x 8 pixels" in words and "each image has its own field" in words
    dense = wrap(nn.Conv2d(3, 6, 3, stride=2), output="equivariant", field=2)
    assert str(certify(dense, X, field=2)).startswith("equivariant to every light that is a quadratic in log RGB")
    cosines = certify(wrap(nn.ReLU(), field=Cosines(1)), X, field=Cosines(1))
    assert "in the span of Cosines(order=1)" in str(cosines)
    assert str(certify(nn.ReLU(), X, field=1)).startswith("not proved for every light that is a plane")


@pytest.mark.parametrize(("taken", "asked"), [(0, 1), slow(1, 2), slow(Cosines(2), 1)])
def test_field_that_was_not_taken_away_is_not_proved(taken: FieldSpec, asked: FieldSpec) -> None:
    net = wrap(resnet_like(), field=taken).eval()
    certificate = certify(net, X, field=asked)
    assert not certificate.proved and certificate.breaks[0].module == "model.0"
    assert f"lightfast.wrap(model, field={asked})" in certificate.breaks[0].instead
    assert drift(net, torch.randn(2, 3, 8, 8), asked) > 1e-4


def test_smaller_fields_are_covered_by_larger_ones() -> None:
    assert certify(wrap(resnet_like(), field=2), X, field=1).invariant
    assert certify(wrap(resnet_like(), field=Cosines(0)), X, field=Polynomial(0)).invariant


@pytest.mark.parametrize("field", [1, slow(Cosines(1))])
def test_equivariant_output_follows_fields_at_its_own_positions(field: FieldSpec) -> None:
    net = wrap(nn.Sequential(nn.Conv2d(3, 9, 3, 2, 1), nn.Tanh()), output="equivariant", field=field)
    assert certify(net, X, field=field).equivariant
    assert drift(net, torch.randn(2, 3, 8, 8), field, "equivariant") < 1e-9
    shifted = Function(lambda s, x: s.net(x).roll(1, 3))
    shifted.net = net
    assert not certify(shifted, X, field=field).proved


def test_output_without_positions_follows_the_mean_of_a_field() -> None:
    net = wrap(nn.Sequential(resnet_like(), nn.Linear(9, 3)), output="equivariant", field=2).eval()
    certificate = certify(net, X, field=2)
    assert certificate.equivariant and certificate.response.groups == Groups.even(3, 3)
    assert certify(Function(lambda _, x: x.mean((2, 3))), X, field=2).equivariant
    assert not certify(Function(lambda _, x: x[..., 0].mean(2)), X, field=2).proved


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x, "equivariant"),
        (lambda x: F.avg_pool2d(x, 2), "equivariant"),
        (lambda x: 2 * x, "scaled"),
        (lambda x: x[:, :1] - x[:, 1:2], "uniform"),
        (lambda x: x.flatten(1).mean(1, keepdim=True).repeat(1, 10), "uniform"),
        (lambda x: x[:, :1, 0, 0].repeat(1, 10), "uniform"),
        (lambda x: center(x, 3), "affine"),
        (lambda x: x.flip(3), "affine"),
        (lambda x: x.transpose(2, 3), "affine"),
        (lambda x: x[..., 1:], "affine"),
        (lambda x: F.max_pool2d(x, 2), "broken"),
        (lambda x: F.interpolate(x, scale_factor=2), "affine"),
        (lambda x: _second_difference(nn.Identity(), x).exp(), "invariant"),
        (lambda x: torch.sin(center(x, 1, scope="pixel")), "broken"),
    ],
)
def test_kinds_of_response_to_planes(function, kind: str) -> None:
    assert certify(Function(lambda _, x: function(x)), X, field=1).response.kind == kind


@pytest.mark.parametrize("how", ["swap", "broadcast"])
def test_mixing_images_breaks_the_proof_for_fields(how: str) -> None:
    assert not certify(Mixing(how), X, field=1).proved


def test_pixels_pooled_by_themselves_follow_every_field() -> None:
    net = nn.Sequential(lfnn.Conv2d(3, 9, 1), lfnn.ReLU(scope="pixel"), lfnn.Conv2d(9, 6, 1))
    assert certify(net, X, field=2).equivariant
    net[1] = lfnn.ReLU()
    certificate = certify(net, X, field=2)
    assert not certificate.proved and certificate.breaks[0].module == "1"
    assert "scope='pixel'" in certificate.breaks[0].instead


def test_value_that_only_fields_move_is_called_so() -> None:
    certificate = certify(Function(lambda _, x: center(x, 3).exp()), X, field=1)
    assert "exp of a value without its group means, which a field still moves" in certificate.breaks[0].why


def _second_difference(_: nn.Module, x: Tensor) -> Tensor:
    return x[..., 2:] - 2 * x[..., 1:-1] + x[..., :-2]


def moments_network(order: int, stride: int = 1) -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 9, 3, stride), lfnn.ReLU(scope="pixel"), nn.Conv2d(9, 6, 1)).double()
    with torch.no_grad():
        for conv in (net[0], net[2]):
            conv.weight.copy_(project_weight(conv.weight, 3, 3, moments=order))
    return net


def test_taps_whose_first_moments_vanish_carry_planes() -> None:
    x = torch.zeros(2, 3, 9, 9, dtype=torch.float64)
    assert certify(moments_network(1, 3), x, field=1).equivariant
    assert certify(moments_network(2, 3), x, field=2).equivariant
    assert drift(moments_network(1, 3), torch.randn(2, 3, 9, 9), 1, "equivariant") < 1e-9
    assert drift(moments_network(0, 3), torch.randn(2, 3, 9, 9), 1, "equivariant") > 1e-2
    certificate = certify(moments_network(0, 3), x, field=1)
    assert "first moments that vanish" in certificate.breaks[0].why and certificate.breaks[0].module == "0"
    # Without padding the map is cropped, so what follows a plane does so at other places than its own.
    centered = nn.Sequential(moments_network(1), lfnn.GroupPool("mean", "pixel"), Function(_second_difference))
    x = torch.zeros(2, 3, 12, 8, dtype=torch.float64)
    assert certify(centered, x, field=1).invariant
    cropped = certify(moments_network(1), x, field=1)
    assert not cropped.proved and cropped.breaks


def test_field_whose_functions_are_nearly_the_same_is_refused() -> None:
    def nearly(p: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(p[:, 0]), 1 + 1e-10 * p[:, 0]], 1)

    with pytest.raises(ValueError, match="nearly sums of others"):
        certify(nn.Identity(), X, field=nearly)
    # Functions that are the same at these few pixels are no harm.
    assert certify(wrap(nn.ReLU(), field=2), torch.zeros(1, 3, 2, 2), field=2).invariant


LAYERS = {
    "conv": lambda: nn.Conv2d(6, 6, 3, padding=1),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "norm": lambda: nn.BatchNorm2d(6),
    "group_norm": lambda: nn.GroupNorm(2, 6),
    "max_pool": lambda: nn.MaxPool2d(3, 1, 1),
    "avg_pool": lambda: nn.AvgPool2d(3, 1, 1),
    "remove": lambda: RemoveField(6, 1),
    "center": lambda: lfnn.Adapter(torch.sin, 6),
    "pixel": lambda: lfnn.Conv2d(6, 6, 1),
    "pixel_relu": lambda: lfnn.ReLU(scope="pixel"),
}


NETWORKS = st.tuples(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    st.sampled_from([0, 1, 2, None]),
    st.booleans(),
    st.sampled_from([1, 2]),
)


@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(NETWORKS)
def test_random_networks_are_certified_only_if_they_do_not_drift(network: tuple[Any, ...]) -> None:
    _certified_only_without_drift(*network)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(NETWORKS)
def test_many_random_networks_are_certified_only_if_they_do_not_drift(network: tuple[Any, ...]) -> None:
    _certified_only_without_drift(*network)


def _certified_only_without_drift(names: list[str], taken: int | None, leak: bool, asked: int) -> None:
    """Wrapped, not wrapped, and wrapped with a little of the input let through."""
    torch.manual_seed(0)
    body = nn.Sequential(lfnn.Conv2d(3, 6, 1), *(LAYERS[name]() for name in names))
    net = nn.Sequential(body if taken is None else wrap(body, field=taken))
    if leak:
        net = Function(lambda s, x: s.net(x + 0) + 1e-6 * x.repeat(1, 2, 1, 1))
        net.net = nn.Sequential(body if taken is None else wrap(body, field=taken))
    certificate = certify(net.eval().double(), torch.zeros(2, 3, 6, 6, dtype=torch.float64), field=asked)
    moved = [drift(net, 2 * torch.randn(2, 3, 6, 6), asked, seed=seed) for seed in range(3)]
    if certificate.invariant:
        assert max(moved) < 1e-9
    if max(moved) > 1e-6:
        assert not certificate.invariant
    if taken == asked and not leak:
        assert certificate.invariant
