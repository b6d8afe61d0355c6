"""Whether rows differ by more than their seeds."""

import pytest
from scipy import stats

from fredholm.comparison.spread import differ, within


@pytest.mark.parametrize("freedom", [1.0, 1.7, 2.0, 9.5, 60.0])
def test_the_distribution_is_students_t(freedom: float) -> None:
    for t in (0.3, 1.0, 4.0, 30.0):
        expected = 1 - 2 * stats.t.sf(t, freedom)
        assert within(t, freedom) == pytest.approx(expected, abs=1e-6)


def test_the_test_is_welchs() -> None:
    rows = {"near": ([0.91, 0.92, 0.93], [0.915, 0.94, 0.93]), "far": ([0.91, 0.92, 0.93], [0.95, 0.955, 0.96, 0.95])}
    for one, other in rows.values():
        p = float(stats.ttest_ind(one, other, equal_var=False)[1])  # pyright: ignore[reportArgumentType]
        assert differ(one, other) == (p < 0.05)
    assert differ(*rows["far"])
    assert not differ(*rows["near"])


def test_single_values_give_no_answer() -> None:
    assert differ([0.9], [0.1, 0.2]) is None
    assert differ([0.9, 0.9], [0.1]) is None


def test_without_variance_the_means_decide() -> None:
    assert differ([0.5, 0.5], [0.5, 0.5]) is False
    assert differ([0.5, 0.5], [0.6, 0.6]) is True
