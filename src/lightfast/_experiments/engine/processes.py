"""The processes that `torchrun` starts, working as one: shared batch norm, averaged gradients, an end in common.

Batch norm is shared on any backend, gloo on CPUs included, where torch's own SyncBatchNorm does not go.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import new_class
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from lightfast._experiments.engine.task import Loss


class ProcessLost(RuntimeError):
    """Another process of the same training has ended, so this one cannot go on."""

    def __init__(self) -> None:
        super().__init__(
            "another process of this training has ended, and this one ends with it; what that one said tells why. "
            "To go on from the last checkpoint, give the same command with --resume"
        )


def rank() -> int:
    """The number of this process, from 0; on all machines together."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """How many processes `torchrun` has started, on all machines together; without it, 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process is the one that writes files and talks to the user: the first of all, or the only one."""
    return rank() == 0


def choose_device(name: str = "auto") -> torch.device:
    """The device called auto, cpu or cuda; among the processes on one machine each has a GPU of its own, by number.

    Raises:
        ValueError: there is no such device, or none left for this process.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"the device is auto, cpu or cuda, not {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or torch was installed without CUDA: use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if count() == 1:
        return torch.device("cuda")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"this machine has {torch.cuda.device_count()} GPUs, one for a process: start at most so many "
            "(--nproc_per_node), or use --device cpu"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def join(device: torch.device) -> None:
    """Meet the other processes, once; their addresses are in the environment. Alone there is nothing to do."""
    if count() == 1 or dist.is_initialized():
        return
    if threading.current_thread() is threading.main_thread():
        _end_with_a_sentence()
    on_gpu = device.type == "cuda"
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    atexit.register(dist.destroy_process_group)


@contextmanager
def together() -> Iterator[None]:
    """Inside this context the loss of another process is a :class:`ProcessLost`, not an error of the network's."""
    try:
        yield
    except RuntimeError as error:
        if _many_processes() and (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise ProcessLost from error
        raise


def _end_with_a_sentence() -> None:
    """Let SIGTERM, which `torchrun` sends to all processes when one has ended, end this one with a sentence.

    It may be waiting for a GPU or a message, where no handler of Python's runs: a thread is told by the system itself.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def wait() -> None:
        while os.read(woken, 1) != bytes([signal.SIGTERM]):
            pass
        print(f"lightfast: {ProcessLost()}", file=sys.stderr, flush=True)
        os._exit(1)

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # The workers of data loaders are ended by the same signal, which is then their own matter.
    os.register_at_fork(after_in_child=forget)
    threading.Thread(target=wait, daemon=True).start()


def averaging_gradients(loss: Loss, parameters: Sequence[nn.Parameter]) -> Loss:
    """`loss`, whose backward pass leaves in the parameters the mean of all processes' gradients.

    Gradients are sent while others are still being computed. Alone it is `loss` itself.
    """
    if not _many_processes():
        return loss
    averaging = DistributedDataParallel(_LossModule(loss, parameters), init_sync=False)
    if parameters[0].device.type == "cpu":
        averaging.register_comm_hook(None, _mean_in_order)
    return averaging


def without_averaging(loss: Loss) -> AbstractContextManager[None]:
    """Inside this context gradients of a loss from :func:`averaging_gradients` only add up, each process its own."""
    return loss.no_sync() if isinstance(loss, DistributedDataParallel) else nullcontext()


class _LossModule(nn.Module):
    """A loss as the module that DistributedDataParallel wants, with the parameters whose gradients are averaged."""

    def __init__(self, loss: Loss, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.loss, self.parameters_of_loss = loss, nn.ParameterList(parameters)

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return self.loss(batch)


def _mean_in_order(_, bucket):  # Torch checks types at run time, and cannot read annotations that are text.
    """The mean of a bucket of gradients, added up in the order of the processes.

    All-reduce adds up in an order that depends on a gradient's place among the others. That differs between a run's
    first step and its second, so a run that goes on from a checkpoint would round otherwise.
    """
    own = bucket.buffer()
    every = own.new_empty(dist.get_world_size(), own.numel())
    sent = dist.all_gather(list(every), own, async_op=True)
    assert sent is not None
    return sent.get_future().then(lambda _: every.mean(0))


def copy_from_main(tensors: Iterable[Tensor]) -> None:
    """Give the tensors, in place, the values that they have in the first process."""
    for tensor in tensors if _many_processes() else ():
        dist.broadcast(tensor, 0)


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
        layer.share_moments = mean_over_processes
    try:
        yield model
    finally:
        for layer, own in norms:
            layer.__class__ = own
        for layer in sharing:
            layer.share_moments = None


def mean_over_processes(x: Tensor) -> Tensor:
    """The mean of a tensor over all processes, differentiable."""
    return _sum_over_processes(x) / dist.get_world_size() if _many_processes() else x


def _many_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _SumOverProcesses.forward(ctx, grad)


def _sum_over_processes(x: Tensor) -> Tensor:
    total = _SumOverProcesses.apply(x)
    assert isinstance(total, Tensor)
    return total


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
    """Mean (C,), population variance (C,) and number of values per channel, of `x` (N, C, ...) of all processes.

    Each process puts its own moments into its row of a table, and the sum of the tables has them all: one message.
    Variances are merged about the means; mean squares would cancel in float32 where means are large.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0)
    own = torch.cat([mean, variance, x.new_full((1,), x.numel() / x.shape[1])])
    rows = [own if row == dist.get_rank() else torch.zeros_like(own) for row in range(dist.get_world_size())]
    table = _sum_over_processes(torch.stack(rows))
    means, variances, counts = table[:, : x.shape[1]], table[:, x.shape[1] : -1], table[:, -1:].detach()
    weights = counts / counts.sum()
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean).square())).sum(0)
    return mean, variance, counts.sum()
