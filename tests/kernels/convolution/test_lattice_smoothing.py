import math

import pytest

from fredholm.kernels.convolution.continuous_convolution import smoothing_taps


@pytest.mark.parametrize("spacing", [1.0, 0.9995, 2.0, 3.7])
def test_no_smoothing_at_the_rate_of_training_or_below(spacing):
    assert smoothing_taps([1.0], [spacing]) == [((0.0,), 1.0)]


@pytest.mark.parametrize(("ratio", "reach"), [(2, 2), (4, 4), (3, 3), (2.5, 3), (1.2, 2)])
def test_a_gaussian_over_one_spacing_of_training_to_either_side(ratio, reach):
    taps = smoothing_taps([0.4], [0.4 / ratio])
    assert len(taps) == 2 * reach + 1
    assert math.isclose(math.fsum(weight for _, weight in taps), 1)
    centre = taps[reach][1]
    for t, ((offset,), weight) in enumerate(taps, start=-reach):
        assert math.isclose(offset, t * 0.4 / ratio, abs_tol=1e-15)
        # σ is half the spacing of training
        assert math.isclose(weight / centre, math.exp(-((t / ratio) ** 2) / (2 * 0.5**2)))


def test_each_axis_is_smoothed_by_its_own_rate():
    taps = smoothing_taps([1.0, 1.0], [0.5, 1.0])
    line = smoothing_taps([1.0], [0.5])
    assert taps == [((offset, 0.0), weight) for (offset,), weight in line]
    both = smoothing_taps([1.0, 2.0], [0.5, 1.0])
    assert len(both) == 25
    assert math.isclose(math.fsum(weight for _, weight in both), 1)
