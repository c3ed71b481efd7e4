"""Conversion: well-known networks and those of third parties, certified, trained, and measured."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lightfast.nn as lfnn
from lightfast import models
from lightfast._certify import certify
from lightfast._convert import Conversion, convert
from lightfast._convert.blocks import GroupScores
from lightfast._convert.progress import Progress
from lightfast._convert.sweep import measured_error
from lightfast._equivariance import equivariance_error
from tests import zoo
from tests.zoo import kinds
from tests.zoo.steps import images, train
from tests.zoo.table import HEADER, NETWORKS, Entry, row

PAGE = Path(__file__).parents[1] / "docs" / "convert.md"

CASES = [
    pytest.param(entry, id=f"{entry.source.split()[0]}-{entry.name}", marks=() if entry.quick else pytest.mark.slow)
    for entry in NETWORKS
]


@pytest.mark.parametrize("entry", CASES)
def test_network_converts_as_the_table_says(entry: Entry) -> None:
    line, net = row(entry)
    if os.environ.get("LIGHTFAST_WRITE_TABLE"):
        _write(line)
    assert line in PAGE.read_text()
    if net is None:
        return
    layers = [name for name, module in net.named_modules() if isinstance(module, lfnn.Conv2d | lfnn.Linear)]
    assert layers and set(layers) <= {name for name, _ in entry.build().named_modules(remove_duplicate=False)}
    train(net, images(entry.size))
    certificate = certify(net.eval(), images(entry.size))
    assert certificate.outputs and not certificate.breaks, str(certificate)
    assert all(output.response.kind in ("equivariant", "invariant") for output in certificate.outputs)


def _write(line: str) -> None:
    """Put a line into the table. Run in one process (`-n 0`), with LIGHTFAST_WRITE_TABLE set."""
    before, rest = PAGE.read_text().split(HEADER + "\n")
    lines = rest.splitlines(keepends=True)
    count = next(index for index, old in enumerate(lines) if not old.startswith("|"))
    known = {_key(old): old for old in [*lines[:count], line + "\n"]}
    order = [known[key] for entry in NETWORKS if (key := _key(f"| {entry.name} | {entry.source} |")) in known]
    PAGE.write_text(before + HEADER + "\n" + "".join(order + lines[count:]))


def _key(line: str) -> str:
    return "|".join(line.split("|")[:3])


def test_table_lists_the_networks_that_are_tried() -> None:
    text = PAGE.read_text()
    assert HEADER in text
    for entry in NETWORKS:
        assert f"| {entry.name} | {entry.source} |" in text


@pytest.mark.parametrize("name", ["resnet20", "cerberus", "cerberus-local"])
def test_plain_networks_of_the_project_convert(name: str) -> None:
    output = "auto" if name == "resnet20" else "equivariant"
    net = convert(models.create(name, offset_groups=None), images(64), output=output)
    certificate = net.conversion.certificate
    assert certificate.invariant if name == "resnet20" else certificate.equivariant


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


@pytest.mark.parametrize("widths", ["multiple", "keep"])
@pytest.mark.parametrize("weights", ["project", "init"])
def test_converted_network_is_measured_invariant(widths: str, weights: str) -> None:
    net = convert(small(), images(), widths=widths, weights=weights).eval()
    assert net.conversion.certificate.invariant and net.conversion.training_certificate.invariant
    assert equivariance_error(net, images(count=3), offsets=10.0, expect="invariant") < 1e-10
    assert net.get_submodule("0").weight.shape[0] == (9 if widths == "multiple" else 8)


def test_report_says_what_was_replaced() -> None:
    report = convert(small(), images()).conversion
    assert isinstance(report, Conversion)
    assert {(change.path, change.after) for change in report.changes} >= {
        ("0", "Conv2d"),
        ("1", "BatchNorm2d"),
        ("2", "ReLU"),
        ("3", "Dropout"),
        ("6", "Linear"),
        ("6_scores", "GroupScores"),
    }
    assert report.widths["0.weight"] == ((8, 3, 3, 3), (9, 3, 3, 3))
    assert "class scores -> GroupScores" in str(report) and str(report).startswith("invariant in evaluation mode")
    assert "its weights are kept on the constraint" in str(report.changes[0])


def test_given_model_is_untouched() -> None:
    model = small().train()
    before, kinds = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    convert(model, images())
    assert model.training and kinds == [type(m) for m in model.modules()]
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_conversion_of_an_equivariant_network_is_a_copy() -> None:
    model = nn.Sequential(lfnn.Conv2d(3, 6, 3, padding=1), lfnn.ReLU())
    net = convert(model, images())
    assert net is not model and [type(m) for m in net.modules()] == [type(m) for m in model.modules()]
    assert "already" in net.conversion.notes[0]
    once = convert(small(), images())
    twice = convert(once, images())
    x = images()
    assert torch.equal(once.eval()(x), twice.eval()(x))


def test_layers_switch_with_the_mode() -> None:
    net = convert(small(), images())
    x = images(count=4)
    net.train()
    assert not torch.equal(net(x), net(x))
    moved = net.get_submodule("1").running_mean.clone()
    net(x + 1)
    assert not torch.equal(moved, net.get_submodule("1").running_mean)
    net.eval()
    assert torch.equal(net(x), net(x))


def test_mode_of_the_model_is_kept() -> None:
    assert not convert(small().eval(), images()).training
    assert convert(small().train(), images()).training


def test_it_stays_equivariant_after_training() -> None:
    net = convert(zoo.UNet(base=4), images())
    train(net, images(), steps=5)
    assert certify(net.train(), images()).equivariant
    assert certify(net.eval(), images()).equivariant
    assert equivariance_error(net, images(), offsets=10.0) < 1e-9


def test_network_of_our_layers_but_for_one_keeps_its_function() -> None:
    model = nn.Sequential(lfnn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), lfnn.Conv2d(6, 3, 1)).double()
    net = convert(model, images().double())
    wanted = nn.Sequential(model[0], lfnn.ReLU(), model[2])
    x = images().double()
    assert net.conversion.certificate.equivariant
    assert torch.allclose(net(x), wanted(x))


def test_weights_computed_in_forward_are_projected() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 6, 3, padding=1))
    net = convert(nn.Sequential(normed, nn.ReLU(), nn.Conv2d(6, 3, 1)), images())
    assert net.conversion.certificate.equivariant
    train(net, images())
    assert certify(net, images()).equivariant


def test_pretrained_scores_start_as_projected_copies() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    net = convert(model, torch.zeros(2, 3, 2, 2))
    layer = net.get_submodule("1")
    assert layer.weight.shape == (12, 12) and isinstance(net.get_submodule("1_scores"), GroupScores)
    assert torch.allclose(layer.bias, model[1].bias.repeat(3))


@pytest.mark.parametrize(
    ("output", "kind", "features"),
    [
        ("auto", "equivariant", 3),
        ("auto", "invariant", 6),
        ("auto", "invariant", 7),
        ("scores", "invariant", 3),
        ("equivariant", "equivariant", 6),
    ],
)
def test_output_of_a_dense_network(output: str, kind: str, features: int) -> None:
    net = convert(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, features, 1)), images(), output=output
    ).eval()
    assert net.conversion.certificate.response.kind == kind
    said = "follows the light" if kind == "equivariant" else "scores, which do not move"
    change = "as asked" if output != "auto" else f"output={'scores' if kind == 'equivariant' else 'equivariant'!r}"
    assert said in str(net.conversion) and change in str(net.conversion)
    assert net(images()).shape[1] == features


def test_fewer_classes_than_groups_are_scores() -> None:
    net = convert(zoo.UNet(base=4, out=1), images()).eval()
    assert net.conversion.certificate.invariant and net(images()).shape == (2, 1, 16, 16)


def test_regression_can_follow_the_light() -> None:
    net = convert(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
        images(),
        output="equivariant",
    )
    assert net.conversion.certificate.equivariant


class Odd(nn.Module):
    """Functional code of many kinds in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding="same")
        self.scale = nn.Parameter(torch.ones(12, 1, 1))
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=3)
        self.register_buffer("shift", torch.randn(12, 1, 1))
        self.head = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv(x), 0.2)
        y = self.scale * x + self.shift
        y = F.relu(self.grouped(y)).pow(2)
        y = y - y.mean((2, 3), keepdim=True)
        y = y / (y.std(1, keepdim=True) + 1e-3)
        a, b = y.chunk(2, 1)
        y = torch.cat([a * torch.sigmoid(b), torch.maximum(a, b)], 1)
        y = F.pad(y, [1, 1, 1, 1])
        y = F.interpolate(F.avg_pool2d(y, 3, 1), scale_factor=2.0, mode="nearest")
        return self.head(torch.cat([y, F.interpolate(x, size=y.shape[2:])], 1))


