"""Precision, recall and F1 of predicted spans; needs torchmetrics.

A predicted span is right where a true one has the same words and the same kind. Precision is the share of the predicted
spans that are right, recall the share of the true spans that are predicted, and F1 their harmonic mean, of all
sentences together. Without any span right they are 0, and without any span at all NaN.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric

from .spans import SpanScoreName, spans_of


@final
class SpanScore(Metric):
    """One of these scores.

    Args:
        score: which one.
    """

    right: Tensor
    predicted: Tensor
    true: Tensor

    def __init__(self, score: SpanScoreName) -> None:
        super().__init__()
        self._score = score
        for name in ("right", "predicted", "true"):
            self.add_state(name, default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Sequence[str | None], true: Sequence[str | None]) -> None:
        """Adds a sentence by its labels."""
        found, known = set(spans_of(predicted)), set(spans_of(true))
        self.right += len(found & known)
        self.predicted += len(found)
        self.true += len(known)

    def compute(self) -> Tensor:
        """Returns a float64 scalar."""
        both = (self.predicted + self.true) / 2
        of = {"span_f1": both, "span_precision": self.predicted, "span_recall": self.true}[self._score]
        if self.predicted + self.true == 0:
            return torch.full_like(self.right, torch.nan, dtype=torch.float64)
        return self.right.double() / of.double().clamp_min(0.5)
