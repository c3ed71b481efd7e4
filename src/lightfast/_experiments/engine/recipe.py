"""The recipe: everything that determines a training run, as plain values that go to JSON and back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

OptimizerName = Literal["sgd", "adamw", "adam"]
ScheduleName = Literal["step", "cosine", "constant"]
PrecisionName = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """How to train. The same recipe, model, task and number of micro-batches give the same weights.

    Args:
        steps: how many times the weights are updated.
        batch_size: images a step, over all processes and micro-batches together.
        optimizer: `sgd` (with `momentum`, `nesterov`), `adamw` or `adam` (with `betas`).
        lr: the learning rate before the schedule lowers it.
        momentum: of `sgd`.
        nesterov: whether `sgd` looks ahead.
        betas: of `adam` and `adamw`.
        weight_decay: of all parameters; decoupled from the gradient in `adamw`.
        schedule: `step` multiplies by `gamma` at each of `milestones`; `cosine` falls to 0 over the run.
        milestones: steps at which the `step` schedule drops.
        gamma: by how much it drops.
        warmup: over so many first steps the rate grows from `lr / warmup` to `lr`.
        ema: decay of the exponential moving average of the weights, which is then the result; None for no average.
        precision: `bfloat16` computes the loss under autocast; weights and optimizer stay float32.
        accumulate: micro-batches a process works through for one step.
        clip: largest norm of the gradient; None for any.
        seed: of the order of the samples, the augmentation and the dropout.
        log_every: steps between two log lines.
        checkpoint_every: steps between two checkpoints; 0 for none, where writing one takes longer than is ever lost.
        channels_last: keep the weights of convolutions in that memory format.
        graph: replay the whole step from a CUDA graph. Ignored where that cannot be: on other devices, in many
            processes, for data that is read lazily.
        compile: let torch's compiler join what the network does, as far as a task has one network; faster on a GPU,
            after a minute.

    >>> Recipe(steps=64_000, milestones=(32_000, 48_000)).to_dict()["milestones"]
    [32000, 48000]
    """

    steps: int
    batch_size: int = 128
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-4
    schedule: ScheduleName = "step"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    warmup: int = 0
    ema: float | None = None
    precision: PrecisionName = "float32"
    accumulate: int = 1
    clip: float | None = None
    seed: int = 0
    log_every: int = 100
    checkpoint_every: int = 1000
    channels_last: bool = False
    graph: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        """Complain about values that cannot be meant, in a sentence."""
        for name in ("steps", "batch_size", "accumulate", "log_every", "checkpoint_every"):
            least = 0 if name == "checkpoint_every" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name, kind in (("optimizer", OptimizerName), ("schedule", ScheduleName), ("precision", PrecisionName)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} is one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"a batch of {self.batch_size} cannot be split into {self.accumulate} equal micro-batches: "
                "choose a batch_size that accumulate divides"
            )
        if not 0 <= self.warmup <= self.steps:
            raise ValueError(f"warmup must be between 0 and the {self.steps} steps, not {self.warmup}")
        if list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"milestones must grow, not {self.milestones}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(f"ema must be at least 0 and below 1, or None for no average; not {self.ema}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be above 0, or None for no limit; not {self.clip}")

    def to_dict(self) -> dict[str, Any]:
        """The values by name, as JSON can hold them (tuples become lists)."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
