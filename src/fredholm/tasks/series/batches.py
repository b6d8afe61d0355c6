"""Series as batches of a model, and their known targets."""

import torch

from fredholm.encoders.series import SeriesBatch
from fredholm.tasks.targets import Known
from fredholm.tasks.task import Batch

from .preparation import Preparation
from .series_set import Series, SeriesSet


def series_of(batch: Batch) -> SeriesBatch:
    """The series of a batch, as a model takes them."""
    return SeriesBatch(batch["values"], batch.get("mask"), batch.get("times"), batch.get("spacing"))


def batch_of(series: SeriesSet, preparation: Preparation) -> Batch:
    """Prepared `values` (B, N, channels), and `mask`, `times` and `spacing` as far as needed.

    `mask` (B, N) exists where lengths differ; `times` (B, N) where samples are irregular, else `spacing` (B,).
    """
    exists = series.exists
    batch = {"values": torch.where(exists[..., None], preparation.apply(series.values), 0.0)}
    if not bool(exists.all()):
        batch["mask"] = exists
    if series.times is not None:
        return batch | {"times": series.times}
    return batch | {"spacing": torch.full((len(series),), series.spacing, dtype=torch.float64)}


def known_answers(train: Series, data: str) -> Known:
    """The labels or targets of series, or the numbers of samples of each class.

    Raises:
        ValueError: no class of a sample is known, or a single one.
    """
    if train.sample_labels is None:
        assert train.answers is not None
        return train.answers
    counts = train.sample_labels.counts
    present = [name for name, count in zip(counts.names, counts.counts.tolist(), strict=True) if count]
    if len(present) < 2:
        raise ValueError(f"{data}: the training samples have the classes {present}; expected at least 2")
    return counts
