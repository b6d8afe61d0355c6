"""Filters made of few features, by the fast Fourier transform: as an operator, and long signals in blocks."""

from fredholm.evaluation.feature_convolution.blocks import Axis, Plan, filtered
from fredholm.evaluation.feature_convolution.op import feature_convolution

__all__ = ["Axis", "Plan", "feature_convolution", "filtered"]
