"""Linear recurrences, parallel over time: diagonal ones as an operator with its own gradient, and matrix ones."""

from fredholm.evaluation.recurrence.matrix import matrix_scan
from fredholm.evaluation.recurrence.op import diagonal_scan
from fredholm.evaluation.recurrence.tiling import window_size

__all__ = ["diagonal_scan", "matrix_scan", "window_size"]
