"""The correctness gate: results that disagree are neither timed nor reported."""

from collections.abc import Sequence
from typing import final

from torch import Tensor


@final
class GateError(Exception):
    """Two computations of the same result differ by more than the tolerance, so that their ratio means nothing."""


def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest over all tensors of ``max|actual - expected| / max|expected|``; NaN anywhere makes it infinite."""
    worst = 0.0
    for ours, theirs in zip(actual, expected, strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(f"results of shapes {tuple(ours.shape)} and {tuple(theirs.shape)} cannot be compared")
        difference = (ours.double() - theirs.double()).abs().max().item()
        scale = theirs.double().abs().max().item()
        error = difference / scale if scale > 0 else difference
        worst = max(worst, error if error == error else float("inf"))
    return worst


def require_agreement(label: str, actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> float:
    """The relative error, or `GateError` where it exceeds the tolerance."""
    error = relative_error(actual, expected)
    if error > tolerance:
        raise GateError(f"{label}: relative error {error:.2e} exceeds {tolerance:.0e}, so it is not timed")
    return error
