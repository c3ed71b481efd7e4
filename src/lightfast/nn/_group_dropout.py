"""Whole groups that are missing, as when a light leaves a color channel dark: drop them in training, fill them in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightfast._groups import GroupSpec, group_count
from lightfast.functional import group_pool, spread


class GroupDropout(nn.Module):
    """Drop whole groups of features in training: all of a dropped group falls to the group's mean over the image.

    In log RGB with a lower limit, a light without blue turns the blue channel into a constant. That is what a dropped
    group is too: a constant map, and zero where the map is centered. Nothing is scaled up in return, as evaluation
    has all channels at their usual size. Since the constant is the group's own mean, the layer is equivariant.

    No image loses all its groups: if chance has it so, one of them is kept.

    Args:
        p: probability of dropping a group.
        offset_groups: the assignment of the features.
        at_most: never drop more groups of an image than this; all but one by default.

    Shapes: (N, m, *positions), unchanged. `generator`, on the map's device, is where chance comes from.

    >>> x = torch.rand(100, 3, 8, 8)
    >>> dropped = (GroupDropout(0.5)(x).amax((2, 3)) == GroupDropout(0.5)(x).amin((2, 3))).sum(1)
    >>> bool((dropped <= 2).all())
    True
    """

    def __init__(self, p: float = 0.15, offset_groups: GroupSpec = 3, at_most: int | None = None) -> None:
        super().__init__()
        count = group_count(offset_groups)
        if not 0 <= p < 1:
            raise ValueError(f"the probability of dropping a group must be at least 0 and below 1, but is {p}")
        if at_most is not None and not 1 <= at_most < count:
            raise ValueError(f"at_most must be between 1 and {count - 1}, one less than the groups, but is {at_most}")
        self.p, self.offset_groups, self.at_most = p, offset_groups, at_most

    def forward(self, input: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if not self.training or self.p == 0:
            return input
        count = group_count(self.offset_groups)
        chance = torch.rand((len(input), count), generator=generator, device=input.device)
        # Ranks 0 to count - 1: among the groups that chance drops, the first `at_most` go.
        rank = (chance[:, :, None] > chance[:, None, :]).sum(2)
        dropped = (chance < self.p) & (rank < (count - 1 if self.at_most is None else self.at_most))
        dropped = dropped.reshape(len(input), count, *(1 for _ in input.shape[2:]))
        mean = group_pool(input, self.offset_groups)
        features = input.shape[1]
        dropped = spread(dropped, self.offset_groups, features)
        return torch.where(dropped, spread(mean, self.offset_groups, features).to(input.dtype), input)

    def extra_repr(self) -> str:
        ours = f"p={self.p}, offset_groups={self.offset_groups}"
        return ours if self.at_most is None else f"{ours}, at_most={self.at_most}"


FLAT = 1e-3
"""A group whose values are nowhere further apart is constant: a tenth of a step of 8 bits, where steps are finest."""


class GroupFill(nn.Module):
    """Give a constant group, which a light left dark, the pattern of the others: `x_j = m_j + mean_k (x_k - m_k)`.

    `m` are means over the image, and `k` runs over the groups that are not constant (to :data:`FLAT`: rounding leaves
    some of a map whose offsets were taken away). In log RGB the channels of a picture differ by little but their means,
    so this is the best guess at what the dark one would show. Both parts follow offsets, so the layer is equivariant;
    an image without constant groups passes as it is.

    Args:
        offset_groups: the number of groups, which are equal runs of features: a feature takes its pattern from those
            at its place in the others.

    Shapes: (N, m, *positions), unchanged.

    >>> x = torch.tensor([[[1.0, 3.0], [4.0, 4.0], [20.0, 24.0]]])
    >>> GroupFill()(x)
    tensor([[[ 1.0000,  3.0000],
             [ 2.5000,  5.5000],
             [20.0000, 24.0000]]])
    """

    def __init__(self, offset_groups: int = 3) -> None:
        super().__init__()
        self.offset_groups = offset_groups

    def forward(self, input: Tensor) -> Tensor:
        runs = input.unflatten(1, (self.offset_groups, -1))
        positions = list(range(3, runs.dim()))
        extent = runs.amax(positions, keepdim=True) - runs.amin(positions, keepdim=True)
        constant = (extent <= FLAT).all(2, keepdim=True)
        mean = runs.mean(positions, keepdim=True)
        alive = (~constant).to(input.dtype)
        pattern = ((runs - mean) * alive).sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1)
        return torch.where(constant, mean + pattern, runs).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"offset_groups={self.offset_groups}"
