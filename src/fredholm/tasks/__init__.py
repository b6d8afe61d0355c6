"""Data, loss and metric of one kind of problem each."""

from .field_learning import FieldLearning
from .image_classification import ImageClassification
from .language_modelling import LanguageModelling
from .masked_language_modelling import MaskedLanguageModelling
from .sentence_learning import SentenceLearning
from .series_classification import SeriesClassification
from .splits import Examples, Splits
from .task import Batch, EpochTask, Objective, Prediction, SplitTask, Task

TASKS: tuple[type[Task], ...] = (
    ImageClassification,
    LanguageModelling,
    MaskedLanguageModelling,
    SentenceLearning,
    SeriesClassification,
    FieldLearning,
)
"""Every task of the library; a new one is added here."""

__all__ = [
    "TASKS",
    "Batch",
    "EpochTask",
    "Examples",
    "FieldLearning",
    "ImageClassification",
    "LanguageModelling",
    "MaskedLanguageModelling",
    "Objective",
    "Prediction",
    "SentenceLearning",
    "SeriesClassification",
    "SplitTask",
    "Splits",
    "Task",
]
