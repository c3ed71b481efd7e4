"""The equivariant networks written the straightforward way: each formula its own operation on the whole map.

This is what `lightfast bench` compares with, and it computes what the networks of `lightfast.models` compute: weights
are projected in `forward`, every layer takes its group means from the map itself, and what is subtracted is added
again. Features are `g` equal runs; `G` repeats a number a group over the run's features. Only torch is used.

    convolution   conv(x - G o) + G o              o (N, g): what lies outside the map
    batch norm    BN(x - G φ(x)) + G φ(x)          φ: the mean of a group over its features and positions
    sum           y + s - G φ(s)
    ReLU          max(x, G φ(x)), outside which lies φ(x)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 3
STAGES = {"resnet50": (3, 4, 6, 3)}


def group_mean(x: Tensor) -> Tensor:
    """(N, C, ...) to (N, g)."""
    return x.unflatten(1, (GROUPS, -1)).flatten(2).mean(2)


def like(offset: Tensor, x: Tensor) -> Tensor:
    """(N, g) to (N, C, 1, ...), shaped to be added to `x`."""
    return offset.repeat_interleave(x.shape[1] // GROUPS, 1).reshape(*x.shape[:2], *[1] * (x.dim() - 2))


def project(weight: Tensor) -> Tensor:
    """The nearest weight (n, m, ...) whose taps from each input group sum to 1 for its own group, 0 for others."""
    grouped = weight.unflatten(1, (GROUPS, -1)).flatten(2)
    own = torch.eye(GROUPS, dtype=weight.dtype, device=weight.device).repeat_interleave(len(weight) // GROUPS, 0)
    grouped = grouped + ((own - grouped.sum(2)) / grouped.shape[2])[:, :, None]
    return grouped.reshape(weight.shape)


class Conv(nn.Module):
    """Convolution of a map outside which lies `outside`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, padding: int | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel) * (2 / inputs / kernel**2) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.stride, self.padding = stride, kernel // 2 if padding is None else padding

    def forward(self, x: Tensor, outside: Tensor) -> Tensor:
        centered = x - like(outside, x)
        y = F.conv2d(centered, project(self.weight), self.bias, self.stride, self.padding)
        return y + like(outside, y)


class Norm(nn.BatchNorm2d):
    """Batch norm of the centered map."""

    def forward(self, x: Tensor) -> Tensor:
        mean = like(group_mean(x), x)
        return super().forward(x - mean) + mean


