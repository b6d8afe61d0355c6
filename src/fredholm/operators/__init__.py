"""Operators: kernel, route and channel maps bound together; torch's own layers as operators."""

from fredholm.operators import torch_layers
from fredholm.operators.auxiliary_loss import collect_auxiliary_losses
from fredholm.operators.compare_routes import compare_routes
from fredholm.operators.fit_low_rank import fit_low_rank
from fredholm.operators.from_torch import from_torch, to_torch
from fredholm.operators.integral import IntegralOperator
from fredholm.operators.low_rank_fit import LowRankFit
from fredholm.operators.route_comparison import RouteComparison, RouteCost
from fredholm.operators.yat_classifier import YatClassifier
from fredholm.operators.yat_convolution import YatConv1d, YatConv2d, YatConv3d, YatConvolution
from fredholm.operators.yat_dense import YatDense

__all__ = [
    "IntegralOperator",
    "LowRankFit",
    "RouteComparison",
    "RouteCost",
    "YatClassifier",
    "YatConv1d",
    "YatConv2d",
    "YatConv3d",
    "YatConvolution",
    "YatDense",
    "collect_auxiliary_losses",
    "compare_routes",
    "fit_low_rank",
    "from_torch",
    "to_torch",
    "torch_layers",
]
