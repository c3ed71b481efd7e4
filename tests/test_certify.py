"""Certificates: proofs, verdicts, faults and where they are, mutations, and the command."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from typer.testing import CliRunner

import lightfast.nn as lfnn
from lightfast import models
from lightfast._certify import Certificate, certify
from lightfast._commands.certify import certify as command
from lightfast._equivariance import equivariance_error
from lightfast._groups import Groups
from lightfast._project import project_
from lightfast._wrap import wrap
from lightfast.functional import add_offset, center, group_pool
from tests.zoo.small import Function, Mixing

X = torch.zeros(2, 3, 8, 8)


def layers() -> nn.Sequential:
    return nn.Sequential(
        lfnn.Conv2d(3, 9, 3, padding=1),
        lfnn.BatchNorm2d(9),
        lfnn.ReLU(),
        lfnn.Residual(nn.Sequential(lfnn.Conv2d(9, 9, 3, padding=1, padding_mode="mean"), lfnn.SiLU())),
        lfnn.Dropout(0.3),
        nn.MaxPool2d(2),
        lfnn.ConvTranspose2d(9, 6, 4, 2, 1),
        lfnn.GroupNorm(2, 6),
        lfnn.Maxout(2),
    )


@pytest.mark.parametrize("training", [False, True])
def test_network_of_our_layers_is_proved(training: bool) -> None:
    net = layers().train(training)
    certificate = certify(net, X)
    assert certificate.equivariant and certificate.proved and not certificate.invariant
    assert certificate.breaks == ()
    assert certificate.response.groups == Groups.even(3, 3)
    assert str(certificate).startswith(f"equivariant in {'training' if training else 'evaluation'} mode")
    assert equivariance_error(net, torch.randn(2, 3, 8, 8)) < 1e-10


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("resnet20", False),
        pytest.param("resnet20", True, marks=pytest.mark.slow),
        ("cerberus", True),
        pytest.param("cerberus", False, marks=pytest.mark.slow),
        ("cerberus-local", False),
        pytest.param("cerberus-local", True, marks=pytest.mark.slow),
        pytest.param("resnet50", False, marks=pytest.mark.slow),
        pytest.param("resnet50", True, marks=pytest.mark.slow),
    ],
)
def test_networks_of_the_project_are_proved_and_measured(name: str, training: bool) -> None:
    x = torch.randn(2, 3, 64, 64)
    expect = "invariant" if name.startswith("resnet") else "equivariant"
    net = models.create(name).train(training)
    assert getattr(certify(net, x), expect)
    assert equivariance_error(net, x, expect=expect) < 1e-8
    plain = models.create(name, offset_groups=None).train(training)
    assert not certify(plain, x).proved
    assert equivariance_error(plain, x, expect=expect) > 1e-3


def test_certifying_leaves_the_network_and_its_mode_alone() -> None:
    net = layers().train()
    before = copy.deepcopy(net.state_dict())
    certify(net, X)
    assert net.training
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "why", "instead"),
    [
        (nn.ReLU(), "ReLU of an equivariant value", "lightfast.nn.ReLU"),
        (nn.Conv2d(3, 3, 3, padding=1), "zero padding of a map with response", "replicate"),
        (nn.Conv2d(3, 3, 1), "weights that do not meet", "lightfast.project_"),
        (nn.AvgPool2d(3, 1, 1), "counts padded zeros", "count_include_pad=False"),
        (nn.ConvTranspose2d(3, 3, 3), "different taps", "lightfast.nn's transposed"),
        (nn.LayerNorm((3, 8, 8)), "layer normalization over features", "lightfast.nn.LayerNorm"),
        (nn.GroupNorm(1, 3), "group normalization over features", "lightfast.nn.GroupNorm"),
        (nn.BatchNorm2d(3).train(), "batch statistics", "lightfast.nn.BatchNorm2d"),
        (nn.Dropout(0.5).train(), "dropout", "lightfast.nn.Dropout"),
        (nn.Softmax(1), "softmax over values of different response", "center it"),
        (Function(lambda _, x: x + x), "sum of two equivariant values: response 2", "lightfast.nn.Residual"),
        (Function(lambda _, x: x * x.sigmoid()), "sigmoid of an equivariant value", "lightfast.nn.Sigmoid"),
        (Function(lambda _, x: x - x.mean(0)), "mixes images", "each image by itself"),
        (Function(lambda _, x: F.pad(x, [1, 1])), "zero padding", "replicate"),
        (Function(lambda _, x: x.to(torch.int32)), "turned into torch.int32", "floating point"),
        (Function(lambda _, x: x.cumsum(1)), "cumsum of an equivariant value", "center it"),
    ],
)
def test_each_break_says_why_and_what_to_use_instead(layer: nn.Module, why: str, instead: str) -> None:
    certificate = certify(layer, X)
    assert not certificate.proved
    assert why in certificate.breaks[0].why
    assert instead in certificate.breaks[0].instead
    assert certificate.breaks[0].why in str(certificate)


def test_first_cause_comes_first_with_its_module_and_line() -> None:
    net = nn.Sequential(lfnn.Conv2d(3, 6, 1), nn.Sequential(nn.Conv2d(6, 6, 1), lfnn.ReLU()), nn.Softmax(1))
    certificate = certify(net, X)
    assert [fault.module for fault in certificate.breaks] == ["1.0", "1.1"]
    assert "weights that do not meet" in certificate.breaks[0].why


def test_source_line_of_a_fault_is_the_users() -> None:
    class Absolute(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.abs()

    certificate = certify(nn.Sequential(Absolute()), X)
    assert "return x.abs()" in certificate.breaks[0].line and __file__ in certificate.breaks[0].line


def test_kinds_of_response() -> None:
    def kind(function) -> str:
        return certify(Function(function), X).response.kind

    assert kind(lambda _, x: x) == "equivariant"
    assert kind(lambda _, x: center(x, 3)) == "invariant"
    assert kind(lambda _, x: x.mean((1, 2, 3))[:, None].repeat(1, 10)) == "uniform"
    assert kind(lambda _, x: x / torch.tensor([0.5, 0.25, 2.0]).reshape(3, 1, 1)) == "scaled"
    assert kind(lambda _, x: x[:, :1] - x[:, 1:2]) == "uniform"
    assert kind(lambda _, x: x.cumsum(2).clamp(min=0)) == "broken"
    assert kind(lambda _, x: x + x.roll(1, 1)) == "affine"
    assert kind(lambda s, x: torch.ones(2, 3)) == "constant"


def test_uniform_scores_are_reported_and_softmax_of_them_is_invariant() -> None:
    scores = nn.Sequential(lfnn.Conv2d(3, 30, 8), nn.Flatten(), nn.Unflatten(1, (3, 10)))
    uniform = certify(nn.Sequential(scores, Function(lambda _, x: x.mean(1))), X)
    assert uniform.response.kind == "uniform" and not uniform.proved and not uniform.breaks
    assert "invariant after softmax" in str(uniform)
    assert certify(nn.Sequential(scores, Function(lambda _, x: x.mean(1).softmax(1))), X).invariant
    assert certify(nn.Sequential(scores, Function(lambda _, x: x.mean(1).argmax(1))), X).invariant
    centered = nn.Sequential(scores, Function(lambda _, x: x.mean(1) - x.mean((1, 2))[:, None]))
    assert certify(centered, X).invariant


def test_scale_of_each_group_is_reported() -> None:
    certificate = certify(Function(lambda _, x: x * torch.tensor([2.0, 3.0, 4.0]).reshape(3, 1, 1)), X)
    assert "times 2, 3, 4" in str(certificate)


def test_assignment_of_the_output() -> None:
    flip = Function(lambda _, x: x.flip(1))
    certificate = certify(flip, X)
    assert not certificate.equivariant and "Groups([2, 1, 0])" in str(certificate)
    assert certify(flip, X, out_groups=Groups([2, 1, 0])).equivariant
    groups = Groups([0, 1, 1, 0])
    assert certify(nn.Identity(), torch.zeros(2, 4), groups).equivariant
    assert certify(lfnn.Linear(4, 6, offset_groups=(groups, Groups.even(6, 2))), torch.zeros(2, 4), groups).equivariant


def test_features_on_another_axis() -> None:
    assert certify(lfnn.Linear(6, 9), torch.zeros(2, 5, 6), dim=-1).equivariant
    tokens = nn.Sequential(lfnn.Linear(6, 9), lfnn.LayerNorm(9), lfnn.GELU(dim=-1))
    assert certify(tokens, torch.zeros(2, 5, 6), dim=2).equivariant


def test_further_inputs_do_not_move() -> None:
    add = Function(lambda _, x, y: x + y)
    assert certify(add, [X, torch.zeros(2, 3, 8, 8)]).equivariant
    assert not certify(Function(lambda _, x, y: x * y), [X, torch.zeros(2, 3, 8, 8)]).proved


def test_several_outputs() -> None:
    both = Function(lambda _, x: {"map": x, "scores": center(x, 3).mean((2, 3))})
    certificate = certify(both, X)
    assert certificate.proved and not certificate.equivariant and not certificate.invariant
    assert [output.response.kind for output in certificate.outputs] == ["equivariant", "invariant"]


@pytest.mark.parametrize("how", ["swap", "reshape", "broadcast", "roll", "flip"])
def test_mixing_images_is_never_equivariant(how: str) -> None:
    assert not certify(Mixing(how), X).proved
    # A single image in the example hides nothing: the proof is about two.
    assert not certify(Mixing(how), X[:1]).proved


def test_mixing_that_cancels_is_allowed() -> None:
    net = Mixing("cancel")
    assert certify(net, X).equivariant
    assert equivariance_error(net, torch.randn(2, 3, 8, 8)) < 1e-12


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_number_of_images_in_the_example(batch: int) -> None:
    certificate = certify(layers().eval(), torch.zeros(batch, 3, 8, 8))
    assert certificate.equivariant and certificate.images == 2


def test_network_that_insists_on_its_batch_is_certified_for_that() -> None:
    insists = Function(lambda _, x: x.reshape(1, 3, 8, 8))
    certificate = certify(insists, X[:1])
    assert certificate.equivariant and certificate.images == 1
    assert "one image" in str(certificate)


def test_state_that_follows_the_offset_is_a_fault() -> None:
    def remember(self: nn.Module, x: Tensor) -> Tensor:
        self.seen.copy_(x.mean((0, 2, 3)))
        return center(x, 3)

    certificate = certify(Function(remember, seen=torch.zeros(3)), X)
    assert any("buffer seen" in fault.why for fault in certificate.breaks)


class InPlace(nn.Module):
    """Writes into tensors that others read; offsets get lost on the way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        if self.how == "view":
            part = y[:, :1]
            part.relu_()
        elif self.how == "assign":
            y[:, 0] = 0
        elif self.how == "mask":
            y[x > 0] = 1.0
        elif self.how == "no_grad":
            with torch.no_grad():
                y.relu_()
        elif self.how == "alias":
            z = y.view(-1)
            z.mul_(2)
        elif self.how == "data":
            y.detach().relu_()
        return y


