"""The Context Encoder (Pathak et al. 2016): from an image with a hole in the middle to what may have been there.

Written once, in words that are plain torch or lifted maps (see :mod:`lightfast.nn._lifted`). The equivariant network
sees log RGB and answers in it: it takes the mean of each channel out of the image, works on what is left, which no
light changes, and puts the mean back into its answer. What norms and activations take out of a map on the way is
itself a function of that invariant map. The ordinary layers would give it back at the end, as `carry` does; without, it
is left behind. With a field of light, the image is without its projection, and the answer gets the field of the middle.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lightfast.fields import FieldSpec
from lightfast.functional import statistics_dtype
from lightfast.models._vocabulary import color_vocabulary

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
        field: offsets that an equivariant network follows; see :mod:`lightfast.fields`.

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
        field: FieldSpec = 0,
    ) -> None:
        super().__init__()
        words = self.words = color_vocabulary(offset_groups, constrained, field)
        base, bottleneck = base or words.width(64), bottleneck or words.width(4000)
        if (words.width(base), words.width(bottleneck)) != (base, bottleneck):
            raise ValueError(f"widths must divide into the 3 colors, which {base} and {bottleneck} do not both")
        self.tanh, self.carry = tanh and offset_groups is None, carry
        widths = [base, base, 2 * base, 4 * base, 8 * base]
        self.enter = words.enter(keep_offset=True)
        self.first = words.chain(3, base, 4, 2, _SLOPE, norm=False)
        self.encoder = nn.Sequential(*(words.chain(*features, 4, 2, _SLOPE) for features in pairwise(widths)))
        self.squeeze = words.squeeze(widths[-1], bottleneck, 4, _SLOPE)
        self.expand = words.expand(bottleneck, widths[-1], 4)
        self.decoder = nn.Sequential(*(words.up(*features) for features in pairwise(widths[:0:-1])))
        self.last = words.last_up(base, 3)
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1:] != (3, 128, 128):
            raise ValueError(f"expected images (N, 3, 128, 128), but got {tuple(images.shape)}")
        start = self.enter(images)
        x = self.first(self.words.without_offset(start, carry=self.carry))
        answer = self.last(self.decoder(self.expand(self.squeeze(self.encoder(x)))))
        answer = self.words.with_offset(answer, start)
        answer = answer.to(statistics_dtype(answer))
        return answer.tanh() if self.tanh else answer

    @torch.no_grad()
    def shift_answer(self, amount: Tensor) -> None:
        """Add `amount` (3,) to all answers, before the tanh where there is one: to the bias of the last layer."""
        last: Any = getattr(self.last, "conv", self.last)
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
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        # As its weights lie, which the engine decides: images that were filled in come as they were computed.
        first: Any = self.layers[0]
        last = first.weight.is_contiguous(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        return self.score(self.layers(2 * images - 1)).flatten()


def _initialize(network: nn.Module) -> None:
    """Normal weights of standard deviation 0.02, as generative adversarial networks of convolutions start."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
