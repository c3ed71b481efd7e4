"""The Context Encoder (Pathak et al. 2016): from an image with a hole in the middle to what may have been there.

Written once, in words that are plain torch or lifted maps (see :mod:`lightfast.nn._lifted`). The equivariant network
sees log RGB and answers in it: it takes the mean of each channel out of the image, works on what is left, which no
light changes, and puts the mean back into its answer. What norms and activations take out of a map on the way is
itself a function of that invariant map. The ordinary layers would give it back at the end, as `carry` does; without, it
is left behind.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightfast import nn as lfnn
from lightfast.nn._center_act import center_act, convolve
from lightfast.nn._lifted import ConvNormAct2d, Lift, Lifted, lifted, lower
from lightfast.nn._lifted_transposed import (
    ConvTransposeNormAct2d,
    SqueezeNormAct,
    as_row,
    from_row,
    transpose_padded,
)
from lightfast.nn._norm_act import over

__all__ = ["ContextDiscriminator", "ContextEncoder"]

_SLOPE = 0.2


class ContextEncoder(nn.Module):
    """Five halvings, a bottleneck of one pixel, and four doublings: the middle of the image, half as high and wide.

    Convolutions are 4x4, with bias; batch norm follows each but the first and the last; LeakyReLU 0.2 on the way in and
    ReLU on the way out.

    Args:
        offset_groups: 3 for the equivariant network, from log RGB to log RGB; None for the conventional one.
        base: b, the width of the first layers: the others have 2 b, 4 b and 8 b. By default 64, or 63 for 3 groups.
        bottleneck: features of the single pixel; by default 4000, or 3999.
        tanh: end the conventional network with a tanh, as for images in [-1, 1].
        constrained: whether an equivariant network's weights meet the paper's constraint. It follows offsets without,
            since its maps are lifted.
        carry: whether its answer is given back what norms and activations take out of the maps on the way.

    Shapes: (N, 3, 128, 128) to (N, 3, 64, 64).

    >>> [sum(p.numel() for p in ContextEncoder(groups).parameters()) for groups in (None, 3)]
    [71130531, 69917493]
    """

    def __init__(
        self,
        offset_groups: int | None = 3,
        base: int | None = None,
        bottleneck: int | None = None,
        tanh: bool = True,
        constrained: bool = True,
        carry: bool = False,
    ) -> None:
        super().__init__()
        if offset_groups not in (None, 3):
            raise ValueError(f"colours have 3 groups, or None for a conventional network, not {offset_groups}")
        base = base or (64 if offset_groups is None else 63)
        bottleneck = bottleneck or (4000 if offset_groups is None else 3999)
        if offset_groups is not None and (base % 3 or bottleneck % 3):
            raise ValueError(f"widths must divide into the 3 colours, which {base} and {bottleneck} do not both")
        words: _Words = _Conventional(tanh) if offset_groups is None else _Lifting(offset_groups, constrained, carry)
        widths = [base, base, 2 * base, 4 * base, 8 * base]
        self.enter = words.enter()
        self.first = words.first(3, base)
        self.encoder = nn.Sequential(*(words.down(inputs, outputs) for inputs, outputs in pairwise(widths)))
        self.squeeze = words.squeeze(widths[-1], bottleneck)
        self.expand = words.expand(bottleneck, widths[-1])
        self.decoder = nn.Sequential(*(words.up(inputs, outputs) for inputs, outputs in pairwise(widths[:0:-1])))
        self.last = words.last(base, 3)
        self.leave = words.leave()
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1:] != (3, 128, 128):
            raise ValueError(f"expected images (N, 3, 128, 128), but got {tuple(images.shape)}")
        x = self.enter(images)
        return self.leave(x, self.last(self.decoder(self.expand(self.squeeze(self.encoder(self.first(x)))))))

    @torch.no_grad()
    def shift_answer(self, amount: Tensor) -> None:
        """Add `amount` (3,) to all answers, before the tanh where there is one: to the bias of the last layer."""
        last = self.last.conv if isinstance(self.last, _LiftedLast) else self.last
        assert isinstance(last, nn.ConvTranspose2d) and last.bias is not None
        last.bias += amount.to(last.bias)


class ContextDiscriminator(nn.Module):
    """Tells what a network filled in from what was there: the score of an image, above 0 for a real one.

    It is conventional for every kind of network that it judges.

    Args:
        base: width of the first of its four halvings; each other one is twice as wide.

    Shapes: (N, 3, 64, 64), sRGB in [0, 1], to (N,).
    """

    def __init__(self, base: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, base, 4, 2, 1), nn.LeakyReLU(_SLOPE, inplace=True)]
        for inputs, outputs in pairwise([base, 2 * base, 4 * base, 8 * base]):
            layers += [
                nn.Conv2d(inputs, outputs, 4, 2, 1),
                nn.BatchNorm2d(outputs),
                nn.LeakyReLU(_SLOPE, inplace=True),
            ]
        self.layers, self.score = nn.Sequential(*layers), nn.Conv2d(8 * base, 1, 4)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        x = 2 * images - 1
        x = x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x
        return self.score(self.layers(x)).flatten()


class _Words(Protocol):
    """What the network is made of. `Any` stands for the maps that pass between the parts: plain or lifted."""

    def enter(self) -> nn.Module: ...
    def first(self, inputs: int, outputs: int) -> nn.Module: ...
    def down(self, inputs: int, outputs: int) -> nn.Module: ...
    def squeeze(self, inputs: int, outputs: int) -> nn.Module: ...
    def expand(self, inputs: int, outputs: int) -> nn.Module: ...
    def up(self, inputs: int, outputs: int) -> nn.Module: ...
    def last(self, inputs: int, outputs: int) -> nn.Module: ...
    def leave(self) -> nn.Module: ...


class _Conventional:
    """Plain torch."""

    def __init__(self, tanh: bool) -> None:
        self.tanh = tanh

    def enter(self) -> nn.Module:
        return nn.Identity()

    def first(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(_SLOPE, inplace=True))

    def down(self, inputs: int, outputs: int) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 4, 2, 1)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(_SLOPE, inplace=True))

    def squeeze(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(_ToPixel(inputs, outputs, 4), nn.BatchNorm2d(outputs), nn.LeakyReLU(_SLOPE, inplace=True))

    def expand(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(_FromPixel(inputs, outputs, 4, 4), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    def up(self, inputs: int, outputs: int) -> nn.Module:
        conv = nn.ConvTranspose2d(inputs, outputs, 4, 2, 1)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    def last(self, inputs: int, outputs: int) -> nn.Module:
        return nn.ConvTranspose2d(inputs, outputs, 4, 2, 1)

    def leave(self) -> nn.Module:
        return _Leave(self.tanh)


class _Lifting:
    """Lifted maps; the widths are multiples of the groups."""

    def __init__(self, groups: int, constrained: bool, carry: bool) -> None:
        self.groups, self.constrained, self.carry = groups, constrained, carry
        self._how = {"offset_groups": groups, "constrained": constrained}

    def enter(self) -> nn.Module:
        return Lift(self.groups)

    def first(self, inputs: int, outputs: int) -> nn.Module:
        return _LiftedFirst(inputs, outputs, self.groups, self.constrained, self.carry)

    def down(self, inputs: int, outputs: int) -> nn.Module:
        return ConvNormAct2d(inputs, outputs, 4, 2, 1, slope=_SLOPE, **self._how)

    def squeeze(self, inputs: int, outputs: int) -> nn.Module:
        return SqueezeNormAct(inputs, outputs, 4, slope=_SLOPE, **self._how)

    def expand(self, inputs: int, outputs: int) -> nn.Module:
        return ConvTransposeNormAct2d(inputs, outputs, 4, 4, **self._how)

    def up(self, inputs: int, outputs: int) -> nn.Module:
        return ConvTransposeNormAct2d(inputs, outputs, 4, 2, 1, **self._how)

    def last(self, inputs: int, outputs: int) -> nn.Module:
        return _LiftedLast(inputs, outputs, self.groups, self.constrained)

    def leave(self) -> nn.Module:
        return _LeaveLifted(self.groups)


class _ToPixel(nn.Conv2d):
    """A convolution of the whole map, computed as the linear layer that it is."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(as_row(input, self.weight), as_row(self.weight, self.weight), self.bias)[..., None, None]


