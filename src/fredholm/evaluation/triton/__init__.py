"""Exact integrals of pairwise perceptron kernels, fused in Triton, which only their first use imports."""

from fredholm.evaluation.triton.tiled import TritonTiled

__all__ = ["TritonTiled"]
