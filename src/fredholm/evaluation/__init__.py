"""The same integral by different routes, and the choice between them."""

from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import Evaluation
from fredholm.evaluation.select import ROUTES, Choice, select
from fredholm.evaluation.tiled import Tiled
from fredholm.evaluation.toeplitz import Toeplitz

__all__ = ["ROUTES", "Choice", "Dense", "Evaluation", "Tiled", "Toeplitz", "select"]
