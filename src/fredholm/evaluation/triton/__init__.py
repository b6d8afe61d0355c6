"""Integrals of perceptron kernels fused in Triton, which only their first use imports."""

from fredholm.evaluation.triton.factorised_sum import TritonFactorisedSum
from fredholm.evaluation.triton.tiled import TritonTiled

__all__ = ["TritonFactorisedSum", "TritonTiled"]
