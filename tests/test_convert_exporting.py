"""Conversion: one quick export, for any batch and any positions, of networks that write into their tensors."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from lightfast._convert import convert, exporting, graph
from lightfast._convert.blocks import StochasticDepth
from lightfast._convert.exporting import ways
from lightfast._convert.graph import plain_graph
from lightfast._convert.nodes import operation
from tests import zoo
from tests.zoo import kinds
from tests.zoo.steps import images


class Does(nn.Module):
    """A convolution, and what a function does to its map."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 6, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x))


def _transposed(y: Tensor) -> Tensor:
    y.transpose(1, 2)[:, 1:3, 2].mul_(3.0)
    return y + y.sum()


def _other_views(y: Tensor) -> Tensor:
    other, turned = y[:, 1], y.permute(0, 3, 1, 2)
    turned[:, 2] = 7.0
    other.add_(1)
    return y.sum(3) * other.mean() + turned.mean()


def _flat(y: Tensor) -> Tensor:
    flat = y.view(y.shape[0], -1)
    flat[:, ::2] = flat[:, 1::2]
    return y


def _looked_at_later(y: Tensor) -> Tensor:
    first = y[:, 0]
    y.mul_(2.0)
    return y + first[:, None]


def _mask(y: Tensor) -> Tensor:
    mask = torch.zeros(y.shape[-1], y.shape[-1])
    mask[1:, :2] = 1
    mask[-1] = torch.arange(y.shape[-1])
    mask.t()[0] += 5
    return y * mask


def _other_types_and_shapes(y: Tensor) -> Tensor:
    y[..., 0] = y[..., 0].double()
    y[:, 1:2].copy_(y[:, 0].unsqueeze(1))
    y[:, :2].copy_(torch.ones(1))
    y.unsqueeze(1)[:, 0, 1].sub_(2.0)
    return y


def _twins_of_other_names(y: Tensor) -> Tensor:
    halves = torch.arange(y.shape[-1]).to(y)
    halves //= torch.tensor(2.0)
    y.pow_(2).pow_(halves + 1).div_(2, rounding_mode="floor").masked_fill_(y > 2, 0.5)
    return y


def _double(y: Tensor) -> Tensor:
    y.mul_(torch.full((5,), 0.5, dtype=torch.float64)).masked_fill_(y > 1, 0.0)
    return F.conv2d(y, torch.ones(1, 6, 1, 1))


def _twice_into_a_view(y: Tensor) -> Tensor:
    view = y[:, 0]
    view.mul_(2)
    view.add_(1)
    y[:, 1].mul_(2).add_(1)
    return y + view[:, None]


def _overlapping(y: Tensor) -> Tensor:
    first, last = y[:, :3], y[:, 2:5]
    first.mul_(2)
    last.add_(1)
    first.sub_(3)
    return torch.cat([first, last, y], 1)


def _views_of_views(y: Tensor) -> Tensor:
    part = y[:, 1:5]
    every_other = part[:, ::2]
    turned = every_other.transpose(2, 3)
    turned[:, 0] = 4.0
    turned.mul_(2)
    every_other.add_(1)
    return y + part.mean() + every_other.mean()


def _loop(y: Tensor) -> Tensor:
    first = y[:, 0]
    for channel in range(1, 4):
        first += y[:, channel]
        view = y[:, channel]
        view.mul_(first)
        view += 1
    return y


def _shared_under_many_names(y: Tensor) -> Tensor:
    views = [y.mT, y.swapdims(1, 2), torch.moveaxis(y, 1, -1), y.ravel(), torch.tensor_split(y, 2, 1)[1]]
    views += [torch.einsum("bchw->bhwc", y), y.broadcast_to(y.shape), y.float(), F.dropout(y, 0.5, False)]
    y.mul_(2)
    return torch.cat([view.flatten(1) for view in (*views[:3], *views[4:])], 1) + views[3].mean()


