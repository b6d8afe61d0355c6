"""Filters made of few features, by the fast Fourier transform: as an operator, and long signals in blocks."""

from fredholm.evaluation.feature_convolution.blocks import Axis, Plan, filtered
from fredholm.evaluation.feature_convolution.spectra import FilterInputs, feature_convolution

__all__ = ["Axis", "FilterInputs", "Plan", "feature_convolution", "filtered"]
