"""Estimators in scikit-learn's form: a task on arrays, with the rules and the run folder of the command line."""

try:
    import sklearn  # noqa: F401 - asked for here, so that one message names the extra
except ImportError as error:
    raise ImportError('estimators need scikit-learn; get it with: pip install "fredholm[data]"') from error

from .classifier import Classifier
from .image_classifier import ImageClassifier
from .point_classifier import PointClassifier
from .series_classifier import SeriesClassifier
from .text_classifier import TextClassifier
from .trained_model import TrainedModel

__all__ = [
    "Classifier",
    "ImageClassifier",
    "PointClassifier",
    "SeriesClassifier",
    "TextClassifier",
    "TrainedModel",
]