def test_functional_code_is_handled() -> None:
    net = convert(Odd(), images())
    assert net.conversion.certificate.equivariant and net.conversion.training_certificate.equivariant
    train(net, images())
    assert equivariance_error(net.eval(), images(), offsets=5.0) < 1e-9


def test_any_batch_and_any_positions() -> None:
    net = convert(zoo.UNet(base=4), images()).eval()
    assert net(images(24, 5)).shape == (5, 3, 24, 24)
    vit = convert(zoo.ViT(), images()).eval()
    assert vit(images(16, 5)).shape == (5, 10)


def test_positions_of_the_example_alone_where_any_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightfast._convert import exporting

    monkeypatch.setattr(exporting, "_SECONDS", 0.0)
    monkeypatch.setattr(exporting, "_PATIENCE", 1.0)
    net = convert(kinds.SlowToFollow(5.0), images(8))
    assert net.conversion.certificate.equivariant and net(images(8, 3)).shape == (3, 3, 8, 8)
    with pytest.raises(RuntimeError, match="shape"):
        net(images(12))


def test_residual_sums_are_centered_on_one_side() -> None:
    net = convert(zoo.ResNet(), images(32))
    sums = [change for change in net.conversion.changes if change.before == "sum of two maps"]
    assert len(sums) == 2 and all("shortcut" in change.path for change in sums)