def _written_under_many_names(y: Tensor) -> Tensor:
    y.swapdims(1, 2)[:, 0] = 3
    y.ravel()[::2] = 5
    y.mT[..., 1].mul_(2)
    F.dropout(y, 0.5, False).add_(1)
    y.type_as(y).mul_(3)
    return y


def _copied(y: Tensor) -> Tensor:
    copied = y.transpose(2, 3).contiguous()
    y.mul_(2.0)
    constant = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    constant[0] = 6
    return y + copied * constant


def _of_other_types(y: Tensor) -> Tensor:
    compared, counted, small = y.clone(), (y * 10).int(), (y * 10).to(torch.uint8)
    compared.gt_(0)
    counted.div_(3, rounding_mode="floor").bitwise_and_(3).add_(torch.ones(1, dtype=torch.int64))
    small.add_(torch.full((1,), 300))
    return compared + compared + counted.double().float() + small / 7


def _shape_changed(y: Tensor) -> Tensor:
    view = y[:, 0]
    y.unsqueeze_(1)
    y.mul_(2)
    return view * 2 + y.sum()


WRITES = [
    _double,
    _transposed,
    _twins_of_other_names,
    _other_views,
    _flat,
    _looked_at_later,
    _mask,
    _other_types_and_shapes,
    _twice_into_a_view,
    _overlapping,
    _views_of_views,
    _loop,
    _shared_under_many_names,
    _written_under_many_names,
    _copied,
    _of_other_types,
    _shape_changed,
]


def _assert_is_the_graph_of(model: nn.Module, x: Tensor, training: bool = True) -> nn.Module:
    """In pure operations, which give what the model gives, for other batches than the example's."""
    model.train(training)
    network = plain_graph(model, (torch.zeros(2, *x.shape[1:]),), {}, training=training).network
    assert not any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in network.graph.nodes)
    torch.testing.assert_close(network(x), model(x))
    return network


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
def test_writes_through_views_are_taken_apart(
    write: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda *_: pytest.fail("torch's own way takes longer"))
    torch.manual_seed(0)
    _assert_is_the_graph_of(Does(write), torch.randn(3, 3, 5, 5))


def _diagonal(y: Tensor) -> Tensor:
    y.diagonal(dim1=2, dim2=3).zero_()
    return y


def _split(y: Tensor) -> Tensor:
    first, last = torch.tensor_split(y, 2, 1)
    first.mul_(3)
    last.add_(first)
    return y


def _bits(y: Tensor) -> Tensor:
    y.view(torch.int32)[:, 0] = 0
    return y


def _strided(y: Tensor) -> Tensor:
    torch.as_strided(y, (y.shape[0], 3), (150, 1)).mul_(2)
    return y


def _several_at_once(y: Tensor) -> Tensor:
    torch._foreach_mul_([y[:, 0], y[:, 1]], 2.0)
    return y


LEFT_TO_TORCH = [_diagonal, _split, _bits, _strided, _several_at_once]


@pytest.mark.parametrize("write", LEFT_TO_TORCH, ids=lambda write: write.__name__.strip("_"))
def test_writes_that_are_not_known_are_left_to_torch(
    write: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, original = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda *args: left.append(True) or original(*args))
    torch.manual_seed(0)
    _assert_is_the_graph_of(Does(write), torch.randn(3, 3, 5, 5))
    assert left


def test_networks_whose_dropout_is_off_share_its_input() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.drop = nn.Conv2d(3, 6, 1), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            self.drop(y).add_(1)
            return y

    _assert_is_the_graph_of(Drops(), torch.randn(3, 3, 5, 5), training=False)


class _SharesNorm(nn.Module):
    """One norm for two maps, as in heads that are shared between levels, then what is done to the map."""

    def __init__(self, function: Callable[[Tensor], Tensor] = lambda y: y, depth: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1)
        self.drop, self.function, self.depth = nn.Dropout(0.3), function, depth

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = (self.head(self.norm(self.conv(y)).relu()) for y in (x, F.max_pool2d(x, 2)))
        if self.training and self.depth:
            first = first / 0.5 * (0.5 + torch.rand(first.shape[0], 1, 1, 1)).floor()
        return self.function(self.drop(first)), second


