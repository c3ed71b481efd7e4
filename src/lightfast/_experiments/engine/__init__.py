"""The training engine: one readable loop for any task, on any device, in one process or many."""

from lightfast._experiments.engine.checkpoint import CheckpointError
from lightfast._experiments.engine.interrupt import Interrupted
from lightfast._experiments.engine.lock import FolderInUse, holding
from lightfast._experiments.engine.loop import CHECKPOINT, Diverged, Job, seconds_before, train, train_many
from lightfast._experiments.engine.order import Draw
from lightfast._experiments.engine.processes import ProcessLost, is_main, sync_batch_norm
from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.engine.schedule import learning_rate
from lightfast._experiments.engine.task import GameTask, LazyTask, Phase, Player, Task

__all__ = [
    "CHECKPOINT",
    "CheckpointError",
    "Diverged",
    "Draw",
    "FolderInUse",
    "GameTask",
    "Interrupted",
    "Job",
    "LazyTask",
    "Phase",
    "Player",
    "ProcessLost",
    "Recipe",
    "Task",
    "holding",
    "is_main",
    "learning_rate",
    "seconds_before",
    "sync_batch_norm",
    "train",
    "train_many",
]
