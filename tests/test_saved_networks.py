"""Networks saved with their graph: what comes back, and what strangers may not write into one."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import lightfast as lf
from lightfast._convert.capture import capture
from lightfast._convert.describe import Undescribed, describe, restore
from lightfast._pipelines.network import Network
from lightfast.light import relight
from tests.zoo.convolutional import StochasticDepth

CLASSES = [f"class {number}" for number in range(10)]


def images(count: int = 3, size: int = 16) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0)) / 2 + 0.5


class Small(nn.Module):
    """A network with a constant, a parameter of its own, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6, 10)
        self.scale = nn.Parameter(torch.ones(6, 1, 1))
        self.weights: Tensor
        self.register_buffer("weights", torch.linspace(0, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x))) * self.scale
        x = self.twice(torch.relu(self.twice(x)))
        return self.head((x * self.weights).mean((2, 3)))


class Noisy(nn.Module):
    """Something that differs in training in a way of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x


@pytest.fixture(scope="module")
def converted() -> nn.Module:
    torch.manual_seed(0)
    return lf.convert(Small(), torch.zeros(1, 3, 16, 16))


def again(model: nn.Module) -> nn.Module:
    """The network from its description, through JSON, with its weights."""
    made = restore(json.loads(json.dumps(describe(model))))
    made.load_state_dict(model.state_dict())
    return made.train(model.training)


def test_a_converted_network_comes_back_and_goes_on_training(converted: nn.Module) -> None:
    net, x = copy.deepcopy(converted).train(), torch.randn(4, 3, 16, 16)
    back = again(net)
    for one, other in ((net, back), (net.eval(), back.eval())):
        torch.testing.assert_close(other(x), one(x), rtol=0, atol=0)
    assert [name for name, _ in back.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert lf.certify(back, x[:2]).invariant
    for one in (net.train(), back.train()):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        one(x).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(back.eval()(x), net.eval()(x), rtol=0, atol=0)


def test_any_network_is_captured_with_its_modes_and_names() -> None:
    model = nn.Sequential(Small(), nn.Dropout(0.5))
    captured = again(capture(model, torch.zeros(2, 3, 16, 16)))
    x = torch.randn(5, 3, 16, 16)
    assert dict(captured.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert captured.training
    torch.testing.assert_close(captured.eval()(x), model.eval()(x))
    outputs = []
    for net in (captured.train(), model.train()):
        torch.manual_seed(1)
        outputs.append(net(x))
    torch.testing.assert_close(*outputs)


@pytest.mark.filterwarnings("default::UserWarning")
def test_what_differs_in_training_in_its_own_way_is_saved_as_in_evaluation() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Noisy()).train()
    with pytest.warns(UserWarning, match="saved as it is in evaluation"):
        captured = capture(model, torch.zeros(2, 3, 8, 8))
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(captured.train()(x), model.eval()(x))


def test_parameters_under_two_names_stay_one(converted: nn.Module) -> None:
    net = copy.deepcopy(converted)
    net.get_submodule("first").bias = net.get_submodule("twice").bias
    back = again(net)
    assert back.get_submodule("first").bias is back.get_submodule("twice").bias


def test_stochastic_depth_keeps_both_modes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), StochasticDepth(0.5), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(1, 3, 8, 8))
    captured = again(capture(model, torch.zeros(2, 3, 8, 8)))
    x = torch.randn(64, 3, 8, 8)
    torch.testing.assert_close(captured.eval()(x), model.eval()(x))
    assert not torch.allclose(captured.train()(x), captured(x))


@pytest.mark.parametrize(
    "how", ["converted", *(pytest.param(how, marks=pytest.mark.slow) for how in ("wrapped", "plain"))]
)
def test_a_classifier_of_any_network_is_loaded_without_its_code(tmp_path: Path, converted: nn.Module, how: str) -> None:
    network = {"converted": converted, "wrapped": lf.wrap(Small()), "plain": Small()}[how]
    classifier = lf.Classifier(network, CLASSES, size=16).eval()
    assert classifier.config["color"] == ("srgb" if how == "plain" else "log")
    x = images()
    scores = classifier(x)
    if how != "plain":
        lit = relight(x, 0.6, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(classifier(lit), scores, atol=2e-3, rtol=0)
    folder = classifier.save(tmp_path / "run")
    torch.save({"x": x, "scores": scores}, tmp_path / "expected.pt")
    # In a process that cannot know this file, nor tests/zoo.
    code = (
        "import sys, torch, lightfast as lf\n"
        "known = torch.load(sys.argv[2])\n"
        "model = lf.load(sys.argv[1])\n"
        "assert torch.allclose(model(known['x']), known['scores'], atol=1e-6)\n"
        "assert 'tests' not in sys.modules and 'torch.export._trace' not in sys.modules\n"
        "print(model.config['model'], len(model.classes))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder, tmp_path / "expected.pt"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [type(network).__name__, "10"]


@pytest.mark.slow
def test_a_loaded_network_is_saved_and_exported_again(tmp_path: Path, converted: nn.Module) -> None:
    pytest.importorskip("onnxruntime")
    first = lf.load(lf.Classifier(converted, CLASSES, size=16).save(tmp_path / "a", half=True))
    second = lf.load(first.save(tmp_path / "b"))
    torch.testing.assert_close(second(images()), first(images()))
    assert lf.export(second, tmp_path / "net.onnx").difference < 1e-4


def test_a_network_by_itself_follows_the_light_after_loading(tmp_path: Path) -> None:
    seen = lf.color.srgb_to_log(images())
    net = lf.convert(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 1)), seen[:1])
    loaded = lf.load(lf.save(net, tmp_path / "net"))
    assert isinstance(loaded, Network)
    torch.testing.assert_close(loaded(seen), net.eval()(seen))
    assert "equivariant" in loaded.about["conversion"]
    assert lf.certify(loaded.network, seen).equivariant


def test_a_network_in_another_precision_keeps_it(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()
    x = images(size=8).double()
    loaded = lf.load(lf.save(net, tmp_path / "net", x))
    assert next(loaded.parameters()).dtype == torch.float64
    torch.testing.assert_close(loaded(x), net.eval()(x), rtol=0, atol=0)


def test_scores_are_found_in_what_networks_return(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Small()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"hidden": x, "logits": self.inner(x)}

    classifier = lf.Classifier(Named(), CLASSES, size=16).eval()
    assert classifier(images()).shape == (3, 10)
    torch.testing.assert_close(lf.load(classifier.save(tmp_path / "run"))(images()), classifier(images()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: lf.Classifier(Small(), CLASSES[:3])(images()), "3 classes: give as many names"),
        (lambda: lf.Classifier(Small(), CLASSES, offset_groups=3), "are for networks that a name makes"),
        (lambda: lf.Classifier(Small(), CLASSES).save("nowhere"), "give size="),
        (lambda: lf.save(Small(), "nowhere"), "give an example"),
        (lambda: describe(nn.Bilinear(2, 2, 2)), "Bilinear is none of the layers"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
    assert not Path("nowhere").exists()


def _set(described: Any, path: str, value: Any) -> None:
    *way, last = path.split("/")
    for key in way:
        described = described[int(key)] if isinstance(described, list) else described[key]
    described[int(last) if isinstance(described, list) else last] = value


EVIL = "__import__('os').system('touch evil')"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes/0/target", f"x=[{EVIL}]"),
        ("nodes/0/name", f"x={EVIL}"),
        ("nodes/0/op", "call_method"),
        ("nodes/1/target", f"first.__class__; {EVIL}"),
        ("nodes/1/kwargs", {f"a={EVIL}, b": 1}),
        ("nodes/1/args", [{"node": "later"}]),
        ("nodes/1/args", [{"dtype": "load"}]),
        ("nodes/1", {"op": "call_function", "name": "y", "target": "aten.from_file.default", "args": ["secret"]}),
        ("nodes/1", {"op": "call_function", "name": "y", "target": "aten.add_.Tensor"}),
        ("nodes/1", {"op": "call_function", "name": "y", "target": "python.eval", "args": ["1"]}),
        ("nodes/1", {"op": "call_function", "name": "y", "target": "os.system.default"}),
        ("name", f"X: {EVIL}\nclass Y"),
        ("modules", {f"a.{EVIL}": {"type": "ReLU"}}),
        ("modules", {"a": {"type": "os.system", "options": {"command": "touch evil"}}}),
        ("modules", {"a": {"type": "Linear", "options": {"in_features": 1, "out_features": 1, "hook": 3}}}),
        ("modules", {"a": {"type": "Linear", "options": {"in_features": -1, "out_features": "x"}}}),
        ("modules", {"a": {"type": "convert.Pool", "options": {"groups": {"groups": [[0, 10**12]], "of": 1}}}}),
        ("tensors", {"a": {"dtype": "float32", "shape": [10**12, 10**12]}}),
        ("shared", {"a": "b"}),
        ("type", ["Graph"]),
        ("nodes", 3),
    ],
)
def test_a_description_from_a_stranger_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, converted: nn.Module, path: str, value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    described = json.loads(json.dumps(describe(converted)))
    _set(described, path, value)
    with pytest.raises(ValueError):
        restore(described)(images())
    assert not (tmp_path / "evil").exists()


def test_a_description_asks_for_no_memory_before_there_are_weights(tmp_path: Path, converted: nn.Module) -> None:
    folder = lf.Classifier(converted, CLASSES, size=16).save(tmp_path / "run")
    about = json.loads((folder / "model.json").read_text())
    about["network"]["modules"]["head"]["options"]["in_features"] = 10**13
    (folder / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError):
        lf.load(folder)
    assert all(tensor.numel() < 10**6 for tensor in load_file(folder / "model.safetensors").values())


def test_foreign_modules_with_weights_are_refused_by_name(converted: nn.Module) -> None:
    net = copy.deepcopy(converted)
    net.set_submodule("head", nn.Bilinear(2, 2, 2))
    with pytest.raises(Undescribed, match=r"head.*Bilinear"):
        capture(net, None)
