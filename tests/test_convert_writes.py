"""Conversion of networks that write into their tensors, and into those of their layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from lightfast._convert import convert
from lightfast._convert.blocks import StochasticDepth
from lightfast._convert.graph import plain_graph
from lightfast._convert.nodes import operation
from tests.zoo.kinds import Does
from tests.zoo.steps import images


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