@pytest.mark.parametrize("how", ["view", "assign", "mask", "no_grad", "alias", "data"])
def test_writing_in_place_is_seen(how: str) -> None:
    net = InPlace(how)
    assert equivariance_error(net, torch.randn(2, 3, 8, 8)) > 0.1
    assert not certify(net, X).proved


def test_random_numbers_are_no_constants() -> None:
    assert not certify(Function(lambda _, x: x * torch.rand(3, 1, 1)), X).proved
    assert certify(Function(lambda _, x: x + torch.rand_like(x)), X).equivariant


def test_indices_that_depend_on_the_data() -> None:
    assert certify(Function(lambda _, x: x.gather(3, center(x, 3).argsort(3))), X).equivariant
    assert not certify(Function(lambda _, x: x.gather(1, center(x, 3).argsort(1))), X).proved
    assert certify(Function(lambda _, x: x[:, torch.tensor([0, 1, 2])]), X).equivariant


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, [8], None, x[0, 0, 0]),
        lambda x: F.layer_norm(center(x, 3), [8], x[0, 0, 0]),
        lambda x: F.group_norm(x, 3, None, x[0, :, 0, 0]),
        lambda x: F.instance_norm(x, weight=x[0, :, 0, 0]),
        lambda x: F.batch_norm(center(x, 3), torch.zeros(3), torch.ones(3), None, x[0, :, 0, 0]),
        lambda x: F.batch_norm(torch.ones(2, 3, 8, 8), x[0, :, 0, 0], torch.ones(3)),
        lambda x: F.conv2d(torch.ones(1, 3, 8, 8), x[:, :, :1, :1]),
        lambda x: F.conv2d(center(x, 3), torch.ones(2, 3, 1, 1), x[:, 0, 0, 0]),
        lambda x: F.prelu(center(x, 3), x[0, :, 0, 0]),
        lambda x: torch.where(x > 0, 1.0, 2.0),
        lambda x: torch.addmm(x[0, 0], center(x, 3)[0, 0], center(x, 3)[1, 0]),
    ],
)
def test_parameters_that_follow_the_offset(function) -> None:
    net = Function(lambda _, x: function(x))
    assert not certify(net, X).proved


