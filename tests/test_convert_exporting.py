"""Conversion: one quick export, for any batch and any positions; and whether it computes what its network computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

from lightfast._convert import convert, exporting, graph
from lightfast._convert.exporting import ways
from lightfast._convert.graph import plain_graph
from tests import zoo
from tests.zoo import kinds
from tests.zoo.kinds import Does
from tests.zoo.steps import images


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each export, whether it was for symbols."""
    seen: list[bool] = []
    original = exporting.export

    def counted(*args: object, **options: object) -> ExportedProgram:
        seen.append(bool(options))
        return original(*args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(exporting, "export", counted)
    return seen


def test_attention_is_exported_once_and_takes_any_batch(exports: list[bool]) -> None:
    vit = convert(zoo.ViT(), images(16)).eval()
    assert exports == [False] and vit(images(16, 5)).shape == (5, 10)


def test_positions_are_no_symbols_where_no_size_is_written(exports: list[bool]) -> None:
    class Excites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.gate = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return x * self.gate(x.mean((2, 3)).view(-1, 6)).sigmoid().view(-1, 6, 1, 1)

    net = convert(Excites(), images(8)).eval()
    assert exports == [False] and net(images(12, 5)).shape == (5, 6, 12, 12)


def test_positions_are_symbols_where_sizes_are_written(exports: list[bool]) -> None:
    def resize(y: Tensor) -> Tensor:
        return F.interpolate(F.max_pool2d(y, 2), size=y.shape[-2:], mode="nearest").reshape(y.shape[0], 6, -1)

    net = convert(Does(resize), images(8)).eval()
    assert exports == [True] and net(images(12, 5)).shape == (5, 6, 144)


OF_THE_BATCH = {
    "its inverse": lambda y: y * (1 / y.shape[0]),
    "one less": lambda y: y / (y.shape[0] - 1),
    "its root": lambda y: y / y.shape[0] ** 0.5,
    "halves swapped": lambda y: torch.cat([y[y.shape[0] // 2 :], y[: y.shape[0] // 2]]),
    "the first half": lambda y: y[: y.shape[0] // 2],
    "a fourth of it": lambda y: y * (y.shape[0] // 4),
    "its negative": lambda y: y * -y.shape[0],
    "a tensor": lambda y: y / torch.tensor(y.shape[0]),
    "a part of a tensor": lambda y: y / torch.tensor([y.shape[0], 1.0])[0],
    "of numpy": lambda y: y * (np.prod(y.shape[:1]) // 2),
    "what looks like twice as many": lambda y: y * (2 * exporting._MANY),
    "its square": lambda y: y.mean((2, 3)) @ y.mean((2, 3)).t().repeat(1, y.shape[0]),
    "groups of images": lambda y: y.view(2, y.shape[0] // 2, *y.shape[1:]).mean(0),
}


@pytest.mark.parametrize("function", OF_THE_BATCH.values(), ids=OF_THE_BATCH)
def test_numbers_made_of_the_number_of_images(function: Callable[[Tensor], Tensor]) -> None:
    model = Does(function)
    network, _ = plain_graph(model, (torch.zeros(2, 3, 5, 5),), {})
    for number in (2, 4, 6):
        x = torch.randn(number, 3, 5, 5)
        torch.testing.assert_close(network(x), model(x))


POSITIONS = {
    "clamp": lambda y: y.clamp(max=y.shape[3] / 16),
    "inverse": lambda y: y * (1 / y.shape[3]),
}


@pytest.mark.parametrize("function", POSITIONS.values(), ids=POSITIONS)
def test_numbers_made_of_the_size_of_the_image(function: Callable[[Tensor], Tensor]) -> None:
    model, x = Does(function), torch.randn(3, 3, 12, 10)
    network, fixed = plain_graph(model, (torch.zeros(2, 3, 8, 8),), {})
    torch.testing.assert_close(network(x), model(x))
    assert not fixed


def test_number_of_images_that_torch_makes_a_constant_of_is_said() -> None:
    model = Does(lambda y: y * torch.as_tensor(y.shape[0]))
    network, fixed = plain_graph(model, (torch.zeros(2, 3, 5, 5),), {})
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(network(x), model(x))
    assert fixed == (exporting.FIXED_BATCH,)


OF_THREE = {
    "more than four": (lambda y: y * 2 if y.shape[0] > 4 else y, "at most 4 images"),
    "one": (lambda y: y * 2 if y.shape[0] == 1 else y, "two images or more"),
    "at least two": (lambda y: y * max(y.shape[0], 2), "two images or more"),
}


@pytest.mark.parametrize(("function", "said"), OF_THREE.values(), ids=OF_THREE)
def test_decision_by_the_number_of_images_is_said(function: Callable[[Tensor], Tensor], said: str) -> None:
    model, x = Does(function), torch.randn(3, 3, 5, 5)
    network, (fixed,) = plain_graph(model, (torch.zeros(2, 3, 5, 5),), {})
    assert said in fixed
    torch.testing.assert_close(network(x), model(x))


def test_sizes_that_become_those_of_many_images_by_themselves() -> None:
    class Tokens(nn.Module):
        """28 x 36 positions and a class token are 1009."""

        def __init__(self) -> None:
            super().__init__()
            self.patches, self.token = nn.Conv2d(3, 6, 1), nn.Parameter(torch.zeros(1, 1, 6))

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
            return tokens.reshape(tokens.shape[0] * tokens.shape[1], 6).view(tokens.shape)

    model, x = Tokens(), torch.randn(3, 3, 28, 36)
    network, _ = plain_graph(model, (torch.zeros(2, 3, 28, 36),), {})
    torch.testing.assert_close(network(x), model(x))


HIDDEN_SIZES = {
    "one axis pooled": lambda y: y * F.adaptive_avg_pool2d(y, (None, 1)),
    "response norm": lambda y: F.local_response_norm(y, 3),
    "unpooling": lambda y: F.max_unpool2d(*F.max_pool2d(y, 2, return_indices=True), 2),
    "half the size": lambda y: F.interpolate(y, scale_factor=0.5, recompute_scale_factor=True),
}


@pytest.mark.parametrize("function", HIDDEN_SIZES.values(), ids=HIDDEN_SIZES)
def test_sizes_that_functions_of_torch_compute(function: Callable[[Tensor], Tensor]) -> None:
    model, x = Does(function), torch.randn(3, 3, 12, 10)
    network, fixed = plain_graph(model, (torch.zeros(2, 3, 8, 8),), {})
    assert not fixed
    torch.testing.assert_close(network(x), model(x))


DECISIONS = {
    "padding": lambda y: F.pad(y, (0, -y.shape[3] % 4)) if y.shape[3] % 4 else y,
    "pooling": lambda y: F.avg_pool2d(y, 2) if y.shape[2] > 10 else y,
    "a far bound": lambda y: y.relu() if y.shape[2] > 16 else y,
    "only values": lambda y: y * (2 if y.shape[2] % 2 else 1),
    "attention": lambda y: F.multi_head_attention_forward(
        *[y.flatten(2).permute(2, 0, 1)] * 3, 6, 2, torch.ones(18, 6), None, None, None, False, 0.0, torch.eye(6), None
    )[0],
    "what torch has no symbol for": lambda y: F.adaptive_max_pool2d(y, (None, 2)),
}


@pytest.mark.parametrize("function", DECISIONS.values(), ids=DECISIONS)
def test_what_is_for_the_size_of_the_example_is_said(function: Callable[[Tensor], Tensor]) -> None:
    model, x = Does(function), torch.randn(3, 3, 8, 8)
    network, fixed = plain_graph(model, (torch.zeros(2, 3, 8, 8),), {})
    assert fixed == (exporting.FIXED_SIZE,)
    torch.testing.assert_close(network(x), model(x))


def _two_heads(y: Tensor, training: bool) -> Tensor | tuple[Tensor, Tensor]:
    return (y, y.mean(1)) if training else y


IN_TRAINING = {
    "two heads": _two_heads,
    "scores": lambda y, training: y if training else y.softmax(1),
    "a branch": lambda y, training: y if training else y.relu(),
}


@pytest.mark.parametrize("function", IN_TRAINING.values(), ids=IN_TRAINING)
def test_network_that_does_something_else_in_training(function: Callable[[Tensor, bool], Tensor]) -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return function(self.conv(x), self.training)

    model, x = Decides().eval(), torch.randn(2, 3, 8, 8)
    with pytest.raises(ValueError, match="in training it does something else"):
        plain_graph(model, (x,), {})
    network, _ = plain_graph(model, (x,), {}, training=False)
    torch.testing.assert_close(network(x), model(x))
    notes = convert(model, x, output="equivariant").conversion.notes
    assert "in training it does what it does in evaluation" in notes[0]


def test_norms_and_dropout_are_compared_as_in_evaluation(exports: list[bool]) -> None:
    layers = nn.BatchNorm2d(6), nn.InstanceNorm2d(6, track_running_stats=True), nn.InstanceNorm2d(6), nn.Dropout(0.5)
    model = nn.Sequential(nn.Conv2d(3, 6, 1), *layers, nn.BatchNorm2d(6, track_running_stats=False))
    model(images(8))
    plain_graph(model, (images(8),), {})
    assert exports == [False]


def test_what_does_not_compute_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a weight of zero, too."""

    def errs(graph: torch.fx.Graph, training: bool) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.scale = nn.Conv2d(3, 6, 1), nn.Parameter(torch.zeros(6, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) + self.scale * self.conv(x).relu()

    monkeypatch.setattr(graph, "make_pure", errs)
    model = Residual()
    with pytest.raises(ValueError, match="is not what it computes: for 3 images it gives other values"):
        plain_graph(model, (images(8),), {})
    assert not model.scale.any()


@pytest.mark.parametrize(("taken", "seen"), [(1, {65}), (32, {65, 64}), (128, {65, 64, 128})])
def test_large_images_are_compared_in_smaller_ones(taken: int, seen: set[int]) -> None:
    """As far as a network takes them, here in multiples of a number."""
    sizes = set[int]()

    class Multiples(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            if type(x) is Tensor and not x.is_meta:
                sizes.add(x.shape[2])
            if x.shape[2] % taken:
                raise ValueError("cannot be halved as often")
            return self.conv(x)

    plain_graph(Multiples(), (images(128),), {})
    assert sizes == seen


def test_comparing_changes_nothing() -> None:
    class Counts(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 1)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return self.conv(x)

    model, x = Counts(), images(8)
    before = torch.get_rng_state()
    plain_graph(model, (x,), {})
    assert model.calls == 0 and torch.equal(before, torch.get_rng_state())


def test_networks_that_draw_in_evaluation_agree_with_the_same_seed() -> None:
    model = Does(lambda y: y + torch.randn_like(y) * y.std())
    network, _ = plain_graph(model, (images(8),), {}, training=False)
    x = torch.randn(3, 3, 8, 8)
    torch.manual_seed(0)
    expected = model(x)
    torch.manual_seed(0)
    torch.testing.assert_close(network(x), expected)


def test_recorded_shapes_are_those_of_two_images() -> None:
    def of_the_batch(y: Tensor) -> tuple[Tensor, Tensor]:
        z = y.mean((2, 3))
        return torch.cat([z, z[:1]]), (z @ z.t()).view(-1)

    network, _ = plain_graph(Does(of_the_batch), (images(8),), {})  # pyright: ignore[reportArgumentType]
    (outputs,) = next(iter(reversed(network.graph.nodes))).args
    assert [tuple(node.meta["val"].shape) for node in outputs] == [(3, 6), (4,)]


def test_what_torch_makes_a_number_of_the_size_of_the_image_is_said() -> None:
    net = convert(Does(lambda y: F.max_pool2d(y, y.shape[2:])), images(8))
    assert "images of the example's size only" in str(net.conversion)


def test_network_that_goes_through_its_images_one_by_one() -> None:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.conv(x[i : i + 1])[0] for i in range(x.shape[0])])

    net = convert(Loops(), images(8)).eval()
    assert net.conversion.certificate.equivariant and net(images(8)).shape == (2, 6, 8, 8)
    assert "only batches of two images" in str(net.conversion)


def test_sizes_that_could_be_taken_for_many_images() -> None:
    """A network with 1009 features is exported for a symbol."""
    model = nn.Sequential(nn.Conv2d(3, exporting._MANY, 1), nn.ReLU(), nn.Conv2d(exporting._MANY, 3, 1))
    assert next(ways(model, (images(4),), {}, 1)).export().batch is None


def test_tensors_that_cannot_be_traced_are_refused() -> None:
    def pads(y: Tensor) -> Tensor:
        return torch.cat([y.data, torch.zeros(y.shape[0], 3, *y.shape[2:])], 1)

    with pytest.raises(ValueError, match="cannot be exported"):
        convert(Does(pads), images(8))


def test_modules_that_draw_random_numbers_are_copies() -> None:
    model = zoo.ConvNeXt().eval()
    convert(model, images(32), widths="keep").train()
    assert not any(module.training for module in model.modules())


def test_kinds_keep_their_buffers() -> None:
    """What looks at a network shares its statistics, and leaves them as they are."""
    model = kinds.WritesIntoParts()
    convert(model, images(8))
    assert model.norm.num_batches_tracked == 0 and not model.norm.state_dict()["running_mean"].any()