class _FromPixel(nn.ConvTranspose2d):
    """A transposed convolution of a single pixel, computed as the linear layer that it is."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        rows = input.flatten(1) @ as_row(self.weight, self.weight)
        assert self.bias is not None
        return from_row(rows, self.weight) + over(self.bias, self.weight).to(rows.dtype)


class _Leave(nn.Module):
    def __init__(self, tanh: bool) -> None:
        super().__init__()
        self.tanh = tanh

    def forward(self, before: Tensor, answer: Tensor) -> Tensor:
        answer = answer.to(torch.promote_types(answer.dtype, torch.float32))
        return answer.tanh() if self.tanh else answer


class _LeaveLifted(nn.Module):
    """The map itself, in at least float32: with the offset that came all the way, or the one it began with."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, before: Lifted, answer: Lifted) -> Tensor:
        return lower(answer if answer.offset is not None else answer._replace(offset=before.offset), self.groups)


class _LiftedFirst(nn.Module):
    """A convolution and LeakyReLU about the group's mean, without a norm, on lifted maps.

    Unless offsets are carried on, they end here: nothing is then spent on them, and the last layer knows them again.
    """

    on_lifted_maps = True

    def __init__(self, inputs: int, outputs: int, groups: int, constrained: bool, carry: bool) -> None:
        super().__init__()
        geometry = (inputs, outputs, 4, 2, 1)
        self.conv: nn.Conv2d = (
            lfnn.Conv2d(*geometry, padding_mode="mean", offset_groups=groups) if constrained else nn.Conv2d(*geometry)
        )
        self.groups, self.carry = groups, carry

    def forward(self, x: Lifted) -> Lifted:
        u, bias = convolve(x.map, self.conv, self.groups)
        z, offset = center_act(u, self.groups, _SLOPE, bias, x.offset if self.carry else None)
        return lifted(z, offset if self.carry and x.offset is not None else None, self.conv.out_channels)


class _LiftedLast(nn.Module):
    """A transposed convolution with its bias, on lifted maps."""

    on_lifted_maps = True

    def __init__(self, inputs: int, outputs: int, groups: int, constrained: bool) -> None:
        super().__init__()
        geometry = (inputs, outputs, 4, 2, 1)
        self.conv: nn.ConvTranspose2d = (
            lfnn.ConvTranspose2d(*geometry, padding_mode="mean", offset_groups=groups)
            if constrained
            else nn.ConvTranspose2d(*geometry)
        )
        self.groups = groups

    def forward(self, x: Lifted) -> Lifted:
        u = transpose_padded(x.map, self.conv, self.groups)
        assert self.conv.bias is not None
        return Lifted(u.to(torch.promote_types(u.dtype, torch.float32)) + over(self.conv.bias, u), x.offset)


def _initialise(network: nn.Module) -> None:
    """Normal weights of standard deviation 0.02, as generative adversarial networks of convolutions start."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