def test_small_leaks_are_not_rounding() -> None:
    """A response of 1e-12 is lost by a nonlinearity like any other, since a later layer may make it large."""
    leak = Function(lambda _, x: (center(x, 3) + 1e-12 * x).relu() * 1e12)
    assert not certify(leak, X).proved


def test_weights_projected_in_single_precision_need_a_tolerance() -> None:
    net = nn.Sequential(nn.Conv2d(3, 9, 3), lfnn.ReLU(), nn.Conv2d(9, 3, 3))
    project_(net)
    assert not certify(net, X).proved
    assert certify(net, X, tolerance=1e-5).equivariant
    assert certify(net.double(), X.double(), tolerance=1e-12).proved is False
    project_(net)
    assert certify(net, X.double()).equivariant


# --- mutations: a network that is proved, with one thing changed, is not.


def plain_network() -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(3, 9, 3, padding=1, padding_mode="replicate"),
        lfnn.BatchNorm2d(9),
        lfnn.ReLU(),
        nn.Conv2d(9, 6, 3, padding=1, padding_mode="reflect"),
        lfnn.Residual(nn.Sequential(nn.Conv2d(6, 6, 1), lfnn.Tanh())),
    ).double()
    return project_(net).eval()


def test_unmutated_network_is_proved() -> None:
    assert certify(plain_network(), X.double()).equivariant


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("row", [0, 2, 5])
def test_one_weight_row_flipped(index: int, row: int) -> None:
    net = plain_network()
    with torch.no_grad():
        net[index].weight[row] *= -1
    certificate = certify(net, X.double())
    assert not certificate.proved and certificate.breaks[0].module == str(index)
    assert equivariance_error(net, torch.randn(2, 3, 8, 8)) > 1e-3


