"""What the engine trains: a task, for one model, or several players that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightfast._experiments.engine.order import Draw
from lightfast._experiments.engine.recipe import Recipe

Loss = Callable[[Any], tuple[Tensor, dict[str, Tensor]]]
"""From a batch to a loss, and values to log by name: tensors without axes."""


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
class Player:
    """One of several that are trained together, each for its own end: the generator of images, and their critic.

    Args:
        parameters: of the model, those that it moves. Those of the other players are constants in its loss.
        loss: what it wants to be small.
        changes: values of the recipe that are its own, such as `lr` or `betas`.
    """

    parameters: Sequence[nn.Parameter]
    loss: Loss
    changes: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class GameTask(Protocol):
    """A task for several players. It has all of :class:`Task`, of which `loss` is not asked for, and this.

    In each step the players take turns, in order, on the same batch: a player may leave in it what the next ones need.
    The value logged as `loss` is the sum over players.
    """

    def players(self, model: nn.Module) -> Sequence[Player]:
        """Who takes part; asked once, with the model on its device."""
        ...


@dataclass(frozen=True)
class Phase:
    """One player's turn within a step: the loss of a batch, the parameters that it moves, and how."""

    parameters: list[nn.Parameter]
    loss: Loss
    optimizer: Optimizer
    recipe: Recipe
