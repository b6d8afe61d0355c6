import numpy as np
import pytest
import torch

from fredholm.tasks.series import SeriesSet, average_in_bins, drop_samples, take_every
from tests.refusals import refused
from tests.tasks.series.build import NAN, regular, timed


def counting(*lengths: int, channels: int = 2) -> SeriesSet:
    """Series in which sample k of series i is 100 i + k in every channel."""
    rows = [[[100.0 * i + k] * channels for k in range(n)] for i, n in enumerate(lengths)]
    return regular(*rows, labels=[0] * len(lengths), spacing=0.5)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50])
def test_every_nth_sample_keeps_its_time(step: int) -> None:
    whole = counting(7, 1, 6)
    fewer = take_every(whole, step)
    for i, n in enumerate((7, 1, 6)):
        expected = [100.0 * i + k for k in range(n)][::step]
        assert fewer.values[i, : int(fewer.lengths[i]), 0].tolist() == expected
        assert fewer.values[i, int(fewer.lengths[i]) :].isnan().all()
    assert fewer.spacing == 0.5 * step
    irregular = take_every(timed([(0, 0), (1, 1), (5, 2), (6, 3)], [(2, 0), (7, 1)]), step)
    assert irregular.times is not None
    assert irregular.times[0].tolist() == [0.0, 1.0, 5.0, 6.0][::step]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.99])
def test_dropped_samples_are_missing_in_all_channels(share: float) -> None:
    whole = counting(10, 1, 25)
    fewer = drop_samples(whole, share, seed=0)
    dropped_values = fewer.values.isnan() & whole.exists[..., None]
    assert torch.equal(dropped_values[..., 0], dropped_values[..., 1])
    assert dropped_values[..., 0].sum(1).tolist() == [int(share * n) for n in (10, 1, 25)]
    kept = ~fewer.values.isnan()
    assert torch.equal(fewer.values[kept], whole.values[kept])
    assert (fewer.lengths.tolist(), fewer.times) == ([10, 1, 25], None)


def test_absent_samples_are_removed_and_the_rest_keep_their_times() -> None:
    whole = counting(10, 1, 25)
    missing, absent = (drop_samples(whole, 0.6, seed=3, dropped=dropped) for dropped in ("missing", "absent"))
    assert absent.lengths.tolist() == [4, 1, 10]
    assert absent.values.shape == (3, 10, 2)
    assert absent.times is not None
    for i in range(3):
        kept = torch.nonzero(~missing.values[i, :, 0].isnan())[:, 0]
        n = int(absent.lengths[i])
        assert torch.equal(absent.values[i, :n], whole.values[i, kept])
        assert torch.equal(absent.times[i, :n], 0.5 * kept.double())
    again = drop_samples(absent, 0.5, seed=0, dropped="absent")
    assert again.lengths.tolist() == [2, 1, 5]


def test_draws_depend_on_the_seed_and_are_uniform() -> None:
    whole = counting(*[20] * 400)
    one, same, other = (drop_samples(whole, 0.3, seed).values.isnan() for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert abs(one[..., 0].float().mean(0) - 0.3).max() < 0.1
    assert drop_samples(whole, 0.0, 0) is whole


def test_bins_hold_the_mean_of_their_observed_samples() -> None:
    whole = timed([(0.2, 1), (0.9, 3), (1, 5), (3.5, 7), (3.6, NAN)], [(10.5, 2), (11.5, NAN), (11.7, 4)])
    binned = average_in_bins(whole, 1.0)
    assert binned.values[..., 0].nan_to_num(-1).tolist() == [[2, 5, -1, 7], [2, 4, -1, -1]]
    assert (binned.lengths.tolist(), binned.times, binned.spacing) == ([4, 2], None, 1.0)
    empty = average_in_bins(timed([(0, NAN), (2.5, NAN)]), 1.0)
    assert empty.values.isnan().all()
    assert empty.lengths.tolist() == [3]


def test_bins_of_regular_samples_average_neighbours() -> None:
    whole = regular([[k, -k] for k in range(7)], spacing=0.1)
    binned = average_in_bins(whole, 0.3)
    assert binned.values[0].tolist() == [[1, -1], [4, -4], [6, -6]]
    same = average_in_bins(whole, 0.1)
    assert torch.equal(same.values, whole.values)
    rounded = average_in_bins(timed([(0.0, 1), (0.3, 2)]), 0.1)  # 0.3 / 0.1 is a little below 3
    assert rounded.lengths.tolist() == [4]


def test_settings_out_of_range_are_refused() -> None:
    whole = counting(3)
    for share in (-0.1, 1.0, np.nan):
        with refused(ValueError, f"drop is {share}; expected a share from 0 to below 1"):
            drop_samples(whole, share, 0)
    for width in (0.0, -1.0, np.inf, np.nan):
        with refused(ValueError, f"bin is {width}; expected a finite duration above 0"):
            average_in_bins(whole, width)
    with refused(ValueError, "every is 0; expected at least 1"):
        take_every(whole, 0)
