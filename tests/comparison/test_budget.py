"""From minutes to epochs."""

import pytest

from fredholm.comparison.budget import epochs_within, grid, num_epochs, rungs, seconds
from tests.refusals import refused


def test_the_grid_of_epochs_is_coarse_and_ends_at_the_recommended_number() -> None:
    assert grid(1) == [1]
    assert grid(20) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    assert grid(24) == [1, 2, 3, 4, 6, 8, 12, 16, 24]


def test_rungs_are_a_quarter_and_a_half_of_the_epochs() -> None:
    assert [rungs(epochs) for epochs in (1, 2, 4, 6, 16)] == [(1,), (1,), (1, 2), (1, 3), (4, 8)]


def test_epochs_of_a_kernel_include_the_search_and_all_seeds() -> None:
    assert num_epochs(16, 3) == 5 * 4 + 2 * 8 + 3 * 16
    assert num_epochs(1, 2) == 5 * 1 + 2 * 1


def test_time_is_the_work_divided_by_the_processes_plus_the_last_run() -> None:
    assert seconds(16, 3, [1.0, 2.0], 1) == pytest.approx(1.25 * 3 * 84)
    assert seconds(16, 3, [1.0, 2.0], 2) == pytest.approx(1.25 * (3 * 84 / 2 + 0.5 * 2 * 16))


def test_the_largest_number_of_epochs_that_fits_is_chosen() -> None:
    costs = [1.0, 2.0]
    minutes = seconds(16, 3, costs, 2) / 60
    assert epochs_within(minutes, 3, costs, 2, 100) == 16
    assert epochs_within(minutes - 1e-9, 3, costs, 2, 100) == 12
    assert epochs_within(1e9, 3, costs, 2, 100) == 100


def test_too_little_time_is_refused_with_the_time_needed() -> None:
    assert seconds(1, 3, [60.0, 60.0], 1) == 1.25 * 120 * 8
    with refused(ValueError, "minutes=1 ", "2 models with 3 seeds", "about 20 minutes"):
        epochs_within(1, 3, [60.0, 60.0], 1, 100)
