"""The training engine: one readable loop for any task, on any device, in one process or many."""

from lightfast.engine.checkpoint import CheckpointError
from lightfast.engine.loop import CHECKPOINT, Diverged, Job, train, train_many
from lightfast.engine.order import Draw
from lightfast.engine.processes import sync_batch_norm
from lightfast.engine.recipe import Recipe
from lightfast.engine.schedule import learning_rate
from lightfast.engine.task import GameTask, LazyTask, Phase, Player, Task

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
