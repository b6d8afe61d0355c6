"""Integrals of kernels that factor through features of one point; the features are computed again when needed."""

from fredholm.evaluation.factors.op import feature_maps, feature_sums, feature_tables
from fredholm.evaluation.factors.sides import chunk_elements, side_tensors, working_dtype

__all__ = ["chunk_elements", "feature_maps", "feature_sums", "feature_tables", "side_tensors", "working_dtype"]
