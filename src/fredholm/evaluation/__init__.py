"""The same integral by different routes, and the choice between them."""

from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import Evaluation, StatefulEvaluation
from fredholm.evaluation.fused_attention import FusedAttention
from fredholm.evaluation.select import ROUTES, STATEFUL_ROUTES, Choice, select
from fredholm.evaluation.separable_sum import SeparableSum
from fredholm.evaluation.step_loop import StepLoop
from fredholm.evaluation.tiled import Tiled
from fredholm.evaluation.toeplitz import Toeplitz

__all__ = [
    "ROUTES",
    "STATEFUL_ROUTES",
    "Choice",
    "Dense",
    "Evaluation",
    "FusedAttention",
    "SeparableSum",
    "StatefulEvaluation",
    "StepLoop",
    "Tiled",
    "Toeplitz",
    "select",
]
