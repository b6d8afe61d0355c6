"""Integrals of perceptron kernels and over Yat scores, fused in Triton, which only their first use imports."""

from fredholm.evaluation.triton.feature_sum import TritonFeatureSum
from fredholm.evaluation.triton.tiled import TritonTiled
from fredholm.evaluation.triton.yat_tiled import TritonYat

__all__ = ["TritonFeatureSum", "TritonTiled", "TritonYat"]
