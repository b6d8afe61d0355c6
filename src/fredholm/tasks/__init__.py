"""Data, loss and metric of one kind of problem each."""

from .field_learning import FieldLearning
from .forecasting import Forecasting
from .graph_learning import GraphLearning
from .image_learning import ImageLearning
from .image_text_learning import ImageTextLearning
from .inputs import Inputs, Kinds
from .language_modelling import LanguageModelling
from .link_learning import LinkLearning
from .masked_language_modelling import MaskedLanguageModelling
from .node_learning import NodeLearning
from .operator_learning import OperatorLearning
from .outputs import Outputs
from .point_learning import PointLearning
from .prediction import Prediction
from .segmentation import Segmentation
from .sentence_learning import SentenceLearning
from .series_learning import SeriesLearning
from .splits import Examples, Splits
from .task import Batch, EpochTask, Objective, Source, SplitTask, Task

TASKS: tuple[type[Task], ...] = (
    ImageLearning,
    LanguageModelling,
    MaskedLanguageModelling,
    SentenceLearning,
    SeriesLearning,
    Forecasting,
    Segmentation,
    FieldLearning,
    OperatorLearning,
    PointLearning,
    GraphLearning,
    NodeLearning,
    LinkLearning,
    ImageTextLearning,
)
"""Every task of the library; a new one is added here."""

__all__ = [
    "TASKS",
    "Batch",
    "EpochTask",
    "Examples",
    "FieldLearning",
    "Forecasting",
    "GraphLearning",
    "ImageLearning",
    "ImageTextLearning",
    "Inputs",
    "Kinds",
    "LanguageModelling",
    "LinkLearning",
    "MaskedLanguageModelling",
    "NodeLearning",
    "Objective",
    "OperatorLearning",
    "Outputs",
    "PointLearning",
    "Prediction",
    "Segmentation",
    "SentenceLearning",
    "SeriesLearning",
    "Source",
    "SplitTask",
    "Splits",
    "Task",
]
