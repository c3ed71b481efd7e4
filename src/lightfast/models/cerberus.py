"""Color Cerberus: from an image to the colour of its light, written once for plain and for lifted maps.

The equivariant networks answer in log RGB. They hold every map as `z + G o` (see :mod:`lightfast.nn._lifted`), where
`o` starts as the log RGB of the image's mean colour: `o = -log mean exp(-x)` over the pixels. So their answer is the
grey world's, plus what the network adds to it, which no light can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast import nn as lfnn
from lightfast.models.mean_colour import about_mean_colour
from lightfast.nn import _native
from lightfast.nn._center_act import center_act, center_relu_halve, convolve
from lightfast.nn._center_act_triton import Features, join, suits_centring, suits_joining
from lightfast.nn._constrained import autocast_weight
from lightfast.nn._lifted import Lifted, lifted, made_from, working_dtype
from lightfast.nn._norm_act_triton import padded_width
from lightfast.nn._projection_triton import fit_padded, project_padded, suits_weight

__all__ = ["Cerberus", "LocalCerberus"]

_CHANNELS = (16, 32, 64, 128)


class Cerberus(nn.Module):
    """The network of the paper: pixels joined with the image's average, four times convolution and pooling, two layers.

    Args:
        offset_groups: 3 for the equivariant network, on log RGB; None for the conventional one.
        estimates: k, how many illuminants are given.
        rectify: end with a ReLU, as light has no negative colour: for a conventional network on linear RGB. On log RGB,
            with one output a group, the equivariant ReLU does nothing.
        size: height and width of the images, a multiple of 16.
        channels: of the four convolutions; an equivariant network has the nearest multiples of the groups.
        hidden: width of the last but one layer, likewise.
        dropout: share of what enters the last two layers that is dropped in training.
        constrained: whether an equivariant network's weights meet the paper's constraint. It follows offsets without,
            since its maps are lifted.

    Shapes: (N, 3, size, size) to (N, 3), or (N, k, 3) for several estimates.

    >>> sum(p.numel() for p in Cerberus(None).parameters()), sum(p.numel() for p in Cerberus(3).parameters())
    (203939, 196668)
    """

    on_lifted_maps = True

    def __init__(
        self,
        offset_groups: int | None = 3,
        estimates: int = 1,
        rectify: bool = True,
        size: int = 64,
        channels: Sequence[int] = _CHANNELS,
        hidden: int = 400,
        dropout: float = 0.0,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        if size < 16 or size % 16:
            raise ValueError(f"the network halves images four times: their size must be a multiple of 16, not {size}")
        if offset_groups not in (None, 3):
            raise ValueError(f"colours have 3 groups, or None for a conventional network, not {offset_groups}")
        self.offset_groups, self.estimates, self.size = offset_groups, estimates, size
        self.rectify = rectify and offset_groups is None
        widths = [6, *(_width(offset_groups, features) for features in channels)]
        self.stages = nn.ModuleList(
            _conv(offset_groups, inputs, outputs, 3, constrained) for inputs, outputs in pairwise(widths)
        )
        self.squeeze = _conv(offset_groups, widths[-1], _width(offset_groups, 16), 1, constrained)
        flat, hidden = self.squeeze.out_channels * (size // 16) ** 2, _width(offset_groups, hidden)
        self.first = _linear(offset_groups, flat, hidden, constrained)
        self.second = _linear(offset_groups, hidden, 3 * estimates, constrained)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        _start_small(self.second)
        if self.rectify:
            # A light of norm 1 is about 0.6 in each channel; from 0, half of the outputs would start dead.
            nn.init.constant_(self.second.bias, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.size, self.size):
            raise ValueError(f"expected images of {self.size} x {self.size} pixels, but got {tuple(images.shape)}")
        x = _join(images, self.offset_groups)
        for stage in self.stages:
            x = _rectified_half(stage, x, self.offset_groups)
        x = _rectified(self.squeeze, x, self.offset_groups, cut=True)
        x = Lifted(self.dropout(x.map.flatten(1)), x.offset)
        x = _rectified_rows(self.first, x, self.offset_groups)
        # An equivariant layer's outputs are runs of a colour; estimates are triples of colours.
        given = _last_rows(self.second, self.dropout(x.map), self.offset_groups)
        given = given.unflatten(1, (-1, 3) if self.offset_groups is None else (3, -1))
        given = given if self.offset_groups is None else given.transpose(1, 2)
        given = F.relu(given) if self.rectify else given
        given = given if x.offset is None else given + x.offset[:, None]
        return given[:, 0] if self.estimates == 1 else given


class LocalCerberus(nn.Module):
    """Estimates at many places, averaged by confidence (as FC4 of Hu et al. 2017 does), and kept equivariant.

    The convolutions of :class:`Cerberus`; then at each place `p` a light `e_p` and a confidence `c_p`. The answer is
    `Σ w_p e_p` with `w = softmax(c)`. Confidences come from what no offset changes and the weights sum to 1, so the
    answer follows offsets as each estimate does.

    Args:
        offset_groups: 3 for the equivariant network, on log RGB; None for the conventional one.
        channels: of the convolutions; each but the first follows a halving. An equivariant network has the nearest
            multiples of the groups.
        hidden: width of the layer before estimates and confidences, likewise.
        dropout: share of what enters that layer and what leaves it that is dropped in training.
        norm: whether batch norm follows each convolution.
        constrained: as for :class:`Cerberus`.

    Shapes: (N, 3, H, W) to (N, 3), for any H and W of at least 2 to the number of convolutions.

    >>> LocalCerberus(3)(torch.rand(2, 3, 64, 96)).shape
    torch.Size([2, 3])
    """

    on_lifted_maps = True

    def __init__(
        self,
        offset_groups: int | None = 3,
        channels: Sequence[int] = _CHANNELS,
        hidden: int = 128,
        dropout: float = 0.0,
        norm: bool = False,
        constrained: bool = True,
    ) -> None:
        super().__init__()
        if offset_groups not in (None, 3):
            raise ValueError(f"colours have 3 groups, or None for a conventional network, not {offset_groups}")
        self.offset_groups = offset_groups
        widths = [6, *(_width(offset_groups, features) for features in (*channels, hidden))]
        unit = _NormalisedUnit if norm else _Unit
        *stages, self.mix = (unit(offset_groups, inputs, outputs, constrained) for inputs, outputs in pairwise(widths))
        self.stages = nn.ModuleList(stages)
        hidden = widths[-1]
        self.light = _conv(offset_groups, hidden, 3, 1, constrained)
        self.confidence = nn.Conv2d(hidden, 1, 1)
        self.dropout = nn.Dropout2d(dropout) if dropout else nn.Identity()
        _start_small(self.light)
        _start_small(self.confidence)

    def forward(self, images: Tensor) -> Tensor:
        x = _join(images, self.offset_groups)
        mean_colour = x.offset
        stages: Any = self.stages
        for stage in stages:
            x = stage.halved(x)
        x = self.mix(x._replace(map=self.dropout(x.map)))
        z = self.dropout(x.map)
        # The map of a lifted value does not answer to offsets, so any function of it is fit for a confidence, or to be
        # added to the mean colour: what the layers took out of the map on the way need not come back.
        weights = _convolved(self.confidence, z, self.offset_groups).flatten(2).softmax(2)
        light = (_convolved(self.light, z, self.offset_groups).flatten(2) * weights).sum(2)
        return light if mean_colour is None else light + mean_colour


def _width(offset_groups: int | None, features: int) -> int:
    return features if offset_groups is None else max(1, round(features / offset_groups)) * offset_groups


class _Unit(nn.Module):
    """A 3x3 convolution and ReLU, on plain maps or lifted ones."""

    def __init__(self, groups: int | None, inputs: int, outputs: int, constrained: bool) -> None:
        super().__init__()
        self.groups, self.conv = groups, _conv(groups, inputs, outputs, 3, constrained)

    def forward(self, x: Lifted) -> Lifted:
        return _rectified(self.conv, x, self.groups)

    def halved(self, x: Lifted) -> Lifted:
        """With 2x2 max pooling after it."""
        return _rectified_half(self.conv, x, self.groups)


class _NormalisedUnit(nn.Module):
    """A 3x3 convolution, batch norm and ReLU, on plain maps or lifted ones."""

    def __init__(self, groups: int | None, inputs: int, outputs: int, constrained: bool) -> None:
        super().__init__()
        self.groups = groups
        if groups is None:
            self.body: nn.Module = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
            )
        else:
            self.body = lfnn.ConvNormAct2d(inputs, outputs, 3, padding=1, offset_groups=groups, constrained=constrained)

    def forward(self, x: Lifted) -> Lifted:
        return self.body(x) if self.groups is not None else Lifted(self.body(x.map), None)

    def halved(self, x: Lifted) -> Lifted:
        """With 2x2 max pooling after it."""
        return _halve(self(x))


def _conv(groups: int | None, inputs: int, outputs: int, kernel: int, constrained: bool) -> Any:
    if groups is None or not constrained:
        conv: nn.Conv2d = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    else:
        conv = lfnn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, padding_mode="mean", offset_groups=groups)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv


def _linear(groups: int | None, inputs: int, outputs: int, constrained: bool) -> Any:
    if groups is None or not constrained:
        return nn.Linear(inputs, outputs)
    return lfnn.Linear(inputs, outputs, offset_groups=groups)


def _start_small(layer: Any) -> None:
    """Let training begin from the mean colour, or from equal confidence."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)


