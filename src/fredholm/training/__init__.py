"""Training a task: the loop, optimiser groups, schedule, checkpoints and logs."""

from fredholm.storage.tensors import load_weights

from .batches import LostWorkerError
from .config import TrainingConfig, learning_rate
from .interruption import InterruptedRunError
from .kept_result import kept_result
from .learner import ExponentialMovingAverage, Learner, NonFiniteError, StepReport, parameter_groups, warmed_decay
from .random_state import seed_everything
from .run import Result, Run, train
from .storage.checkpoint import Checkpoints
from .storage.run_folder import RunFolder
from .task_model import TaskModel, from_pretrained
from .trainer import DivergedError, Trainer

__all__ = [
    "Checkpoints",
    "DivergedError",
    "ExponentialMovingAverage",
    "InterruptedRunError",
    "Learner",
    "LostWorkerError",
    "NonFiniteError",
    "Result",
    "Run",
    "RunFolder",
    "StepReport",
    "TaskModel",
    "Trainer",
    "TrainingConfig",
    "from_pretrained",
    "kept_result",
    "learning_rate",
    "load_weights",
    "parameter_groups",
    "seed_everything",
    "train",
    "warmed_decay",
]