def relu(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rectified map, and what lies outside it: its floor."""
    mean = group_mean(x)
    return torch.maximum(x, like(mean, x)), mean


def leaky_relu(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same with slope 0.2 below the mean."""
    mean = group_mean(x)
    level = like(mean, x)
    return F.leaky_relu(x - level, 0.2) + level, mean


def project_transposed(weight: Tensor, stride: int) -> Tensor:
    """As `project`, of a transposed convolution's weight (m, n, k, k): each phase of taps meets the constraint."""
    inputs, outputs, kernel, _ = weight.shape
    taps = kernel // stride
    phases = weight.reshape(GROUPS, inputs // GROUPS, outputs, taps, stride, taps, stride)
    own = torch.eye(GROUPS, dtype=weight.dtype, device=weight.device).repeat_interleave(outputs // GROUPS, 1)
    excess = (phases.sum((1, 3, 5)) - own[..., None, None]) / (inputs // GROUPS * taps**2)
    return (phases - excess[:, None, :, None, :, None]).reshape(weight.shape)


class Unit(nn.Module):
    """Convolution, norm, an optional shortcut, an optional ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, act: bool = True):
        super().__init__()
        self.conv, self.norm, self.act = Conv(inputs, outputs, kernel, stride, bias), Norm(outputs), act

    def forward(self, x: Tensor, outside: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.norm(self.conv(x, outside))
        if shortcut is not None:
            y = y + shortcut - like(group_mean(shortcut), shortcut)
        return relu(y) if self.act else (y, group_mean(y))


class Block(nn.Module):
    """Units one after another, and a shortcut: none, without weights, or a unit."""

    def __init__(self, units: Sequence[Unit], stride: int, widen: int = 0, shortcut: Unit | None = None) -> None:
        super().__init__()
        self.units, self.shortcut = nn.ModuleList(units), shortcut
        self.stride, self.widen = stride, widen

    def forward(self, x: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
        side = x
        if self.shortcut is not None:
            side, _ = self.shortcut(x, outside)
        elif self.stride > 1:
            centered = (x - like(group_mean(x), x))[:, :, :: self.stride, :: self.stride]
            side = F.pad(centered.unflatten(1, (GROUPS, -1)), (0, 0, 0, 0, 0, self.widen)).flatten(1, 2)
        *first, last = self.units
        for unit in first:
            x, outside = unit(x, outside)
        return last(x, outside, side)


class Linear(nn.Linear):
    """A linear layer with its weight projected."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, project(self.weight), self.bias)


class ResNet(nn.Module):
    """Stem, blocks, and scores averaged over the groups, less their mean over the classes."""

    def __init__(self, stem: Unit, blocks: Sequence[Block], features: int, classes: int, pool: bool) -> None:
        super().__init__()
        self.stem, self.blocks, self.pool = stem, nn.ModuleList(blocks), pool
        self.head = Linear(features, GROUPS * classes)

    def forward(self, images: Tensor) -> Tensor:
        x, outside = self.stem(images, group_mean(images))
        if self.pool:
            x = F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x, outside = block(x, outside)
        scores = self.head(x.mean((2, 3))).unflatten(1, (GROUPS, -1)).mean(1)
        return scores - scores.mean(1, keepdim=True)


def cifar_resnet(depth: int, classes: int = 10) -> ResNet:
    """ResNet-20 and its deeper relatives, of 15, 33 and 63 features."""
    inputs, blocks = 15, []
    for stage, width in enumerate((15, 33, 63)):
        for place in range((depth - 2) // 6):
            stride = 2 if stage > 0 and place == 0 else 1
            units = [Unit(inputs, width, 3, stride), Unit(width, width, 3)]
            blocks.append(Block(units, stride, (width - inputs) // GROUPS))
            inputs = width
    return ResNet(Unit(3, 15, 3), blocks, inputs, classes, pool=False)


def imagenet_resnet(name: str, classes: int = 1000) -> ResNet:
    """ResNet-50, with widths built on 63."""
    inputs, blocks = 63, []
    for stage, depth in enumerate(STAGES[name]):
        width = 63 * 2**stage
        for place in range(depth):
            stride = 2 if stage > 0 and place == 0 else 1
            units = [
                Unit(inputs, width, 1, 1, bias=False),
                Unit(width, width, 3, stride, bias=False),
                Unit(width, 4 * width, 1, 1, bias=False),
            ]
            changed = stride > 1 or inputs != 4 * width
            side = Unit(inputs, 4 * width, 1, stride, bias=False, act=False) if changed else None
            blocks.append(Block(units, stride, shortcut=side))
            inputs = 4 * width
    return ResNet(Unit(3, 63, 7, 2, bias=False), blocks, inputs, classes, pool=True)


class Cerberus(nn.Module):
    """Color Cerberus on log RGB of 64 x 64 pixels: (N, 3, 64, 64) to illuminants (N, 3)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (6, 15, 33, 63, 129)
        self.stages = nn.ModuleList(Conv(widths[i], widths[i + 1], 3) for i in range(4))
        self.squeeze = Conv(129, 15, 1)
        self.first, self.second = Linear(15 * 16, 399), Linear(399, 3)

    def forward(self, images: Tensor) -> Tensor:
        # Outside lies the log RGB of the mean color.
        outside = math.log(images[0, 0].numel()) - (-images.flatten(2)).logsumexp(2)
        average = images.mean((2, 3), keepdim=True).expand_as(images)
        x = torch.stack([images, average], 2).flatten(1, 2)
        for stage in self.stages:
            x, outside = relu(stage(x, outside))
            x = F.max_pool2d(x, 2)
        x, _ = relu(self.squeeze(x, outside))
        x, _ = relu(self.first(x.flatten(1)))
        return self.second(x)


class Down(nn.Module):
    """Convolution, norm if there is one, leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, padding: int, norm: bool = True) -> None:
        super().__init__()
        self.conv = Conv(inputs, outputs, 4, stride, padding=padding)
        self.norm = Norm(outputs) if norm else nn.Identity()

    def forward(self, x: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
        return leaky_relu(self.norm(self.conv(x, outside)))


class Up(nn.Module):
    """Transposed convolution of a map outside which lies `outside`; norm and ReLU but for the last."""

    def __init__(self, inputs: int, outputs: int, stride: int, padding: int, last: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs, 4, 4) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.norm = None if last else Norm(outputs)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
        weight = project_transposed(self.weight, self.stride)
        y = F.conv_transpose2d(x - like(outside, x), weight, self.bias, self.stride, self.padding)
        y = y + like(outside, y)
        return (y, outside) if self.norm is None else relu(self.norm(y))


class ContextEncoder(nn.Module):
    """The Context Encoder on log RGB: (N, 3, 128, 128) to the middle (N, 3, 64, 64)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (63, 63, 126, 252, 504)
        down = [Down(3, 63, 2, 1, norm=False), *(Down(widths[i], widths[i + 1], 2, 1) for i in range(4))]
        up = [Up(3999, 504, 4, 0), *(Up(widths[i], widths[i - 1], 2, 1) for i in (4, 3, 2))]
        self.layers = nn.ModuleList([*down, Down(504, 3999, 1, 0), *up, Up(63, 3, 2, 1, last=True)])

    def forward(self, images: Tensor) -> Tensor:
        offset = group_mean(images)
        x, outside = images, offset
        for layer in self.layers:
            x, outside = layer(x, outside)
        # What the layers took out of the map on the way does not come back; the image's own means do.
        return x - like(outside, x) + like(offset, x)


def create(name: str) -> nn.Module:
    """The network of that name in `lightfast.models`, with 3 groups; its state has the same tensors in that order."""
    if name in STAGES:
        return imagenet_resnet(name)
    if name == "cerberus":
        return Cerberus()
    if name == "context-encoder":
        return ContextEncoder()
    if name == "resnet20":
        return cifar_resnet(20)
    raise ValueError(f"there is no straightforward {name}; there are {', '.join(names())}")


def names() -> list[str]:
    """What :func:`create` knows."""
    return ["resnet20", *STAGES, "cerberus", "context-encoder"]


@torch.no_grad()
def share_weights(straightforward: nn.Module, ours: nn.Module) -> None:
    """Give a straightforward network the weights and statistics of ours."""
    for (name, own), (other, theirs) in zip(
        straightforward.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        if own.shape != theirs.shape:
            raise ValueError(f"{name} is {tuple(own.shape)} and {other} is {tuple(theirs.shape)}: other networks")
        own.copy_(theirs)
