"""Tasks: data, loss and metrics of each kind of problem."""

from .fields.field_learning import FieldLearning
from .fields.operator_learning import OperatorLearning
from .files.delimited import CsvSettings
from .forecasts.forecasting import Forecasting
from .graphs.graph_learning import GraphLearning
from .graphs.link_learning import LinkLearning
from .graphs.node_learning import NodeLearning
from .image_texts.image_text_learning import ImageTextLearning
from .images.image_learning import ImageLearning
from .inputs import Inputs, Kinds
from .masks.segmentation import Segmentation
from .outputs import Outputs
from .points.point_learning import PointLearning
from .prediction import Prediction
from .sentences.sentence_learning import SentenceLearning
from .series.series_learning import SeriesLearning
from .splits.splits import Examples, Splits
from .tables.table_learning import TableLearning
from .task import Batch, EpochTask, Objective, Source, SplitTask, Task
from .tensor_form import Axis, OpenAxis, Slot, TensorForm
from .text.language_modelling import LanguageModelling
from .text.masked_language_modelling import MaskedLanguageModelling
from .words.word_learning import WordLearning

TASKS: tuple[type[Task], ...] = (
    ImageLearning,
    LanguageModelling,
    MaskedLanguageModelling,
    SentenceLearning,
    WordLearning,
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
    TableLearning,
)
"""Every task of the library; a new one is added here."""

__all__ = [
    "TASKS",
    "Axis",
    "Batch",
    "CsvSettings",
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
    "OpenAxis",
    "OperatorLearning",
    "Outputs",
    "PointLearning",
    "Prediction",
    "Segmentation",
    "SentenceLearning",
    "SeriesLearning",
    "Slot",
    "Source",
    "SplitTask",
    "Splits",
    "TableLearning",
    "Task",
    "TensorForm",
    "WordLearning",
]
