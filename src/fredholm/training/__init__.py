"""Training a task: the loop, optimiser groups, schedule, checkpoints and logs."""

from .batches import LostWorkerError
from .checkpoint import Checkpoints, load_weights
from .config import TrainingConfig
from .ema import ExponentialMovingAverage, warmed_decay
from .interruption import InterruptedRunError
from .kept_result import kept_result
from .learner import Learner, NonFiniteError, StepReport
from .parameter_groups import parameter_groups
from .random_state import seed_everything
from .run import Result, Run, train
from .run_folder import RunFolder
from .schedule import learning_rate
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
    "Trainer",
    "TrainingConfig",
    "kept_result",
    "learning_rate",
    "load_weights",
    "parameter_groups",
    "seed_everything",
    "train",
    "warmed_decay",
]
