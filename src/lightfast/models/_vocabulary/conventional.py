"""The conventional vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightfast._backends import from_pixel, to_pixel
from lightfast.models._vocabulary.parts import Scores, Unit, dropout


class ConventionalVocabulary:
    """Plain `torch.nn`: zero padding, nothing equivariant, and no offset to leave behind or to keep.

    Words mean the same in :class:`LiftedVocabulary`, and the first six in :class:`PixelVocabulary`; the others are for
    networks that answer with colors. `Any` stands for the maps that pass between the parts: plain or lifted.
    """

    def width(self, features: int) -> int:
        """The number of features nearest to `features` that divides into the groups."""
        return features

    def enter(self, keep_offset: bool = False) -> nn.Module:
        """From the input image to the first map, with its offset if somebody will ask for it."""
        return nn.Identity()

    def unit(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True, relu: bool = True
    ) -> nn.Module:
        """Same-padded convolution and batch norm, called with a map and an optional shortcut to add; then ReLU."""
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=bias)
        return Unit(conv, nn.BatchNorm2d(outputs), nn.ReLU() if relu else nn.Identity())

    def subsample(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """The shortcut without weights: every `stride`-th pixel, and zeros for the features that `inputs` lacks."""
        return _Subsample(inputs, outputs, stride)

    def max_pool(self, kernel: int, stride: int, padding: int) -> nn.Module:
        """Max pooling over pixels."""
        return nn.MaxPool2d(kernel, stride, padding)

    def classify(self, features: int, classes: int, per_pixel: bool = False) -> nn.Module:
        """Average over pixels (unless a score `per_pixel` is wanted), a linear layer, and one score per class."""
        return Scores(nn.Linear(features, classes), per_pixel=per_pixel)

    def chain(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, slope: float = 0.0, norm: bool = True
    ) -> nn.Module:
        """Same-padded convolution, batch norm if wanted, and (leaky) ReLU; called with a map alone."""
        conv = nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2)
        return _chain(conv, slope) if norm else nn.Sequential(conv, _activation(slope))

    def squeeze(self, inputs: int, outputs: int, side: int, slope: float = 0.0) -> nn.Module:
        """Convolution of a whole map, `side` pixels high and wide, to a single pixel; batch norm, (leaky) ReLU."""
        return _chain(ToPixel(inputs, outputs, side), slope)

    def expand(self, inputs: int, outputs: int, side: int) -> nn.Module:
        """Transposed convolution of a single pixel to a map, `side` pixels high and wide; batch norm, ReLU."""
        return _chain(FromPixel(inputs, outputs, side, side))

    def up(self, inputs: int, outputs: int) -> nn.Module:
        """4x4 transposed convolution to a map twice as high and wide; batch norm, ReLU."""
        return _chain(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1))

    def last_up(self, inputs: int, outputs: int) -> nn.Module:
        """The same convolution alone, to a plain map (N, outputs, H, W), with the offset if its input has one."""
        return nn.ConvTranspose2d(inputs, outputs, 4, 2, 1)

    def dropout(self, rate: float, whole: bool = False) -> nn.Module:
        """Dropout of single numbers of a map, or of whole features; none at a rate of 0."""
        return dropout(rate, whole)

    def conv(self, inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
        """A same-padded convolution, for the words below that take one."""
        return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)

    def linear(self, inputs: int, outputs: int) -> nn.Linear:
        """A linear layer, likewise."""
        return nn.Linear(inputs, outputs)

    def join_average(self, images: Tensor) -> Tensor:
        """Each pixel beside the average over the image: (N, 3, H, W) to a map of red and its average, green, blue."""
        average = images.mean((2, 3), keepdim=True).expand_as(images)
        return torch.stack([images, average], 2).flatten(1, 2)

    def conv_relu(self, conv: Any, x: Tensor, halve: bool = False, flat: bool = False) -> Tensor:
        """Convolution and ReLU of a map; then 2x2 max pooling to `halve` it, or a row per image to make it `flat`."""
        x = F.relu(conv(x))
        x = F.max_pool2d(x, 2) if halve else x
        return x.flatten(1) if flat else x

    def linear_relu(self, linear: Any, x: Tensor) -> Tensor:
        """Linear layer and ReLU of rows."""
        return F.relu(linear(x))

    def convolve(self, conv: Any, x: Tensor) -> Tensor:
        """The convolution alone, to a plain map (N, outputs, H, W), without offset."""
        return conv(x)

    def colors(self, linear: Any, x: Tensor) -> Tensor:
        """Rows to k colors, (N, k, 3), by a linear layer with 3 k outputs; with the offset."""
        return linear(x).unflatten(1, (-1, 3))

    def without_offset(self, x: Tensor, carry: bool = False) -> Tensor:
        """The map with its offset left behind, so that nothing is spent on it; `carry` what the layers add to it."""
        return x

    def with_offset(self, answer: Tensor, x: Tensor) -> Tensor:
        """An answer (N, 3, *positions), of the middle of a map where it varies, with the offset that the map has."""
        return answer


def _chain(conv: Any, slope: float = 0.0) -> nn.Module:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), _activation(slope))


def _activation(slope: float) -> nn.Module:
    return nn.LeakyReLU(slope, inplace=True) if slope else nn.ReLU(inplace=True)


class _Subsample(nn.Module):
    """Every `stride`-th pixel, and zeros after the features there are."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.missing, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))


class ToPixel(nn.Conv2d):
    """A convolution of the whole map, computed as the linear layer that it is."""

    def forward(self, input: Tensor) -> Tensor:
        return to_pixel(input, self.weight, self.bias)


class FromPixel(nn.ConvTranspose2d):
    """A transposed convolution of a single pixel, computed as the linear layer that it is."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return from_pixel(input, self.weight, self.bias)
