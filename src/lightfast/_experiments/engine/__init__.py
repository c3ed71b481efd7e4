"""The training engine: one readable loop for any task, on any device, in one process or many."""

from lightfast._experiments.engine.checkpoint import CheckpointError
from lightfast._experiments.engine.loop import CHECKPOINT, Diverged, Job, train, train_many
from lightfast._experiments.engine.order import Draw
from lightfast._experiments.engine.processes import sync_batch_norm
from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.engine.schedule import learning_rate
from lightfast._experiments.engine.task import GameTask, LazyTask, Phase, Player, Task

__all__ = [
    "CHECKPOINT",
    "CheckpointError",
    "Diverged",
    "Draw",
    "GameTask",
    "Job",
    "LazyTask",
    "Phase",
    "Player",
    "Recipe",
    "Task",
    "learning_rate",
    "sync_batch_norm",
    "train",
    "train_many",
]
