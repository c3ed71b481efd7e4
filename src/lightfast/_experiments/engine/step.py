"""One step of training: each player in turn computes its loss, its gradient, and moves its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lightfast._experiments.engine.average import Meter, ModelAverage, model_tensors
from lightfast._experiments.engine.optimizer import make_optimizer, optimizer_tensors, set_learning_rate
from lightfast._experiments.engine.order import Order
from lightfast._experiments.engine.processes import averaging_gradients, without_averaging
from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.engine.schedule import learning_rate
from lightfast._experiments.engine.task import GameTask, Phase, Player, Task

_WARMUP_STEPS = 3


class Step:
    """A step of `task` on `model`, both on the device, and all that it changes.

    `capturable` says whether the step is to be captured in a CUDA graph.
    """

    def __init__(
        self, model: nn.Module, task: Task, recipe: Recipe, device: torch.device, capturable: bool = False
    ) -> None:
        self.model, self.task, self.recipe, self.device, self.capturable = model, task, recipe, device, capturable
        self.phases = _phases(model, task, recipe, capturable)
        self.average = None if recipe.ema is None else ModelAverage(model, recipe.ema)
        self.meter = Meter()
        self.generator = torch.Generator(device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name: a checkpoint is these and the number of the step."""
        parts = {"model": model_tensors(self.model), "meter": self.meter.sums}
        if self.average is not None:
            parts["average"] = self.average.tensors
        parts |= {f"optimizer.{number}": optimizer_tensors(phase.optimizer) for number, phase in enumerate(self.phases)}
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def prepare(self, step: int) -> None:
        """Set what differs between steps."""
        for phase in self.phases:
            set_learning_rate(phase.optimizer, learning_rate(phase.recipe, step))
        if self.average is not None:
            self.average.set_step(step)

    def seed(self, seed: int) -> None:
        """Seed all that a micro-batch may draw from: the task's generator, and torch's own for dropout."""
        self.generator.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)

    def run(self, inputs: Sequence[Any], seeds: Sequence[int] | None) -> None:
        """All phases on the micro-batches, of which `inputs` are the indices or what was loaded for them.

        Args:
            inputs: one a micro-batch.
            seeds: likewise; None where the randomness is seeded from outside, as under a CUDA graph.
        """
        batches: list[Any] = []
        for phase in self.phases:
            phase.optimizer.zero_grad(set_to_none=True)
            with self._turn_of(phase):
                for number, indices in enumerate(inputs):
                    if phase is self.phases[0]:
                        batch = self._make_batch(indices, None if seeds is None else seeds[number])
                        if len(self.phases) > 1:
                            batches.append(batch)
                    else:
                        batch = batches[number]
                    last = number + 1 == len(inputs)
                    with nullcontext() if last else without_averaging(phase.loss):
                        self._backward(phase, batch, 1 / len(inputs))
            if phase.recipe.clip is not None:
                nn.utils.clip_grad_norm_(phase.parameters, phase.recipe.clip)
            phase.optimizer.step()
        if self.average is not None:
            self.average.update()

    @torch.no_grad()
    def _make_batch(self, indices: Any, seed: int | None) -> Any:
        if seed is not None:
            self.seed(seed)
        return self.task.batch(indices, self.generator)

    @contextmanager
    def _turn_of(self, phase: Phase) -> Iterator[None]:
        """While a player moves, the parameters of the others want no gradient."""
        still = [parameter for other in self.phases if other is not phase for parameter in other.parameters]
        for parameter in still:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in still:
                parameter.requires_grad_(True)

    def _backward(self, phase: Phase, batch: Any, share: float) -> None:
        """Add the gradient of a micro-batch that is this share of the process's batch."""
        low = self.recipe.precision == "bfloat16"
        # Weights cast inside a graph must be cast again at each replay, so the cache of casts is off there.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low, cache_enabled=not self.capturable):
            loss, values = phase.loss(batch)
        (loss * share).backward()
        self.meter.add({"loss": loss, **values}, share)


class GraphedStep:
    """A step captured once in a CUDA graph and replayed: the host only says which samples, which seed, which rate.

    Capture changes nothing: weights, optimizer, statistics and sums are afterwards as they were.

    Args:
        step: made with `capturable`.
        order: with its indices on the device.
        stream: where the graph is captured and replayed; the current stream when called, too.
    """

    def __init__(self, step: Step, order: Order, stream: torch.cuda.Stream) -> None:
        self.step, self.order = step, order
        self.indices = order.indices(0).clone()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(step.generator)
        before = {name: tensor.clone() for name, tensor in step.tensors().items()}
        step.prepare(0)
        # cuDNN, cuBLAS and autograd set themselves up in their first calls, which a graph must not contain.
        for _ in range(_WARMUP_STEPS):
            step.run(self.indices.unbind(), None)
        for phase in step.phases:
            phase.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph, stream=stream):
            step.run(self.indices.unbind(), None)
        for name, tensor in step.tensors().items():
            if name in before:
                tensor.copy_(before[name])
            else:
                tensor.zero_()

    def run(self, number: int) -> None:
        """Replay the graph as step number `number`, without waiting for it."""
        self.indices.copy_(self.order.indices(number))
        self.step.seed(self.order.seeds(number)[0])
        self.graph.replay()


def _phases(model: nn.Module, task: Task, recipe: Recipe, capturable: bool) -> list[Phase]:
    """The players of a task; where there is one, it is the model, which moves all that requires a gradient."""
    if isinstance(task, GameTask):
        players = task.players(model)
    else:
        everything = [parameter for parameter in model.parameters() if parameter.requires_grad]
        forward: Any = torch.compile(model) if recipe.compile else model
        players = [Player(everything, lambda batch: task.loss(forward, batch))]
    phases = []
    for player in players:
        own, parameters = dataclasses.replace(recipe, **player.changes), list(player.parameters)
        optimizer = make_optimizer(parameters, own, capturable=capturable)
        phases.append(Phase(parameters, averaging_gradients(player.loss, parameters), optimizer, own))
    return phases
