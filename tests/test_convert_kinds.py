"""Conversion: a small network for each kind that once failed, or of which much stayed plain."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lightfast.nn as lfnn
from lightfast._certify import certify
from lightfast._convert import convert, converter
from lightfast._convert.capture import capture
from lightfast._equivariance import equivariance_error
from tests import zoo
from tests.zoo import kinds
from tests.zoo.steps import images, train


@pytest.mark.parametrize(
    "kind",
    [
        kinds.WritesIntoParts,
        kinds.WritesIntoItsOwnPart,
        kinds.SumsOfParts,
        kinds.SplitAttention,
        kinds.Region,
        kinds.WritesItsType,
        kinds.SumsInItsType,
        kinds.PadsToSame,
        kinds.Recurrent,
        kinds.KeepsTensors,
    ],
    ids=lambda k: k.__name__,
)
def test_kinds_of_networks_that_once_failed(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = convert(kind(), images(8))
    report = net.conversion
    assert report.certificate.proved and report.training_certificate.proved
    expect = "invariant" if report.certificate.invariant else "equivariant"
    assert equivariance_error(net.eval(), images(8), offsets=5.0, expect=expect) < 1e-9
    # The proof by layers is the proof by operations.
    assert str(certify(net, images(8))) == str(report.certificate)


def test_gated_layers_are_constrained_and_lose_no_group() -> None:
    net = convert(kinds.GatedBlocks(), images(8))
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    ours = [layer for layer in layers if isinstance(layer, lfnn.Linear | lfnn.Conv2d)]
    assert len(layers) == 8 and len(ours) >= 0.6 * len(layers)
    assert all(set(layer.out_groups.assignment) == {0, 1, 2} for layer in ours)
    assert net.conversion.certificate.invariant


def test_group_means_come_back_after_features_change() -> None:
    net = convert(kinds.PooledAttention(), images(8)).eval()
    constrained = {name for name, module in net.named_modules() if isinstance(module, lfnn.Linear)}
    assert constrained == {"mlp.0", "mlp.2", "head"}
    assert net.conversion.certificate.invariant
    assert equivariance_error(net, images(8), offsets=5.0, expect="invariant") < 1e-9


@pytest.mark.parametrize("function", [False, True], ids=["products", "torch's function"])
def test_values_of_attention_carry_the_offset(function: bool) -> None:
    net = convert(kinds.SeparateValues(function), images(8))
    constrained = {name for name, module in net.named_modules() if isinstance(module, lfnn.Linear | lfnn.Conv2d)}
    assert constrained == {"stem", "value", "out", "head"}
    assert net.conversion.certificate.invariant and net.conversion.training_certificate.invariant
    assert equivariance_error(net.eval(), images(8), offsets=5.0, expect="invariant") < 1e-9
    # What is averaged with weights that sum to 1 gets its own group means back.
    restored = next(node for node in net.graph.nodes if "restore" in str(node.target))
    assert restored.args[1].args[0].args[0].args[0].target == "value"


def test_branches_that_are_summed_get_their_group_means_back() -> None:
    net = convert(kinds.SplitAttention(), images(8))
    constrained = {name for name, module in net.named_modules() if isinstance(module, lfnn.Linear | lfnn.Conv2d)}
    assert constrained == {"one", "two", "last", "head"}


def test_pooled_values_carry_the_offset() -> None:
    net = convert(kinds.PooledValues(), images(8))
    constrained = {name for name, module in net.named_modules() if isinstance(module, lfnn.Linear | lfnn.Conv2d)}
    assert constrained == {"stem", "qkv", "pool_v", "out", "head"}
    assert equivariance_error(net.eval(), images(8), offsets=5.0, expect="invariant") < 1e-9


@pytest.mark.parametrize("convolution", [False, True], ids=["linear", "convolutions"])
def test_layers_along_positions_are_averages(convolution: bool) -> None:
    net = convert(kinds.TokenMixing(convolution), images(8), widths="keep")
    for name in ("mix.0", "mix.2"):
        weight = net.get_submodule(name).projected_weight().flatten(1)
        assert torch.allclose(weight.sum(1), torch.ones(len(weight)), atol=1e-5)
    assert equivariance_error(net.eval(), images(8), offsets=5.0, expect="invariant") < 1e-9
    assert str(certify(net, images(8))) == str(net.conversion.certificate)
    train(net, images(8))
    assert certify(net.eval(), images(8)).invariant


def test_features_of_a_detector_follow_the_light() -> None:
    net = convert(kinds.Pyramid(), images(16)).double().eval()
    x, light = images(16).double(), torch.randn(2, 3, dtype=torch.float64)
    before, after = net(x), net(x + light[:, :, None, None])
    assert set(before) == {"0", "1", "pool"}
    for name, features in before.items():
        assert torch.allclose(after[name], features + light.repeat_interleave(3, 1)[:, :, None, None])


def test_several_inputs_carry_the_light() -> None:
    model, inputs = kinds.TwoPictures(), [images(8), images(8), torch.rand(2, 1, 8, 8)]
    net = convert(model, inputs, offset_inputs=(0, 1)).double().eval()
    assert net.conversion.certificate.equivariant
    one, other, mask = (tensor.double() for tensor in inputs)
    light = torch.randn(2, 3, 1, 1, dtype=torch.float64)
    assert torch.allclose(net(one + light, other + light, mask), net(one, other, mask) + light)
    with pytest.raises(ValueError, match="some of the 3 inputs"):
        convert(model, inputs, offset_inputs=(3,))


@pytest.mark.parametrize("kind", [kinds.TwoHeads, kinds.NormalizedScores], ids=lambda k: k.__name__)
def test_class_scores_do_not_follow_the_light(kind: type[nn.Module]) -> None:
    net = convert(kind(), images(8)).eval()
    assert net.conversion.certificate.invariant, str(net.conversion)
    assert equivariance_error(net, images(8), offsets=5.0, expect="invariant") < 1e-9


def test_networks_of_other_groups() -> None:
    model = nn.Sequential(nn.Conv2d(4, 7, 3, padding=1), nn.ReLU())
    with pytest.warns(UserWarning, match="7 channels, which do not divide into 2 groups"):
        net = convert(model, torch.zeros(2, 4, 8, 8), offset_groups=2, widths="keep")
    assert net.conversion.certificate.equivariant and net(torch.zeros(1, 4, 8, 8)).shape[1] == 7


@pytest.mark.parametrize(
    ("model", "shape", "groups"),
    [(kinds.Sequence1d, (2, 5, 9), 5), (kinds.Volume, (2, 2, 4, 4, 4), 2)],
    ids=["one dimension, five groups", "three dimensions, two groups"],
)
def test_dimensions_and_groups(model: type[nn.Module], shape: tuple[int, ...], groups: int) -> None:
    net = convert(model(), torch.zeros(shape), groups).eval()
    assert net.conversion.certificate.equivariant
    assert equivariance_error(net, torch.randn(shape), groups, offsets=5.0) < 1e-9


def test_dictionaries_and_several_inputs() -> None:
    camera = torch.randn(2, 4)
    net = convert(kinds.Named(), [{"image": images(8)}], kwargs={"camera": camera}).double().eval()
    x, light = images(8).double(), torch.randn(2, 3, dtype=torch.float64)
    one = net({"image": x}, camera=camera.double())
    other = net({"image": x + light[:, :, None, None]}, camera=camera.double())
    moved = one["features"] + light.repeat_interleave(2, 1)[:, :, None, None]
    assert torch.allclose(other["scores"], one["scores"]) and torch.allclose(other["features"], moved)
    assert [said.split(": ")[1].split(";")[0] for said in net.conversion.outputs] == [
        "scores, which do not move",
        "follows the light",
    ]


def test_layers_before_those_of_a_gate_are_constrained() -> None:
    net = convert(kinds.Gate(), images(8))
    constrained = {name for name, module in net.named_modules() if isinstance(module, lfnn.Linear | lfnn.Conv2d)}
    assert constrained == {"stem", "squeeze", "head"}
    assert equivariance_error(net.eval(), images(8), offsets=5.0, expect="invariant") < 1e-9


def test_attention_of_torch_ends_in_a_constrained_layer() -> None:
    model = zoo.ViT().eval()
    net = convert(model, images())
    assert isinstance(net.get_submodule("layers.1.self_attention.out_proj"), lfnn.Linear)
    # Axes are exchanged elsewhere than in the model, which changes nothing.
    x = images()
    torch.testing.assert_close(capture(model, x)(x), model(x))


def test_values_of_another_width_get_their_group_means_back() -> None:
    """Heads keep 8 features, though the layers around attention have 9."""
    net = convert(kinds.JointKeysAndValues(), images(8))
    assert net.conversion.widths and isinstance(net.get_submodule("out"), lfnn.Linear)
    assert equivariance_error(net.eval(), images(8), offsets=5.0, expect="invariant") < 1e-9


def test_standardized_weights_are_proved_through_many_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding is not multiplied from layer to layer, so that no export is needed for the proof."""
    monkeypatch.setattr(converter, "_certificates", lambda *_: pytest.fail("exported for the proof"))
    torch.manual_seed(0)
    layers = (kinds.StandardizedConv(3 if number == 0 else 32, 32) for number in range(12))
    net = convert(nn.Sequential(*layers), images(8), output="equivariant")
    assert net.conversion.certificate.equivariant