def _join(images: Tensor, groups: int | None) -> Lifted:
    """Each pixel joined with the average over the image: six channels, red and its average, green and its, blue."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"expected images (N, 3, H, W), but got {tuple(images.shape)}")
    if groups is not None and suits_joining(images):
        return lifted(*join(images, working_dtype(images)), 6)
    if groups is not None and _has_pass(images):
        return Lifted(*_native.join(images, _convolved_dtype(images)))
    images, offset, _ = Lifted(images, None) if groups is None else about_mean_colour(images)
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    average = images.mean((2, 3), keepdim=True).expand_as(images)
    joined = torch.stack([images, average], 2).flatten(1, 2)
    return Lifted(joined.contiguous(memory_format=torch.channels_last) if last else joined, offset)


def _has_pass(images: Tensor) -> bool:
    """Whether images are joined with their average in C, which knows no gradient."""
    differentiable = torch.is_grad_enabled() and images.requires_grad
    return images.dtype == torch.float32 and not differentiable and _native.suits(images)


def _convolved_dtype(images: Tensor) -> torch.dtype:
    """The precision to which autocast would round a map on the CPU before it is convolved."""
    dtype = torch.get_autocast_dtype("cpu")
    return dtype if torch.is_autocast_enabled("cpu") and dtype == torch.bfloat16 else images.dtype


def _convolved(layer: Any, z: Tensor, groups: int | None) -> Tensor:
    """A same-padded convolution. Outside a lifted map lies the offset: zero padding of what is left of it."""
    if groups is None:
        return F.conv2d(z, layer.weight, layer.bias, padding=layer.padding)
    u, bias = convolve(z, layer, groups)
    return u if bias is None else u[:, : layer.out_channels] + bias[:, None, None]


def _rectified(layer: Any, x: Lifted, groups: int | None, cut: bool = False) -> Lifted:
    """Convolution and ReLU; of a lifted map `max(x, G φ(x))`, which is `relu(z - G φ(z))` above the offset `o + φ(z)`.

    With `cut`, without the idle channels that the map has on a GPU.
    """
    if groups is None:
        return Lifted(F.relu(_convolved(layer, x.map, None)), None)
    u, bias = convolve(x.map, layer, groups)
    return lifted(*center_act(u, groups, bias=bias, offset=x.offset, cut=cut), layer.out_channels)


def _rectified_half(layer: Any, x: Lifted, groups: int | None) -> Lifted:
    """Convolution, ReLU and 2x2 max pooling."""
    if groups is None:
        return _halve(_rectified(layer, x, None))
    u, bias = convolve(x.map, layer, groups)
    return lifted(*center_relu_halve(u, groups, bias, x.offset), layer.out_channels)


def _rectified_rows(layer: Any, x: Lifted, groups: int | None) -> Lifted:
    """Linear layer and ReLU."""
    if groups is None:
        return Lifted(F.relu(F.linear(x.map, layer.weight, layer.bias)), None)
    dtype = working_dtype(x.map)
    known = suits_weight(layer.weight, dtype)
    if known and suits_centring(x.map[..., None, None], Features(layer.out_features, groups)):
        outputs = padded_width(layer.out_features, x.map, dtype)
        u = F.linear(x.map, _padded_weight(layer, groups, x.map, outputs))
        return lifted(*center_act(u, groups, bias=layer.bias, offset=x.offset), layer.out_features)
    return Lifted(*center_act(F.linear(x.map, autocast_weight(layer), layer.bias), groups, offset=x.offset))


def _last_rows(layer: Any, rows: Tensor, groups: int | None) -> Tensor:
    """Linear layer, from rows that may have idle features."""
    if groups is None or rows.shape[1] == layer.in_features:
        return F.linear(rows, autocast_weight(layer), layer.bias)
    return F.linear(rows, _padded_weight(layer, groups, rows, layer.out_features), layer.bias)


def _padded_weight(layer: Any, groups: int, rows: Tensor, outputs: int) -> Tensor:
    """The weight, projected if it is constrained, for rows that may have idle features, and for so many outputs."""
    channels, how = (outputs, rows.shape[1]), (working_dtype(rows), torch.contiguous_format)

    def make(raw: Tensor) -> Tensor:
        if isinstance(layer, lfnn.Linear):
            return project_padded(raw, groups, *channels, *how)
        return fit_padded(raw, channels, *how)

    return made_from(layer)((channels, how), make)


def _halve(x: Lifted) -> Lifted:
    """2x2 max pooling."""
    z = x.map
    even = z.shape[2] % 2 == z.shape[3] % 2 == 0
    if even and z.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # Torch's pooling on the CPU looks for the places of the maxima too, and is slow where channels fill no vector.
        z = torch.maximum(z[:, :, ::2], z[:, :, 1::2])
        return x._replace(map=torch.maximum(z[..., ::2], z[..., 1::2]))
    return x._replace(map=F.max_pool2d(z, 2))
