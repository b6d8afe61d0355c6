"""Fredholm: one learnable integral operator in place of convolution, attention and recurrence."""

import importlib
from typing import TYPE_CHECKING, Any

from fredholm._version import __version__

if TYPE_CHECKING:
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
        pretrained,
        quadrature,
    )
    from fredholm import comparison as comparison
    from fredholm import distributed as distributed
    from fredholm import estimators as estimators
    from fredholm import export as export
    from fredholm import tasks as tasks
    from fredholm import training as training
    from fredholm import verification as verification
    from fredholm.domains import Domain, Grid, Points, Sequence, Union, trapezoid_weights
    from fredholm.estimators import GraphClassifier as GraphClassifier
    from fredholm.estimators import GraphRegressor as GraphRegressor
    from fredholm.estimators import ImageClassifier as ImageClassifier
    from fredholm.estimators import ImageRegressor as ImageRegressor
    from fredholm.estimators import OperatorRegressor as OperatorRegressor
    from fredholm.estimators import PointClassifier as PointClassifier
    from fredholm.estimators import PointRegressor as PointRegressor
    from fredholm.estimators import SampleClassifier as SampleClassifier
    from fredholm.estimators import SeriesClassifier as SeriesClassifier
    from fredholm.estimators import SeriesForecaster as SeriesForecaster
    from fredholm.estimators import SeriesRegressor as SeriesRegressor
    from fredholm.estimators import TableClassifier as TableClassifier
    from fredholm.estimators import TableRegressor as TableRegressor
    from fredholm.estimators import TextClassifier as TextClassifier
    from fredholm.estimators import TextRegressor as TextRegressor
    from fredholm.estimators import WordsClassifier as WordsClassifier
    from fredholm.layers import from_torch, to_torch
    from fredholm.operators import IntegralOperator, compare_routes, fit_low_rank
    from fredholm.training import from_pretrained

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
    "from_pretrained",
    "from_torch",
    "kernels",
    "layers",
    "models",
    "operators",
    "pretrained",
    "quadrature",
    "to_torch",
    "trapezoid_weights",
]

_PACKAGES = (
    "analysis",
    "blocks",
    "comparison",
    "distributed",
    "domains",
    "encoders",
    "estimators",
    "evaluation",
    "export",
    "fields",
    "kernels",
    "layers",
    "models",
    "operators",
    "pretrained",
    "quadrature",
    "tasks",
    "training",
    "verification",
)
_MEMBERS = {
    "domains": ("Domain", "Grid", "Points", "Sequence", "Union", "trapezoid_weights"),
    "layers": ("from_torch", "to_torch"),
    "operators": ("IntegralOperator", "compare_routes", "fit_low_rank"),
    "training": ("from_pretrained",),
    "estimators": (
        "GraphClassifier",
        "GraphRegressor",
        "ImageClassifier",
        "ImageRegressor",
        "OperatorRegressor",
        "PointClassifier",
        "PointRegressor",
        "SampleClassifier",
        "SeriesClassifier",
        "SeriesForecaster",
        "SeriesRegressor",
        "TableClassifier",
        "TableRegressor",
        "TextClassifier",
        "TextRegressor",
        "WordsClassifier",
    ),
}
_PACKAGE_OF = {name: package for package, names in _MEMBERS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports an exported name at its first use: importing torch takes seconds, and estimators need scikit-learn."""
    if name in _PACKAGES:
        return importlib.import_module(f"fredholm.{name}")
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"fredholm.{_PACKAGE_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *_PACKAGE_OF})
