"""Fredholm: one learnable integral operator in place of convolution, attention and recurrence."""

from fredholm import (
    analysis,
    blocks,
    domains,
    encoders,
    evaluation,
    fields,
    kernels,
    layers,
    models,
    operators,
    quadrature,
)
from fredholm._version import __version__
from fredholm.domains import Domain, Grid, Points, Sequence, Union, trapezoid_weights
from fredholm.layers import from_torch, to_torch
from fredholm.operators import IntegralOperator, compare_routes, fit_low_rank

__all__ = [
    "Domain",
    "Grid",
    "IntegralOperator",
    "Points",
    "Sequence",
    "Union",
    "__version__",
    "analysis",
    "blocks",
    "compare_routes",
    "domains",
    "encoders",
    "evaluation",
    "fields",
    "fit_low_rank",
    "from_torch",
    "kernels",
    "layers",
    "models",
    "operators",
    "quadrature",
    "to_torch",
    "trapezoid_weights",
]
