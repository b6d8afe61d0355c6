"""Intervals, confusion and calibration against scikit-learn, statsmodels' closed forms and literal sums."""

import math

import pytest
import torch

from fredholm.report.statistics import ClassScores, Reliability, bootstrap, confusion, wilson

sklearn = pytest.importorskip("sklearn.metrics")


def test_wilson_interval_solves_its_equation() -> None:
    # its ends are the shares p whose distance from the observed share is z standard errors of p
    for right, count in ((0, 7), (3, 7), (7, 7), (350, 360)):
        low, high, _ = wilson(right, count)
        for end, is_bound in ((low, right == 0), (high, right == count)):
            gap = abs(right / count - end)
            assert is_bound or gap == pytest.approx(1.959963984540054 * math.sqrt(end * (1 - end) / count), abs=1e-12)
        assert 0 <= low <= right / count <= high <= 1


def test_bootstrap_of_a_mean_has_its_standard_error() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2 + 5
    found = bootstrap(lambda rows: float(values[rows].mean()), len(values), draws=2000)
    assert found is not None
    error = float(values.std()) / math.sqrt(len(values))
    assert found.low == pytest.approx(float(values.mean()) - 1.96 * error, abs=0.3 * error)
    assert found.high == pytest.approx(float(values.mean()) + 1.96 * error, abs=0.3 * error)
    assert found == bootstrap(lambda rows: float(values[rows].mean()), len(values), draws=2000)


def test_one_example_or_undefined_values_have_no_interval() -> None:
    assert bootstrap(lambda rows: 1.0, 1) is None
    assert bootstrap(lambda rows: math.nan if int(rows[0]) == 0 else 1.0, 5) is None


def test_class_scores_match_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(0)
    truth, found = (torch.randint(4, (60,), generator=draw) for _ in range(2))
    counts = confusion(found, truth, 4)
    assert counts.tolist() == sklearn.confusion_matrix(truth, found).tolist()
    expected = sklearn.precision_recall_fscore_support(truth, found)
    scores = ClassScores.of(counts)
    for own, other in zip((scores.precision, scores.recall, scores.f1, scores.support), expected, strict=True):
        assert own.tolist() == pytest.approx(other.tolist())


def test_a_class_that_never_occurs_has_no_recall() -> None:
    scores = ClassScores.of(confusion(torch.tensor([0, 2]), torch.tensor([0, 0]), 3))
    assert scores.recall[1:].isnan().all()
    assert scores.precision[1].isnan()
    assert scores.f1.tolist()[0] == pytest.approx(2 / 3)


def test_calibration_error_is_the_mean_gap_over_bins() -> None:
    sure = torch.tensor([0.05, 0.31, 0.38, 0.95, 1.0])
    right = torch.tensor([True, False, True, True, False])
    found = Reliability.of(sure, right)
    assert found.count.tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 0, 2]
    expected = (1 * abs(1 - 0.05) + 2 * abs(0.5 - 0.345) + 2 * abs(0.5 - 0.975)) / 5
    assert found.error == pytest.approx(expected, abs=1e-6)
    halves = Reliability.of(sure[:2], right[:2]) + Reliability.of(sure[2:], right[2:])
    assert halves.error == pytest.approx(found.error)
