"""Many processes as one: batch norm with the statistics of the whole batch, and gradients averaged over it.

On any backend, gloo on CPUs included, where torch's own SyncBatchNorm does not go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import new_class
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["average_gradients", "is_main", "sync_batch_norm"]


def is_main() -> bool:
    """Whether this process is the one among several that writes and speaks."""
    from accelerate import PartialState

    return PartialState().is_main_process


@contextmanager
def sync_batch_norm(model: nn.Module) -> Iterator[nn.Module]:
    """Inside this context all batch norms of `model`, torch's and lightfast's, share moments between processes.

    Differentiable: the gradient flows through the shared moments into every process. Layers that compute batch
    statistics themselves and offer to share them, in an attribute `share_moments`, are given the mean over processes
    there. At the end all layers are what they were. In a single process nothing changes.

    >>> with sync_batch_norm(nn.BatchNorm2d(3)) as layer:
    ...     type(layer).__name__
    'BatchNorm2d'
    """
    layers = list(model.modules()) if _many_processes() else []
    norms = [(layer, type(layer)) for layer in layers if isinstance(layer, _BatchNorm)]
    sharing: list[Any] = [layer for layer in layers if hasattr(layer, "share_moments")]
    for layer, own in norms:
        # After the layer's own classes and before torch's `_BatchNorm`, so that what they do around it stays.
        layer.__class__ = new_class(f"Synchronized{own.__name__}", (own, _SharedMoments))
    for layer in sharing:
        layer.share_moments = _mean_over_processes
    try:
        yield model
    finally:
        for layer, own in norms:
            layer.__class__ = own
        for layer in sharing:
            layer.share_moments = None


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradients by their mean over all processes, in one message for each type of number."""
    if not _many_processes():
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for dtype in {gradient.dtype for gradient in gradients}:
        same = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.flatten() for gradient in same])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, mean in zip(same, flat.split([gradient.numel() for gradient in same]), strict=True):
            gradient.copy_(mean.view(gradient.shape))


def _many_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total


def _mean_over_processes(x: Tensor) -> Tensor:
    """The mean of a tensor over all processes, differentiable."""
    total = _SumOverProcesses.apply(x)
    assert isinstance(total, Tensor)
    return total / dist.get_world_size()


class _SharedMoments(_BatchNorm):
    """Batch norm whose mean and variance are those of the batches of all processes together."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        self._check_input_dim(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        mean, variance, count = _shared_moments(x)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = (variance + self.eps).rsqrt()
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        axes = (1, -1) + (1,) * (x.dim() - 2)
        return (x * scale.view(axes) + shift.view(axes)).to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


def _shared_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (C,), population variance (C,) and number of values a channel, of `x` (N, C, ...) of all processes.

    Each process puts its own moments into its row of a table, and the sum of the tables has them all: one message.
    Variances are merged about the means; mean squares would cancel in float32 where means are large.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0)
    own = torch.cat([mean, variance, x.new_full((1,), x.numel() / x.shape[1])])
    rank, processes = dist.get_rank(), dist.get_world_size()
    rows = [own if row == rank else torch.zeros_like(own) for row in range(processes)]
    table = _SumOverProcesses.apply(torch.stack(rows))
    assert isinstance(table, Tensor)
    means, variances, counts = table[:, : x.shape[1]], table[:, x.shape[1] : -1], table[:, -1:].detach()
    count = counts.sum()
    weights = counts / count
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return mean, variance, count
