"""Data, loss and metric of one kind of problem each."""

from .image_classification import ImageClassification
from .language_modelling import LanguageModelling
from .series_classification import SeriesClassification
from .task import Batch, EpochTask, Objective, Prediction, Task

TASKS: tuple[type[Task], ...] = (ImageClassification, LanguageModelling, SeriesClassification)
"""Every task of the library; a new one is added here."""

__all__ = [
    "TASKS",
    "Batch",
    "EpochTask",
    "ImageClassification",
    "LanguageModelling",
    "Objective",
    "Prediction",
    "SeriesClassification",
    "Task",
]
