"""Estimators in scikit-learn's form: a task on arrays, with the rules and the run folder of the command line."""

try:
    import sklearn  # noqa: F401 - imported here so that one message names the extra
except ImportError as error:
    raise ImportError('estimators need scikit-learn; get it with: pip install "fredholm[data]"') from error

from .classifier import Classifier
from .estimator import Estimator
from .forecaster import SeriesForecaster
from .graphs import GraphClassifier, GraphRegressor
from .images import ImageClassifier, ImageRegressor
from .operator_regressor import OperatorRegressor
from .points import PointClassifier, PointRegressor
from .regressor import Regressor
from .samples import SampleClassifier
from .series import SeriesClassifier, SeriesRegressor
from .tables import TableClassifier, TableRegressor
from .target_estimator import TargetEstimator
from .texts import TextClassifier, TextRegressor
from .trained_model import TrainedModel
from .words import WordsClassifier

__all__ = [
    "Classifier",
    "Estimator",
    "GraphClassifier",
    "GraphRegressor",
    "ImageClassifier",
    "ImageRegressor",
    "OperatorRegressor",
    "PointClassifier",
    "PointRegressor",
    "Regressor",
    "SampleClassifier",
    "SeriesClassifier",
    "SeriesForecaster",
    "SeriesRegressor",
    "TableClassifier",
    "TableRegressor",
    "TargetEstimator",
    "TextClassifier",
    "TextRegressor",
    "TrainedModel",
    "WordsClassifier",
]
