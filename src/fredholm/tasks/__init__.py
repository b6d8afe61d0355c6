"""Data, loss and metric of one kind of problem each."""

from .image_classification import ImageClassification
from .task import Batch, Objective, Prediction, Task

TASKS: tuple[type[Task], ...] = (ImageClassification,)
"""Every task of the library; a new one is added here."""

__all__ = ["TASKS", "Batch", "ImageClassification", "Objective", "Prediction", "Task"]
