"""Linear recurrences, parallel over time: diagonal ones as an operator with its own gradient, and matrix ones."""

from fredholm.evaluation.recurrence.diagonal import DiagonalInputs, diagonal_scan
from fredholm.evaluation.recurrence.matrix import MatrixInputs, matrix_scan
from fredholm.evaluation.recurrence.tiling import window_size

__all__ = ["DiagonalInputs", "MatrixInputs", "diagonal_scan", "matrix_scan", "window_size"]
