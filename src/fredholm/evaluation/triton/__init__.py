"""Integrals of perceptron kernels and over Yat scores, fused in Triton, which only their first use imports."""

from fredholm.evaluation.triton.factorised_sum import TritonFactorisedSum
from fredholm.evaluation.triton.tiled import TritonTiled
from fredholm.evaluation.triton.yat_tiled import TritonYat

__all__ = ["TritonFactorisedSum", "TritonTiled", "TritonYat"]
