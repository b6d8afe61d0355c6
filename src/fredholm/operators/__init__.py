"""Operators: kernel, nodes, route and channel maps bound together."""

from fredholm.operators.auxiliary_loss import collect_auxiliary_losses
from fredholm.operators.compare_routes import RouteComparison, RouteCost, compare_routes
from fredholm.operators.fit_low_rank import LowRankFit, fit_low_rank
from fredholm.operators.integral import IntegralOperator

__all__ = [
    "IntegralOperator",
    "LowRankFit",
    "RouteComparison",
    "RouteCost",
    "collect_auxiliary_losses",
    "compare_routes",
    "fit_low_rank",
]
