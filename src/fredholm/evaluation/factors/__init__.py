"""Integrals of kernels that factor through features of one point; the features are computed again when needed."""

from fredholm.evaluation.factors.maps import MapInputs, feature_maps
from fredholm.evaluation.factors.sides import chunk_elements, feature_inputs, working_dtype
from fredholm.evaluation.factors.sums import SumInputs, feature_sums
from fredholm.evaluation.factors.tables import TableInputs, feature_tables

__all__ = [
    "MapInputs",
    "SumInputs",
    "TableInputs",
    "chunk_elements",
    "feature_inputs",
    "feature_maps",
    "feature_sums",
    "feature_tables",
    "working_dtype",
]
