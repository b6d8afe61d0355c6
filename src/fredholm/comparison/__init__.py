"""Comparing kernels on a data set: one network with each kernel in turn, under one protocol."""

from .compare import compare
from .comparison import BaselineRow, Budget, Comparison, LeftOut, Row, SeedResult, read_comparison
from .kernels import KERNELS_BY_NAME
from .protocol import Request

__all__ = [
    "KERNELS_BY_NAME",
    "BaselineRow",
    "Budget",
    "Comparison",
    "LeftOut",
    "Request",
    "Row",
    "SeedResult",
    "compare",
    "read_comparison",
]
