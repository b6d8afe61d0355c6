"""Fredholm: one learnable integral operator in place of convolution, attention and recurrence."""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from fredholm.estimators import GraphClassifier as GraphClassifier
    from fredholm.estimators import GraphRegressor as GraphRegressor
    from fredholm.estimators import ImageClassifier as ImageClassifier
    from fredholm.estimators import ImageRegressor as ImageRegressor
    from fredholm.estimators import OperatorRegressor as OperatorRegressor
    from fredholm.estimators import PointClassifier as PointClassifier
    from fredholm.estimators import SeriesClassifier as SeriesClassifier
    from fredholm.estimators import SeriesForecaster as SeriesForecaster
    from fredholm.estimators import SeriesRegressor as SeriesRegressor
    from fredholm.estimators import TextClassifier as TextClassifier
    from fredholm.estimators import TextRegressor as TextRegressor

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

_ESTIMATORS = (
    "GraphClassifier",
    "GraphRegressor",
    "ImageClassifier",
    "ImageRegressor",
    "OperatorRegressor",
    "PointClassifier",
    "SeriesClassifier",
    "SeriesForecaster",
    "SeriesRegressor",
    "TextClassifier",
    "TextRegressor",
)


def __getattr__(name: str) -> Any:
    """Estimators, which are imported at first use, since they need scikit-learn."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fredholm import estimators

    return getattr(estimators, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ESTIMATORS])
