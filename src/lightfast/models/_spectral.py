"""A residual network for cubes of any number of bands, each of which may be a group of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lightfast.models._resnet import BasicBlock, initialize
from lightfast.models._vocabulary import Vocabulary


class SpectralNet(nn.Module):
    """A convolution, and a residual block for each width.

    For cubes, blocks are of 3x3 convolutions, every one after the first halves the map, and there is one answer per
    cube. `per_pixel`, nothing but 1x1 convolutions: a network on spectra, which knows of the other pixels only what
    groups have in common.

    Args:
        words: the vocabulary.
        bands: the number of bands, b.
        classes: the number of scores, k.
        widths: features per band in each block.
        per_pixel: whether there is an answer for each pixel.

    Shapes: (N, b, H, W) to (N, k), or to (N, k, H, W).
    """

    def __init__(
        self, words: Vocabulary, bands: int, classes: int, widths: Sequence[int] = (2, 4, 8), per_pixel: bool = False
    ) -> None:
        super().__init__()
        inputs = words.width(widths[0] * bands)
        self.enter = words.enter()
        self.stem = words.unit(bands, inputs, 1 if per_pixel else 3)
        blocks = []
        for place, width in enumerate(widths):
            outputs, stride = words.width(width * bands), 1 if per_pixel or place == 0 else 2
            changed = stride != 1 or inputs != outputs
            shortcut = words.unit(inputs, outputs, 1, stride, False, relu=False) if changed else nn.Identity()
            blocks.append(
                BasicBlock(words, inputs, outputs, stride, shortcut, bias=False, kernel=1 if per_pixel else 3)
            )
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = words.classify(inputs, classes, per_pixel)
        initialize(self)

    def forward(self, cubes: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(self.enter(cubes))))
