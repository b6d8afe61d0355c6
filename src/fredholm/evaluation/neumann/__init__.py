"""Hops and series of hops, tile by tile, forward and backward."""

from fredholm.evaluation.neumann.inputs import ACTIVATIONS, NORMS, HopInputs, HopPlan, gathered
from fredholm.evaluation.neumann.op import hops
from fredholm.evaluation.neumann.series import num_terms, remainder
from fredholm.evaluation.neumann.solvers import DIRECT, ITERATION, SERIES, SUBSTITUTION

__all__ = [
    "ACTIVATIONS",
    "DIRECT",
    "ITERATION",
    "NORMS",
    "SERIES",
    "SUBSTITUTION",
    "HopInputs",
    "HopPlan",
    "gathered",
    "hops",
    "num_terms",
    "remainder",
]
