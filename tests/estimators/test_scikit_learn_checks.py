"""scikit-learn's own checks for the estimators that take X of shape `(n, features)`, with one exception.

Weights of a table are no copies of its rows, since a left-out row would be predicted from its own copies, and since
weights are relative; `docs/tables.md` says what they are. Other estimators take images, texts, clouds or graphs, which
these checks cannot make; the other files test the same behaviour.
"""

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from fredholm.estimators import SeriesClassifier, SeriesRegressor, TableClassifier, TableRegressor
from fredholm.estimators.tables import TableEstimator
from fredholm.models import CKCNN, FilterBank, TableMachine

# without a validation split, since some checks have too few examples to hold any out
BANK = FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=64)
ROWS = TableMachine.Config(num_centres=100, num_trees=10)
NOT_COPIES = {"check_sample_weight_equivalence_on_dense_data": "copies of a row are not left out together"}
AT_ONCE = SeriesClassifier(model=BANK, valid_fraction=0.0)
BY_STEPS = SeriesClassifier(
    model=CKCNN.Config(embed_dim=8, depth=1, kernel_width=4, omega_0=3.0, dropout=0.0, pool="mean"),
    training={"epochs": 10, "batch_size": 64, "learning_rate": 3e-2},
    valid_fraction=0.0,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [AT_ONCE, SeriesRegressor(model=BANK), TableClassifier(model=ROWS), TableRegressor(model=ROWS)],
    expected_failed_checks=lambda estimator: NOT_COPIES if isinstance(estimator, TableEstimator) else {},
    xfail_strict=True,
)
def test_scikit_learns_checks_pass(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([BY_STEPS])
def test_scikit_learns_checks_pass_for_a_network(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
