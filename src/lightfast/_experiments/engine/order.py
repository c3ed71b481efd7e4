"""Which samples each step sees, and the seed of its randomness: functions of the recipe's seed and the step alone.

Nothing random has a state that outlives a step. So there is none to save, a run that is resumed at step `s` is the run
that was never interrupted, and processes share a batch without telling each other what they drew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


class Draw(NamedTuple):
    """A micro-batch: which samples, (B,), and the seed of what is random about it."""

    indices: Tensor
    seed: int


def seed_of(*numbers: int) -> int:
    """A seed that looks random, from integers that are not; all its bits depend on all of them.

    >>> seed_of(0, 1) != seed_of(1, 0)
    True
    """
    state = 0
    for number in numbers:
        # SplitMix64 (Steele, Lea and Flood 2014).
        state = (state + (number & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


class Order:
    """The samples in the order in which they are trained on: one permutation after another, without a gap.

    A batch that reaches the end of an epoch goes on with the next, so every batch is full and every sample is seen
    equally often. The batch is split into `parts` micro-batches; this process has `own` of them.

    Args:
        samples: size of the training set.
        batch_size: of the whole batch.
        seed: the permutations, and the seeds of the draws, follow from it.
        parts: micro-batches of a step, over all processes.
        own: which of them belong to this process.
        device: where the indices are wanted.

    >>> order = Order(samples=5, batch_size=4, seed=0, parts=2, own=range(2))
    >>> seen = torch.cat([draw.indices for draw in order.draws(0, 5)])
    >>> torch.bincount(seen).tolist()
    [4, 4, 4, 4, 4]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        seed: int,
        parts: int = 1,
        own: range = range(1),
        device: torch.device | str = "cpu",
    ) -> None:
        if samples < 1:
            raise ValueError("the training set is empty: there is nothing to train on")
        if batch_size % parts:
            raise ValueError(
                f"a batch of {batch_size} cannot be split evenly over {parts} micro-batches (processes times "
                f"accumulate): choose a batch_size that {parts} divides"
            )
        self.samples, self.batch_size, self.seed, self.parts, self.own = samples, batch_size, seed, parts, own
        self.device = torch.device(device)
        self._permutations: dict[int, Tensor] = {}

    def epoch(self, step: int) -> float:
        """How many times the training set has been seen before step number `step`."""
        return step * self.batch_size / self.samples

    def indices(self, step: int) -> Tensor:
        """This process's samples in step number `step`, (own parts, B)."""
        size = self.batch_size // self.parts
        first = step * self.batch_size + self.own.start * size
        return self._positions(first, first + len(self.own) * size).view(len(self.own), size)

    def seeds(self, step: int) -> list[int]:
        """The seed of each of this process's micro-batches in step number `step`."""
        return [seed_of(self.seed, 1, step * self.parts + part) for part in self.own]

    def draws(self, step: int, stop: int) -> Iterator[Draw]:
        """This process's micro-batches in the steps from number `step` up to `stop`, for loading ahead."""
        for number in range(step, stop):
            yield from map(Draw, self.indices(number), self.seeds(number))

    def _positions(self, first: int, stop: int) -> Tensor:
        """Entries `first` to `stop` of the endless sequence of permutations."""
        epochs = range(first // self.samples, (stop - 1) // self.samples + 1)
        self._permutations = {epoch: self._permutation(epoch) for epoch in epochs}
        rows = [
            permutation[max(first - epoch * self.samples, 0) : stop - epoch * self.samples]
            for epoch, permutation in self._permutations.items()
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch in self._permutations:
            return self._permutations[epoch]
        generator = torch.Generator().manual_seed(seed_of(self.seed, 0, epoch))
        permutation = torch.randperm(self.samples, generator=generator)
        if self.device.type == "cuda":
            # From pinned memory the copy joins the queue; from any other the host would wait for the steps before it.
            return permutation.pin_memory().to(self.device, non_blocking=True)
        return permutation.to(self.device)