def _layers(net: nn.Module) -> set[type]:
    return {type(module) for module in net.modules()}


@pytest.mark.parametrize("function", [lambda y: y, _diagonal], ids=["plainly", "and writes that torch takes apart"])
def test_norms_that_are_called_twice_stay_layers(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    net, x = convert(_SharesNorm(function), images(8)), torch.randn(4, 3, 8, 8)
    assert not net.conversion.notes and nn.Dropout in {base for layer in _layers(net) for base in layer.__mro__}
    net.train()(x)
    assert net.get_buffer("norm.num_batches_tracked") == 2 and net.get_buffer("norm.running_mean").any()


def test_stochastic_depth_beside_a_norm_that_is_called_twice() -> None:
    assert StochasticDepth in _layers(convert(_SharesNorm(depth=True), images(8)))


def test_norms_in_evaluation_are_layers_where_torch_takes_writes_apart() -> None:
    network = _assert_is_the_graph_of(_SharesNorm(_diagonal), torch.randn(3, 3, 8, 8), training=False)
    assert isinstance(network, fx.GraphModule)
    assert [operation(node) for node in network.graph.nodes].count("batch_norm") == 2


@pytest.mark.parametrize("lifted", [False, True])
def test_norms_that_average_over_all_batches(lifted: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6, momentum=None), nn.Dropout(0.5))
    net = convert(model, images(8), output="equivariant", lifted=lifted)
    assert not net.conversion.notes and model[1].momentum is None
    batches, last = [images(8) * number for number in (1, 2, 3)], deepcopy(net).train()
    norm, of_last = (next(m for m in n.train().modules() if isinstance(m, nn.BatchNorm2d)) for n in (net, last))
    of_last.momentum = 1.0
    variances = []
    for x in batches:
        net(x), last(x)
        variances.append(of_last.running_var.clone())
    assert norm.momentum is None and norm.num_batches_tracked == 3
    torch.testing.assert_close(norm.running_var, torch.stack(variances).mean(0))


class _Remembers(nn.Module):
    scale: Tensor

    def __init__(self, only: bool) -> None:
        super().__init__()
        self.conv, self.only_in_training = nn.Conv2d(3, 6, 1), only
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not self.only_in_training:
            self.scale.mul_(0.5)
        return self.conv(x) * self.scale


def test_buffer_that_is_read_and_written() -> None:
    with pytest.raises(ValueError, match="reads scale, and writes into it with mul_"):
        convert(_Remembers(only=False), images(8))
    net = convert(_Remembers(only=True), images(8))
    assert "in training it does what it does in evaluation" in net.conversion.notes[0]


class _TwoNames(nn.Module):
    """Reads a buffer by another name than it is written by: the same tensor, or a part of it."""

    scale: Tensor

    def __init__(self, part: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.register_buffer("scale", torch.ones(6))
        if part:
            self.register_buffer("other", self.scale[:1])
        else:
            self.other = self.scale

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.5)
        return self.conv(x) * self.other[0]


@pytest.mark.parametrize("part", [True, False])
def test_buffer_that_is_read_by_another_name(part: bool) -> None:
    with pytest.raises(ValueError, match=r"the network reads (scale|other), and writes into it"):
        convert(_TwoNames(part), images(8))


class _Averages(nn.Module):
    """A norm of its own, of statistics that it keeps in training and uses in evaluation."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 1)
        self.register_buffer("mean", torch.full((6,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        mean = self.mean
        if self.training:
            mean = y.mean((0, 2, 3))
            self.mean.mul_(0.9).add_(mean.detach(), alpha=0.1)
        return y - mean[:, None, None]


def test_statistics_that_a_network_keeps_itself_are_not_lost() -> None:
    model, x = _Averages().eval(), images(8)
    net = convert(model, x, output="equivariant").eval()
    assert "the network keeps mean by itself in training" in net.conversion.notes[0]


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
