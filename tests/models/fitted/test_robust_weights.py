"""Weights that limit the effect of outliers, against a loop."""

import statistics

import torch
from torch import Tensor

from fredholm.models.fitted.robust_weights import BOUND, robust_weights


def errors_with_outliers(n: int = 61) -> Tensor:
    """Two columns of normally distributed errors of different sizes; a few in the first are far too large."""
    errors = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    errors[:4, 0] *= 30
    return errors * torch.tensor([1.0, 5.0], dtype=torch.float64)


def test_an_example_loses_weight_beyond_a_multiple_of_the_median_error() -> None:
    errors = errors_with_outliers()
    found = robust_weights(errors)
    assert found is not None
    scales = [statistics.median([abs(e) for e in column]) for column in errors.T.tolist()]
    sizes = [(sum((e / s) ** 2 for e, s in zip(row, scales, strict=True)) / 2) ** 0.5 for row in errors.tolist()]
    bound = BOUND * statistics.median(sizes)
    expected = [min(1.0, bound / size) for size in sizes]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert float(found[:4].max()) < 0.3
    assert sum(weight == 1 for weight in expected) > 40


def test_copies_of_an_example_are_one_with_a_weight() -> None:
    errors, copies = errors_with_outliers(), torch.arange(61) % 2 * 2 + 1  # in all an odd number
    found = robust_weights(errors, copies.double())
    of_copies = robust_weights(errors.repeat_interleave(copies, 0))
    assert found is not None
    assert of_copies is not None
    torch.testing.assert_close((found / copies).repeat_interleave(copies), of_copies)


def test_errors_without_heavy_tails_and_exact_fits_keep_their_weights() -> None:
    errors = errors_with_outliers()
    assert robust_weights(errors[4:]) is None
    errors[10:50, 1] = 0
    assert robust_weights(errors) is None
