"""A shallow and wide residual network, which learns CIFAR-10 in a few epochs; written once for every vocabulary."""

from __future__ import annotations

from torch import Tensor, nn

from lightfast.models._resnet import initialize
from lightfast.models._vocabulary import Vocabulary


class ResNet9(nn.Module):
    """Eight convolutions and a linear layer, in the shape that the fast entries of DAWNBench made known.

    A 3x3 convolution; three times a 3x3 convolution with twice the features and a max pooling; after the first and the
    third of these a residual block. Scores are small at first, which lets the rate of learning be large.

    Args:
        words: the vocabulary.
        classes: the number of scores.
        width: features of the first convolution; the last have 8 times as many.
        scale: what scores are multiplied with.

    Shapes: (N, 3, H, W) to (N, classes), with H and W at least 16.
    """

    def __init__(self, words: Vocabulary, classes: int = 10, width: int = 64, scale: float = 0.125) -> None:
        super().__init__()
        widths = [words.width(width * 2**stage) for stage in range(4)]
        self.enter, self.scale = words.enter(), scale
        self.stem = words.unit(3, widths[0], 3, bias=False)
        self.stages = nn.Sequential(
            _Stage(words, widths[0], widths[1], residual=True),
            _Stage(words, widths[1], widths[2], residual=False),
            _Stage(words, widths[2], widths[3], residual=True),
        )
        self.pool = words.max_pool(2, 2, 0)
        self.head = words.classify(widths[3], classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.stages(self.stem(self.enter(images))))
        return self.scale * self.head(x)


class _Stage(nn.Module):
    """Convolution and max pooling, and a residual block if there is one."""

    def __init__(self, words: Vocabulary, inputs: int, outputs: int, residual: bool) -> None:
        super().__init__()
        self.widen, self.pool = words.unit(inputs, outputs, 3, bias=False), words.max_pool(2, 2, 0)
        self.block = _Block(words, outputs) if residual else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.pool(self.widen(x)))


class _Block(nn.Module):
    def __init__(self, words: Vocabulary, width: int) -> None:
        super().__init__()
        self.first, self.second = words.unit(width, width, 3, bias=False), words.unit(width, width, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), x)
