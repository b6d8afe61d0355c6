"""The summary bank: its nine summaries by a loop, its ranks by their definition, and inputs that it ignores."""

import math

import pytest
import torch
from torch import Tensor

from fredholm.encoders import SeriesBatch
from fredholm.models import RidgeHead, SeriesSampling, SummaryBank
from fredholm.tasks.targets import ClassTarget
from tests.refusals import refused

CLASSES = ClassTarget(names=("a", "b"))
WATCHED = SeriesSampling(channels=5, spacing=1.0, extent=9.0, observation=(0, 2))


def bank(sampling: SeriesSampling = WATCHED, degree: int = 2, num_outputs: int = 2) -> SummaryBank:
    return SummaryBank.Config(degree=degree).build(sampling, num_outputs)


def batch(size: int = 6, samples: int = 7, share: float = 0.5) -> SeriesBatch:
    """Series of three channels at irregular times, the first and the last of which are observed at random."""
    found = (torch.rand(size, samples, 2) < share).float()
    values = torch.randn(size, samples, 3)
    mask = torch.arange(samples) < torch.arange(1, size + 1)[:, None]
    return SeriesBatch(torch.cat([values, found], -1), mask, torch.rand(size, samples).add(0.1).cumsum(1))


def nine(u: list[float], t: list[float], end: float) -> list[float]:
    """The nine summaries of one channel, from its values at the times at which it was observed."""
    n = len(u)
    if not n:
        return [math.nan] * 6 + [0, math.nan, math.nan]
    m, moment = sum(u) / n, sum(t) / n
    spread = sum((s - moment) ** 2 for s in t)
    slope = sum((s - moment) * (v - m) for s, v in zip(t, u, strict=True)) / spread if n > 1 else math.nan
    deviation = math.sqrt(sum((v - m) ** 2 for v in u) / n)
    return [m, deviation, min(u), max(u), u[0], u[-1], n, slope, end - t[-1]]


def by_loop(series: SeriesBatch, observed_by: dict[int, int], channels: int) -> Tensor:
    assert series.mask is not None
    assert series.times is not None
    rows = []
    for values, mask, times in zip(series.values, series.mask, series.times, strict=True):
        row: list[float] = []
        for c in range(channels):
            seen = [j for j in range(len(mask)) if mask[j] and (c not in observed_by or values[j, observed_by[c]] == 1)]
            end = max(float(times[j]) for j in range(len(mask)) if mask[j])
            row += nine([float(values[j, c]) for j in seen], [float(times[j]) for j in seen], end)
        rows.append(row)
    return torch.tensor(rows)


def test_summaries_use_observed_samples_alone() -> None:
    series = batch()
    expected = by_loop(series, {0: 3, 2: 4}, 3)
    assert expected.isnan().any()
    torch.testing.assert_close(bank().summaries(series), expected, equal_nan=True)


def test_a_single_observation_channel_applies_to_all() -> None:
    series = batch()
    series = series._replace(values=series.values[..., :4])
    sampling = SeriesSampling(channels=4, spacing=1.0, extent=9.0, observation=(0,))
    torch.testing.assert_close(
        bank(sampling).summaries(series), by_loop(series, dict.fromkeys(range(3), 3), 3), equal_nan=True
    )


def test_series_without_gaps_at_one_rate() -> None:
    sampling = SeriesSampling(channels=1, spacing=0.5, extent=2.0)
    found = bank(sampling).summaries(torch.tensor([[[1.0], [2.0], [6.0]]]))
    torch.testing.assert_close(found, torch.tensor([[3, math.sqrt(14 / 3), 1, 6, 1, 6, 3, 5, 0]]))


def test_filled_in_values_and_padding_change_nothing() -> None:
    series, built = batch(), bank()
    built.fit([(series, torch.tensor([0, 1, 0, 1, 1, 0]))], CLASSES)
    values = series.values.clone()
    for c, expected in ((0, 3), (2, 4)):
        values[..., c] = torch.where(values[..., expected] == 1, values[..., c], 9.0)
    assert series.mask is not None
    values[~series.mask] = 9.0
    torch.testing.assert_close(built(series._replace(values=values)), built(series))
    alone = SeriesBatch(*(None if part is None else part[2:3] for part in series))  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(built(alone), built(series)[2:3])


def test_logits_are_a_ridge_regression_on_polynomials_of_ranks() -> None:
    series, labels, built = batch(40), torch.arange(40) % 2, bank(degree=3)
    series.values[..., 1] += labels[:, None]  # so that the logits are not all near 0
    parts = [SeriesBatch(*(None if part is None else part[half::2] for part in series)) for half in (0, 1)]  # pyright: ignore[reportArgumentType]
    built.fit([(part, labels[half::2]) for half, part in enumerate(parts)], CLASSES)
    columns: list[list[list[float]]] = [[], [], [], []]
    for column in built.summaries(series).T:
        seen = sorted(column[~column.isnan()].tolist())
        at = [seen[round(q / 128 * (len(seen) - 1))] for q in range(1, 128)]
        ranks = [(sum(b < a for b in at) + sum(b <= a for b in at)) / 127 - 1 for a in column.tolist()]
        ranks = [math.nan if math.isnan(a) else r for a, r in zip(column.tolist(), ranks, strict=True)]
        columns[0].append([float(math.isnan(r)) for r in ranks])
        columns[1].append(ranks)
        columns[2].append([(3 * r**2 - 1) / 2 for r in ranks])
        columns[3].append([(5 * r**3 - 3 * r) / 2 for r in ranks])
    expected = torch.tensor([column for kind in columns for column in kind]).T.nan_to_num(0.0)
    head = RidgeHead(expected.shape[1], 2)
    head.fit(expected[[*range(0, 40, 2), *range(1, 40, 2)]], labels[[*range(0, 40, 2), *range(1, 40, 2)]], CLASSES)
    torch.testing.assert_close(built(series), head(expected), rtol=1e-4, atol=1e-5)


def test_outliers_and_units_do_not_matter() -> None:
    series, labels, built = batch(40), torch.arange(40) % 2, bank()
    got = series.values.clone()
    got[..., 1] = got[..., 1].exp() * 1e-3
    found = []
    for values in (series.values, got):
        built.fit([(series._replace(values=values), labels)], CLASSES)
        ranks = built._features(built.summaries(series._replace(values=values)))
        found.append(ranks.unflatten(1, (3, 3, 9))[:, :, 1, 2:6])  # minimum, maximum, first and last value
    torch.testing.assert_close(found[0], found[1])


def test_bad_arguments_are_refused() -> None:
    with refused(ValueError, "models.SummaryBank", "no series"):
        bank().fit([], CLASSES)
    with refused(ValueError, "models.SummaryBank", "degree", "0"):
        SummaryBank.Config(degree=0)
    with refused(ValueError, "models.SeriesSampling", "first 2 of 3 channels", "(2,)"):
        SeriesSampling(channels=3, spacing=1.0, extent=1.0, observation=(2,))


@pytest.mark.parametrize("size", [0, 1])
def test_few_series_and_one_sample(size: int) -> None:
    built = bank()
    series = batch(size, samples=1)
    assert built(series).shape == (size, 2)
    if size:
        built.fit([(series, torch.zeros(1, dtype=torch.long))], CLASSES)
        assert built(series).isfinite().all()
