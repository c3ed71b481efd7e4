"""Which images show the same scene, found by what they show: for splits that are to share none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CELL = 2
_REACH = 8


@torch.no_grad()
def same_scene(images: Tensor, alike: float = 0.4) -> Tensor:
    """Number images (N, 3, H, W) by scene: int64 (N,), equal for those that are linked by likeness.

    Likeness is the correlation of two images' details, at the best of some shifts: `log x` averaged over the channels,
    less its mean over a neighborhood of an eighth of the image to each side; shifts go as far. Neither light, exposure
    nor a camera's gains change that. Images linked by a chain of likenesses above `alike` have the same number, so two
    scenes may be taken for one, which costs a split nothing; the low threshold is against taking one for two.

    Pixels that are 0 in all channels are masked.
    """
    details = _details(images)
    likeness = _likeness(details)
    linked = (likeness > alike) | torch.eye(len(images), dtype=torch.bool, device=images.device)
    numbers = torch.arange(len(images), device=images.device)
    while True:
        # The least number among the linked ones spreads until nothing changes.
        least = torch.where(linked, numbers, len(images)).amin(1)
        if torch.equal(least, numbers):
            return least.unique(return_inverse=True)[1].cpu()
        numbers = least


def _details(images: Tensor) -> Tensor:
    """(N, H / 2, W / 2): large where a pixel differs from its neighborhood, 0 where it is masked."""
    seen = (images > 0).any(1, keepdim=True).to(images.dtype)
    share = F.avg_pool2d(seen, _CELL)
    mean = F.avg_pool2d(images * seen, _CELL) / share.clamp(min=1e-6)
    counts = (share > 0.5).to(images.dtype)
    level = (mean + 1e-3 * mean.mean((2, 3), keepdim=True) + 1e-6).log().mean(1, keepdim=True) * counts
    reach = max(1, level.shape[2] // _REACH)
    window = torch.ones(1, 1, 2 * reach + 1, 2 * reach + 1, dtype=images.dtype, device=images.device)
    around = F.conv2d(level, window, padding=reach) / F.conv2d(counts, window, padding=reach).clamp(min=1)
    details = ((level - around) * counts)[:, 0]
    return (details / details.abs().mean((1, 2), keepdim=True).clamp(min=1e-6)).clamp(-4, 4)


def _likeness(details: Tensor) -> Tensor:
    """(N, N): the largest correlation over shifts."""
    height, width = details.shape[1:]
    best = details.new_full((len(details), len(details)), -1.0)
    far_down, far_across = max(1, height // _REACH), max(1, width // _REACH)
    for down in range(-far_down, far_down + 1):
        for across in range(-far_across, far_across + 1):
            here = details[:, max(down, 0) : height + min(down, 0), max(across, 0) : width + min(across, 0)]
            there = details[:, max(-down, 0) : height + min(-down, 0), max(-across, 0) : width + min(-across, 0)]
            best = torch.maximum(best, F.normalize(here.flatten(1)) @ F.normalize(there.flatten(1)).T)
    return torch.maximum(best, best.T)
