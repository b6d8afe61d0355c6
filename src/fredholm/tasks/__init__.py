"""Data, loss and metric of one kind of problem each."""

from .field_learning import FieldLearning
from .graph_learning import GraphLearning
from .image_classification import ImageClassification
from .language_modelling import LanguageModelling
from .link_learning import LinkLearning
from .masked_language_modelling import MaskedLanguageModelling
from .node_learning import NodeLearning
from .point_learning import PointLearning
from .segmentation import Segmentation
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
    Segmentation,
    FieldLearning,
    PointLearning,
    GraphLearning,
    NodeLearning,
    LinkLearning,
)
"""Every task of the library; a new one is added here."""

__all__ = [
    "TASKS",
    "Batch",
    "EpochTask",
    "Examples",
    "FieldLearning",
    "GraphLearning",
    "ImageClassification",
    "LanguageModelling",
    "LinkLearning",
    "MaskedLanguageModelling",
    "NodeLearning",
    "Objective",
    "PointLearning",
    "Prediction",
    "Segmentation",
    "SentenceLearning",
    "SeriesClassification",
    "SplitTask",
    "Splits",
    "Task",
]
