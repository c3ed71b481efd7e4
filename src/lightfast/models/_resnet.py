"""Residual networks (He et al. 2016), each written once for every vocabulary."""

from __future__ import annotations

from torch import Tensor, nn

from lightfast.models._vocabulary import Vocabulary

IMAGENET_LAYERS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    expansion = 1

    def __init__(
        self, words: Vocabulary, inputs: int, width: int, stride: int, shortcut: nn.Module, bias: bool, kernel: int = 3
    ) -> None:
        super().__init__()
        self.first = words.unit(inputs, width, kernel, stride, bias)
        self.second = words.unit(width, width, kernel, 1, bias)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the stride is in the 3x3."""

    expansion = 4

    def __init__(
        self, words: Vocabulary, inputs: int, width: int, stride: int, shortcut: nn.Module, bias: bool
    ) -> None:
        super().__init__()
        self.first = words.unit(inputs, width, 1, 1, bias)
        self.second = words.unit(width, width, 3, stride, bias)
        self.third = words.unit(width, 4 * width, 1, 1, bias)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)), self.shortcut(x))


class CifarResNet(nn.Module):
    """The networks of He et al., section 4.2: 6 n + 2 layers, shortcuts without weights, convolutions with bias.

    Args:
        words: the vocabulary.
        depth: 20, 32, 44, 56 or 110.
        classes: the number of scores.

    Shapes: (N, 3, H, W) to (N, classes).
    """

    def __init__(self, words: Vocabulary, depth: int, classes: int = 10) -> None:
        super().__init__()
        widths = [words.width(width) for width in (16, 32, 64)]
        self.enter = words.enter()
        self.stem = words.unit(3, widths[0], 3)
        inputs, blocks = widths[0], []
        for stage, width in enumerate(widths):
            for place in range((depth - 2) // 6):
                stride = 2 if stage > 0 and place == 0 else 1
                shortcut = nn.Identity() if inputs == width else words.subsample(inputs, width, stride)
                blocks.append(BasicBlock(words, inputs, width, stride, shortcut, bias=True))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.head = words.classify(inputs, classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(self.enter(images))))


class ImageNetResNet(nn.Module):
    """The networks of He et al., section 4.1: projection shortcuts where the shape changes, convolutions without bias.

    All widths are multiples of the first one, 64 or the nearest that divides into the groups (63 for three).

    Args:
        words: the vocabulary.
        name: `resnet18`, `resnet34`, `resnet50`, `resnet101` or `resnet152`.
        classes: the number of scores.

    Shapes: (N, 3, H, W) to (N, classes).
    """

    def __init__(self, words: Vocabulary, name: str, classes: int = 1000) -> None:
        super().__init__()
        block = BasicBlock if name in ("resnet18", "resnet34") else Bottleneck
        base = words.width(64)
        self.enter = words.enter()
        self.stem = words.unit(3, base, 7, 2, bias=False)
        self.pool = words.max_pool(3, 2, 1)
        inputs, blocks = base, []
        for stage, depth in enumerate(IMAGENET_LAYERS[name]):
            width = base * 2**stage
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                outputs = width * block.expansion
                changed = stride != 1 or inputs != outputs
                shortcut = words.unit(inputs, outputs, 1, stride, False, relu=False) if changed else nn.Identity()
                blocks.append(block(words, inputs, width, stride, shortcut, bias=False))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = words.classify(inputs, classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.pool(self.stem(self.enter(images)))))


def initialize(network: nn.Module) -> None:
    """He et al.'s normal initialization of every convolution; norms and linear layers as torch has them."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