@pytest.mark.parametrize("index", [0, 3])
def test_one_padding_mode_changed(index: int) -> None:
    net = plain_network()
    old = net[index]
    net[index] = nn.Conv2d(old.in_channels, old.out_channels, 3, padding=1).double()
    net[index].load_state_dict(old.state_dict())
    certificate = certify(net, X.double())
    assert "zero padding" in certificate.breaks[0].why and certificate.breaks[0].module == str(index)


@pytest.mark.parametrize("index", [1, 2])
def test_one_missing_centering(index: int) -> None:
    net = plain_network()
    plain = {1: nn.BatchNorm2d(9), 2: nn.ReLU()}[index].double().eval()
    if index == 1:
        plain.running_var.uniform_(0.5, 2)
    net[index] = plain
    certificate = certify(net, X.double())
    assert not certificate.proved and certificate.breaks[0].module == str(index)


def test_shortcut_that_is_not_centered() -> None:
    net = plain_network()
    net[4] = Function(lambda s, x: x + s.body(x))
    net[4].body = plain_network()[4].f
    certificate = certify(net, X.double())
    assert "sum of two equivariant values: response 2" in certificate.breaks[0].why


# --- the report


def test_table_lists_every_module() -> None:
    net = nn.Sequential(lfnn.Conv2d(3, 6, 3), nn.ReLU())
    table = certify(net, X).table().splitlines()
    assert table[0].split() == ["module", "type", "response"]
    assert any(line.split() == ["0", "Conv2d", "equivariant"] for line in table)
    assert any(line.split() == ["1", "ReLU", "broken"] for line in table)


def test_models_that_cannot_be_exported_say_so() -> None:
    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"Decides cannot be exported"):
        certify(Decides(), X)
    with pytest.raises(ValueError, match="no offset can be added"):
        certify(nn.Embedding(4, 3), torch.zeros(2, 3, dtype=torch.int64))


def test_adapter_written_by_hand() -> None:
    def adapter(_: nn.Module, x: Tensor) -> Tensor:
        offset = group_pool(x, 3, "max", "pixel")
        return add_offset(torch.sin(add_offset(x, -offset, 3)), offset, 3)

    assert certify(Function(adapter), X).equivariant


# --- the command


def runner(*arguments: str):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def good() -> nn.Module:
    return nn.Sequential(lfnn.Conv2d(3, 6, 3, padding=1), lfnn.ReLU())


def bad() -> nn.Module:
    return nn.Sequential(lfnn.Conv2d(3, 6, 3, padding=1), nn.ReLU())


def test_command_proves_and_exits_with_0() -> None:
    result = runner(f"{__name__}:good", "--input", "1,3,8,8", "--table")
    assert result.exit_code == 0 and "equivariant in evaluation mode" in result.output and "Conv2d" in result.output


def test_command_names_the_fault_and_exits_with_1() -> None:
    result = runner(f"{__name__}:bad", "--input", "1,3,8,8")
    assert result.exit_code == 1 and "ReLU of an equivariant value" in result.output


def good_for_planes() -> nn.Module:
    return wrap(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()), field=1)


def test_command_proves_fields() -> None:
    arguments = (f"{__name__}:good_for_planes", "--input", "1,3,8,8", "--field")
    proved, not_proved = runner(*arguments, "1"), runner(*arguments, "2")
    assert proved.exit_code == 0 and "invariant to every light that is a plane in log RGB" in proved.output
    assert not_proved.exit_code == 1 and "field=2" in not_proved.output


@pytest.mark.parametrize(
    "arguments", [("nowhere:x", "--input", "1,3"), ("torch", "--input", "1"), (f"{__name__}:good", "--input", "a")]
)
def test_command_explains_wrong_arguments(arguments: tuple[str, ...]) -> None:
    assert runner(*arguments).exit_code == 2


def test_public_names() -> None:
    assert isinstance(certify(nn.Identity(), X), Certificate)
