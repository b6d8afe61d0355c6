"""Sums of values whose densities come from Yat scores, tile by tile, forward and backward."""

from fredholm.evaluation.yat_sums.forward import reciprocal
from fredholm.evaluation.yat_sums.inputs import KINDS, YatInputs
from fredholm.evaluation.yat_sums.op import yat_sums

__all__ = ["KINDS", "YatInputs", "reciprocal", "yat_sums"]
