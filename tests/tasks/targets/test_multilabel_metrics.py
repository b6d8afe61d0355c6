import math

import pytest
import torch

from fredholm.tasks.targets.multilabel_metrics import precision_at, propensities, propensity_scored_precision_at

SCORES = torch.tensor([[0.9, 0.5, 0.1, -1.0], [0.1, 0.2, 0.8, 0.7], [1.0, 2.0, 3.0, 4.0]])
LABELS = torch.tensor([[True, False, True, False], [False, True, False, True], [True, False, False, False]])
PROPENSITY = torch.tensor([0.5, 0.25, 0.2, 1.0])


def test_precision_by_hand():
    # the first two of each row are labels 0 1, 2 3 and 3 2: one correct, one correct, none
    assert precision_at(SCORES, LABELS, 1) == pytest.approx(1 / 3)
    assert precision_at(SCORES, LABELS, 2) == pytest.approx((1 + 1 + 0) / 6)
    assert precision_at(SCORES, LABELS, 4) == pytest.approx(5 / 12)


def test_propensity_scored_precision_by_hand():
    # gains 1/p: 2 4 5 1. Found in the first two: 2, 1, 0; at best: 2 + 5, 4 + 1, 2
    assert propensity_scored_precision_at(SCORES, LABELS, PROPENSITY, 2) == pytest.approx(3 / 14)
    # found first: 2, 0, 0; at best: 5, 4, 2
    assert propensity_scored_precision_at(SCORES, LABELS, PROPENSITY, 1) == pytest.approx(2 / 11)


def test_the_right_ranking_scores_one_and_equal_propensities_cancel_out():
    best = LABELS / PROPENSITY
    for k in (1, 2, 3, 4):
        assert propensity_scored_precision_at(best, LABELS, PROPENSITY, k) == pytest.approx(1.0)
    even = torch.full((4,), 0.3)
    hits = precision_at(SCORES, LABELS, 2) * 6
    assert propensity_scored_precision_at(SCORES, LABELS, even, 2) == pytest.approx(hits / 5)  # 2 + 2 + 1 at best


def test_propensities_by_hand():
    # N = 1000: C = (log 1000 - 1) 2.5^0.55
    c = (math.log(1000) - 1) * 2.5**0.55
    found = propensities(torch.tensor([0, 10, 1000]), 1000)
    expected = [1 / (1 + c * (count + 1.5) ** -0.55) for count in (0, 10, 1000)]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert c == pytest.approx(9.7789, abs=1e-4)
    assert found[0] < found[1] < found[2] < 1


def test_records_without_labels_score_0():
    none = torch.zeros_like(LABELS)
    assert precision_at(SCORES, none, 2) == 0
    assert propensity_scored_precision_at(SCORES, none, PROPENSITY, 2) == 0
    some = torch.cat([LABELS, none])
    assert precision_at(torch.cat([SCORES, SCORES]), some, 2) == pytest.approx(precision_at(SCORES, LABELS, 2) / 2)
    assert propensity_scored_precision_at(torch.cat([SCORES, SCORES]), some, PROPENSITY, 2) == pytest.approx(3 / 14)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: precision_at(SCORES, LABELS.float(), 1), TypeError, r"labels of dtype bool; got torch\.float32$"),
        (lambda: precision_at(SCORES, LABELS[:2], 1), ValueError, r"got \(3, 4\) and \(2, 4\)$"),
        (lambda: precision_at(SCORES[:0], LABELS[:0], 1), ValueError, r"n >= 1; got \(0, 4\) and \(0, 4\)$"),
        (lambda: precision_at(SCORES, LABELS, 5), ValueError, r"k must be from 1 to 4, .*; got 5$"),
        (lambda: precision_at(SCORES, LABELS, 0), ValueError, r"k must be from 1 to 4, .*; got 0$"),
        (lambda: precision_at(SCORES * math.nan, LABELS, 1), ValueError, r"scores hold NaN"),
        (
            lambda: propensity_scored_precision_at(SCORES, LABELS, PROPENSITY[:3], 1),
            ValueError,
            r"a propensity in \(0, 1\] for each of 4 labels",
        ),
        (
            lambda: propensity_scored_precision_at(SCORES, LABELS, PROPENSITY * 0, 1),
            ValueError,
            r"a propensity in \(0, 1\] for each of 4 labels",
        ),
        (lambda: propensities(torch.tensor([5]), 2), ValueError, r"at least 3 training records; got 2$"),
        (lambda: propensities(torch.tensor([5, 11]), 10), ValueError, r"one count from 0 to 10 a label"),
        (lambda: propensities(torch.tensor([5]), 10, a=0.0), ValueError, r"a and b above 0 and finite; got 0\.0"),
    ],
)
def test_bad_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
