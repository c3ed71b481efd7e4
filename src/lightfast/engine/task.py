"""What the engine trains: a task, for one model, or several players that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightfast.engine.order import Draw

__all__ = ["LazyTask", "Phase", "Task"]


class Task(Protocol):
    """What to train. The engine knows nothing else of it.

    In many processes and micro-batches each has an equal share of the batch; losses that are means over images give
    the gradient of the whole batch.
    """

    samples: int
    """Size of the training set."""

    def to(self, device: torch.device) -> None:
        """Move the data that lives on the device there; called once, before training."""
        ...

    def batch(self, indices: Any, generator: torch.Generator) -> Any:
        """Gather and augment on the device the samples at `indices` (B,), which are there; random from `generator`.

        Under a CUDA graph this is recorded once: shapes must not depend on values, nor may the host read any.
        """
        ...

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and values to log by name: tensors without axes."""
        ...


@runtime_checkable
class LazyTask(Protocol):
    """A task whose samples are read while training goes on. It has all of :class:`Task`, and this."""

    def read_ahead(self, draws: Iterable[Draw], device: torch.device) -> Iterator[Any]:
        """What :meth:`Task.batch` takes in the place of indices, for each draw in order, on the device."""
        ...


@dataclass(frozen=True)
class Phase:
    """One player's turn within a step: the loss of a batch, and the optimizer of the parameters that it moves."""

    parameters: list[nn.Parameter]
    loss: Callable[[Any], tuple[Tensor, dict[str, Tensor]]]
    optimizer: Optimizer
