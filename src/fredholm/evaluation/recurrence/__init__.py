"""Linear recurrences, parallel over time: diagonal ones as an operator with its own gradient, and matrix ones."""

from fredholm.evaluation.recurrence.matrix import matrix_scan
from fredholm.evaluation.recurrence.op import diagonal_scan
from fredholm.evaluation.recurrence.tiling import chunk_size, window_size

__all__ = ["chunk_size", "diagonal_scan", "matrix_scan", "window_size"]