def test_gates_and_attention_stay_plain_inside_an_adapter() -> None:
    gates = convert(zoo.EfficientNet(), images()).conversion.kept
    assert {"mul", "sigmoid"} & {change.before for change in gates}
    net = convert(zoo.ViT(), images())
    assert isinstance(net.get_submodule("layers.0.self_attention.in_proj"), nn.Linear)
    assert not isinstance(net.get_submodule("layers.0.self_attention.in_proj"), lfnn.Linear)
    assert isinstance(net.get_submodule("layers.0.mlp.0"), lfnn.Linear)


def test_modules_named_in_keep_stay_plain() -> None:
    net = convert(zoo.UNet(base=4), images(), keep="bottom")
    assert type(net.get_submodule("bottom.0")) is nn.Conv2d
    assert isinstance(net.get_submodule("down1.0"), lfnn.Conv2d)
    assert net.conversion.certificate.proved


def test_pooling_at_each_pixel() -> None:
    net = convert(zoo.UNet(base=4), images(), scope="pixel")
    assert net.get_submodule("down1.2").scope == "pixel" and net.conversion.certificate.equivariant


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular", "mean"])
def test_padding_modes(mode: str) -> None:
    net = convert(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()), images(), padding_mode=mode)
    assert net.get_submodule("0").padding_mode == mode and net.conversion.certificate.equivariant


def test_shared_layers_stay_shared() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.again(F.relu(self.again(F.relu(self.first(x)))))

    net = convert(Shared(), images())
    assert sum(1 for module in net.modules() if isinstance(module, nn.Conv2d)) == 2

    class Both(nn.Module):
        """One layer on a map and in a gate, so that it is there in two forms."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.conv(x))
            return y * torch.sigmoid(self.norm(self.conv(y)))

    net = convert(Both(), images())
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 2 and convolutions[0].weight is convolutions[1].weight
    assert len(list(net.parameters())) == 4


@pytest.mark.parametrize("always", [True, False])
def test_networks_that_draw_random_numbers_do_what_they_do_in_evaluation(always: bool) -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            code = self.encode(x).relu()
            if self.training or always:
                code = code + torch.randn_like(code) * code.mul(0.5).exp()
            return self.decode(code)

    net = convert(Draws(), images())
    (note,) = net.conversion.notes
    assert note.startswith("in training it does what it does in evaluation") and "draws random numbers" in note
    assert net.conversion.certificate.equivariant and measured_error(net, images()) < 1e-12
    x = images()
    assert (net(x) - net(x)).abs().max().gt(1e-3) == always


def test_what_cannot_be_converted_is_explained() -> None:
    class Decides(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match="cannot be exported"):
        convert(Decides(), images())


def test_progress_is_shown_once_it_takes_long() -> None:
    import io
    import time

    shown = io.StringIO()
    with Progress("converting", after=0.2, stream=shown, always=True) as progress:
        progress("first")
        assert not shown.getvalue()
        time.sleep(0.5)
        progress("second")
    assert shown.getvalue() == "converting: first\nconverting: second\n"
    with Progress("converting", after=0.0, stream=io.StringIO()) as progress:
        assert not progress.shown


@pytest.mark.slow
def test_proof_of_a_converted_resnet50_takes_seconds() -> None:
    import time

    from tests.zoo.convolutional import Bottleneck

    net = convert(zoo.ResNet(Bottleneck, (3, 4, 6, 3), 64, 1000), torch.zeros(1, 3, 224, 224)).eval()
    start = time.process_time()
    assert certify(net, torch.zeros(1, 3, 224, 224)).invariant
    # Twenty seconds on two cores.
    assert time.process_time() - start < 40
