"""The training engine: one readable loop for any task, on any device, in one process or many."""

from lightfast.engine.checkpoint import CheckpointError
from lightfast.engine.loop import CHECKPOINT, Diverged, Job, train, train_many
from lightfast.engine.order import Draw
from lightfast.engine.processes import sync_batch_norm
from lightfast.engine.recipe import Recipe
from lightfast.engine.schedule import learning_rate
from lightfast.engine.task import LazyTask, Phase, Task

__all__ = [
    "CHECKPOINT",
    "CheckpointError",
    "Diverged",
    "Draw",
    "Job",
    "LazyTask",
    "Phase",
    "Recipe",
    "Task",
    "learning_rate",
    "sync_batch_norm",
    "train",
    "train_many",
]
