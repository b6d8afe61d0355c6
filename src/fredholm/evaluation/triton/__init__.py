"""Fused Triton routes of perceptron kernels and Yat scores; Triton is imported at their first use."""

from fredholm.evaluation.triton.feature_sum import TritonFeatureSum
from fredholm.evaluation.triton.tiled import TritonTiled
from fredholm.evaluation.triton.yat_tiled import TritonYat

__all__ = ["TritonFeatureSum", "TritonTiled", "TritonYat"]
