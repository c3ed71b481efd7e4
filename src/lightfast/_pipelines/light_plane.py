"""Light that differs over the picture: a plane in log RGB through the lights of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Windows(NamedTuple):
    """How a picture is looked at in parts, and how stiff the plane through their lights is.

    Chosen on MIMO's pictures for validation: `benchmarks/several_lights.py`.
    """

    across: int = 9
    part: float = 0.35
    stiffness: float = 0.05

    def boxes(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """First and last row, first and last column of each, in pixels; `across` times as many, each `part` as wide."""
        tall, wide = max(1, round(self.part * height)), max(1, round(self.part * width))
        tops, lefts = (
            torch.linspace(0, side - length, self.across).round().int().tolist()
            for side, length in ((height, tall), (width, wide))
        )
        return [(top, top + tall, left, left + wide) for top in tops for left in lefts]

    def plane(self, logs: Tensor, weights: Tensor, size: Sequence[int]) -> Tensor:
        """The plane of least squares through what is known at the boxes' centers, at every pixel.

        With `y` and `x` from -1 to 1 over the picture, `a + b y + c x` has the least `Σ w_k |l_k - l(y_k, x_k)|²`
        `+ s Σ w_k (|b|² + |c|²)`: where windows say little, or disagree, or see a corner alone, it is flat. What is
        added to all `l_k` is added to the plane.

        Args:
            logs: `l`, (K, N, 3).
            weights: `w`, (K, N).
            size: of the picture.

        Returns:
            (N, 3, *size).
        """
        boxes = torch.tensor(self.boxes(size[0], size[1]), dtype=logs.dtype, device=logs.device)
        # Where nothing counts at all, all windows say as much.
        weights = weights.clamp(min=torch.finfo(weights.dtype).tiny)
        y, x = ((boxes[:, n : n + 2].mean(1) * 2 / side - 1) for n, side in ((0, size[0]), (2, size[1])))
        terms = torch.stack([torch.ones_like(y), y, x], 1)
        weighed = (weights / weights.sum(0)).T[:, None] * terms.T
        stiff = self.stiffness * torch.tensor([0.0, 1.0, 1.0], dtype=logs.dtype, device=logs.device).diag()
        level, *slopes = torch.linalg.solve(weighed @ terms + stiff, weighed @ logs.transpose(0, 1)).unbind(1)
        down, right = ((2 * torch.arange(side, dtype=logs.dtype, device=logs.device) + 1) / side - 1 for side in size)
        return level[..., None, None] + slopes[0][..., None, None] * down[:, None] + slopes[1][..., None, None] * right
