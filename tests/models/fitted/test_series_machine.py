"""Series machines: numbers of a series by loops, and the choice between filters and numbers."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.encoders import SeriesBatch
from fredholm.models import FilterBank, SeriesMachine, SeriesSampling, TableMachine
from fredholm.models.fitted import ridge_head, second_reading, series_machine
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

FEW = FilterBank.Config(num_thresholds=6, num_groups=2)
CLASSES = ClassTarget(names=("a", "b"))
NUMBER = NumberTarget(names=("at",), mean=(20.0,), deviation=(10.0,), quantiles=())


def machine(sampling: SeriesSampling, num_outputs: int = 2, num_places: int = 32) -> SeriesMachine:
    torch.manual_seed(0)
    return SeriesMachine.Config(bank=FEW, num_places=num_places).build(sampling, num_outputs)


def noise(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


def steps(count: int) -> tuple[Tensor, Tensor]:
    """Series whose level changes at one sample, and the index of that sample."""
    at = 4 + torch.arange(count) * 7 % 32
    return (torch.arange(40) >= at[:, None]).float()[..., None] + 0.2 * noise(count, 40, 1), at


def test_numbers_are_local_means_and_summaries_of_times() -> None:
    sampling = SeriesSampling(channels=5, spacing=0.5, extent=9.0, observation=(0, 2))
    built = machine(sampling, num_places=4)
    seen = torch.rand(3, 12, 2, generator=torch.Generator().manual_seed(1)) < 0.4
    seen[1, :, 1] = False  # one channel without observations
    values = torch.cat([noise(3, 12, 3) + 2, seen.float()], -1)
    times = (0.1 + torch.rand(3, 12, generator=torch.Generator().manual_seed(2))).double().cumsum(1)
    exists = torch.arange(12) < torch.tensor([12, 7, 3])[:, None]
    found = built.numbers(SeriesBatch(values, exists, times))
    by_place, course, of_times = found[:, 27:39].unflatten(1, (3, 4)), found[:, -25:-7], found[:, -4:]
    means = found[:, :27:9]
    products = torch.stack([means[:, 0] * means[:, 1], means[:, 0] * means[:, 2], means[:, 1] * means[:, 2]], 1)
    torch.testing.assert_close(found[:, -7:-4], products, equal_nan=True)
    for i, n in enumerate((12, 7, 3)):
        t = times[i, :n]
        place = ((t - t[0]) / (t[-1] - t[0]) * 4).floor().clamp_max(3)
        for c in range(3):
            counts = torch.ones(n, dtype=torch.bool) if c == 1 else seen[i, :n, c // 2]
            known = {k: values[i, :n, c][counts & (place == k)].mean() for k in place[counts].unique().tolist()}
            for k in range(4):
                left = max((j for j in known if j <= k), default=None)
                right = min((j for j in known if j >= k), default=None)
                near = [j for j in (left, right) if j is not None]
                if not near:
                    assert by_place[i, c, k].isnan()
                    continue
                a, b = known[near[0]], known[near[-1]]
                share = (k - near[0]) / max(near[-1] - near[0], 1)
                torch.testing.assert_close(by_place[i, c, k], a + share * (b - a), rtol=1e-5, atol=1e-5)
            got = course[i].view(6, 3)[:4, c].tolist()
            if not known:
                assert all(map(math.isnan, got))
                continue
            u, at = values[i, :n, c][counts].double(), ((t - t[0]) / (t[-1] - t[0]))[counts]
            z = (u - u.mean()) / u.std(correction=0) if len(u) > 1 else 0 * u
            expected = [float(at[u.argmax()]), float(at[u.argmin()]), float((z**3).mean()), float((z**4).mean())]
            assert got == pytest.approx(expected, rel=1e-4, abs=1e-4)
        gaps = (t.diff() / 0.5).log()
        expected = [math.log(n), float((t[-1] - t[0]) / 0.5), float(gaps.mean()), float(gaps.std(correction=0))]
        torch.testing.assert_close(of_times[i].tolist(), expected, rtol=1e-4, atol=1e-4)


def test_deviations_lags_and_waves_are_those_of_a_loop() -> None:
    built = machine(SeriesSampling(channels=4, spacing=0.5, extent=9.5, observation=(0, 1)), num_places=4)
    assert (built.num_spreads, built.lags, built.num_bands, built.num_waved) == (8, [1, 2, 3, 4], 5, 20)
    values, seen = 3 + noise(2, 20, 2).cumsum(1), torch.rand(2, 20, 2, generator=torch.Generator().manual_seed(1)) < 0.7
    exists = torch.arange(20) < torch.tensor([20, 9])[:, None]
    found = built.numbers(SeriesBatch(torch.cat([values, seen.float()], -1), exists))
    deviations, variogram, bands, correlations = found[:, 26:63].split([16, 8, 10, 3], 1)
    waves = found[:, -9:-5].unflatten(1, (2, 2))
    for i, n in enumerate((20, 9)):
        for c in range(2):
            u = {t: float(values[i, t, c]) for t in range(n) if seen[i, t, c]}
            mean = sum(u.values()) / len(u)
            variance = sum((v - mean) ** 2 for v in u.values()) / len(u)
            expected = list[float]()
            for k in range(8):
                own = torch.tensor([v for t, v in u.items() if min(int(t / (n - 1) * 8), 7) == k])
                expected.append(float(own.std(correction=0)) if len(own) else math.nan)
            for lag in (1, 2, 3, 4):
                squares = [(u[t + lag] - u[t]) ** 2 for t in u if t + lag in u]
                expected.append(sum(squares) / len(squares) / variance / 2)
            powers = list[float]()
            for j in range(1, 21):
                angles = {t: math.pi * j * t / 20 for t in u}
                parts = (sum((u[t] - mean) * wave(at) for t, at in angles.items()) for wave in (math.cos, math.sin))
                powers.append(sum(part**2 for part in parts))
            shares = [power / sum(powers) for power in powers]
            for band in range(5):
                low, high = 20 * 2 ** (-(band + 1) / 2) if band < 4 else 0, 20 * 2 ** (-band / 2)
                expected.append(math.log(1e-4 + sum(p for j, p in enumerate(shares, 1) if low < j <= high)))
            expected += [(1 + shares.index(max(shares))) / 40, sum(p * j / 40 for j, p in enumerate(shares, 1))]
            own = [deviations[i, c::2], variogram[i, c::2], bands[i, 5 * c : 5 * c + 5], waves[i, :, c]]
            assert torch.cat(own).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)

        shared = [t for t in range(n) if seen[i, t].all()]
        z = [(values[i, :, c] - values[i, :n, c][seen[i, :n, c]].mean()) for c in range(2)]
        z = [each / each[:n][seen[i, :n, c]].std(correction=0) for c, each in enumerate(z)]
        by_lag = dict[int, float]()
        for lag in sorted(range(-5, 6), key=abs):
            own = [float(z[0][t] * z[1][t + lag]) for t in range(n) if 0 <= t + lag < n]
            are_seen = [bool(seen[i, t, 0] & seen[i, t + lag, 1]) for t in range(n) if 0 <= t + lag < n]
            by_lag[lag] = sum(itertools.compress(own, are_seen)) / max(sum(are_seen), 1)
        lag = max(by_lag, key=lambda each: abs(by_lag[each]))
        assert shared
        assert correlations[i].tolist() == pytest.approx([by_lag[0], by_lag[lag], lag], rel=1e-4, abs=1e-6)


def test_the_lag_between_two_channels_is_signed_and_the_shortest_of_equals() -> None:
    built = machine(SeriesSampling(channels=2, spacing=1.0, extent=39.0))
    signal = noise(60)
    ahead, behind, level = (
        torch.stack([signal[5:45], signal[2:42]], 1),
        torch.stack([signal[2:42], signal[5:45]], 1),
        1.0,
    )
    even = torch.stack([(-1.0) ** torch.arange(40)] * 2, 1)
    flat = torch.stack([signal[:40], torch.full((40,), level)], 1)
    found = built.numbers(torch.stack([ahead, behind, even, flat]))[:, -20:-17]
    assert found[:, 2].tolist() == [3, -3, 0, 0]
    assert found[:, 1].tolist() == pytest.approx([1, 1, 1, 0], abs=0.15)
    assert found[2:, 0].tolist() == pytest.approx([1, 0])


def test_waves_of_long_series_are_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_machine, "MOST_WAVED", 64)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=199.0))
    waves = torch.sin(2 * math.pi * torch.tensor([0.1, 0.3])[:, None] * torch.arange(200))[..., None]
    strongest, centre = built.numbers(waves)[:, -6:-4].T
    assert strongest.tolist() == pytest.approx([0.1, 0.3], abs=1 / 128)
    assert centre.tolist() == pytest.approx([0.1, 0.3], abs=0.02)


def test_rounding_does_not_decide_extremes_moments_or_frequencies() -> None:
    built = machine(SeriesSampling(channels=6, spacing=1.0, extent=7.0, observation=(0, 1, 2)), num_places=5)
    up = torch.tensor([0.0, 1.0, 1.0000001, 1e9, 0.3, -1.0, -1.0000001, 0.0])
    level = torch.tensor([0.1, 0.1, 0.10000001, 0.1, 0.1, 0.09999999, 0.1, 0.1])
    values = torch.stack([up, level, 1e-9 * up], 1)
    seen = torch.ones(8, 3)
    seen[3, ::2] = 0.0
    found = built.numbers(SeriesBatch(torch.cat([values, seen], 1)[None]))
    plain, of_level, tiny = found[0, -25:-7].view(6, 3).T
    assert plain[:2].tolist() == pytest.approx([1 / 7, 5 / 7])
    assert bool(plain.all())
    assert not of_level.any()
    torch.testing.assert_close(tiny, plain)


def test_with_many_channels_there_is_one_mean_each() -> None:
    built, values = machine(SeriesSampling(channels=12, spacing=1.0, extent=7.0)), noise(2, 8, 12)
    found = built.numbers(values)
    assert (built.num_places, built.num_spreads, built.lags, built.num_bands) == (1, 2, [1, 2], 2)
    assert found.shape == (2, 12 * (9 + 1 + 2 + 2 + 2 + 6) + 4)
    torch.testing.assert_close(found[:, 108:120], values.mean(1))
    for channels in (20, 30):
        few = machine(SeriesSampling(channels=channels, spacing=1.0, extent=7.0))
        assert (few.num_spreads, few.lags, few.num_bands) == (0, [1], 0)


@pytest.mark.parametrize("start", [0.1, -100.0])
def test_masked_samples_between_others_change_nothing(start: float) -> None:
    built = machine(SeriesSampling(channels=2, spacing=0.5, extent=5.5), num_places=4)
    values, times = noise(2, 12, 2), start + (0.1 + noise(2, 12).abs()).double().cumsum(1)
    exists = torch.tensor([1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0], dtype=torch.bool)
    found = built.numbers(SeriesBatch(values, exists.expand(2, -1), times))
    others = built.numbers(SeriesBatch(values[:, exists], None, times[:, exists]))
    torch.testing.assert_close(found, others, equal_nan=True)


def test_the_time_of_an_event_is_predicted() -> None:
    values, at = steps(90)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    left_out = built.fit([(SeriesBatch(values[:60]), NUMBER.targets(at[:60, None].float()))], NUMBER)
    targets = NUMBER.targets(at[:, None].float())
    with torch.no_grad():
        errors = [
            float((predicted - targets[60:]).square().mean())
            for predicted in (built(values[60:]), built.bank(values[60:]))
        ]
    assert errors[0] < 0.02 < errors[1]
    assert float((left_out - targets[:60]).square().mean()) < 0.05
    assert float(built.second.gain[1]) > 0.5


def test_filters_get_the_larger_share_where_shapes_decide() -> None:
    phase = 6.3 * torch.rand(60, 1, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(60) % 2
    rising = (0.15 * torch.arange(90) + phase) % 1.0  # rising and falling ramps, with the same frequencies and moments
    values = torch.where(labels[:, None] == 0, rising, 1 - rising)[..., None] + 0.1 * noise(60, 90, 1)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=89.0))
    built.fit([(SeriesBatch(values[:40]), labels[:40])], CLASSES)
    assert bool((built(values[40:]).argmax(1) == labels[40:]).all())
    assert float(built.second.gain[0].min()) > 0.5 > float(built.second.gain[1].max())


def test_outputs_are_read_from_the_mean_of_the_scores() -> None:
    values, at = steps(40)
    target = NumberTarget(names=("at",), mean=(20.0,), deviation=(10.0,), quantiles=(0.1, 0.5, 0.9))
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 3)
    left_out = built.fit([(SeriesBatch(values), target.targets(at[:, None].float()))], target)
    found = built(values)
    torch.testing.assert_close(found[:, 1:].diff(dim=0), found[:, :2].diff(dim=0), rtol=1e-3, atol=1e-3)
    # three levels of one score are as far apart as those of left-out series
    torch.testing.assert_close(found.diff(dim=1).double(), left_out.diff(dim=1), rtol=1e-3, atol=1e-3)


def test_batch_mates_and_saving_change_nothing() -> None:
    values, at = steps(30)
    sampling = SeriesSampling(channels=1, spacing=1.0, extent=39.0)
    built = machine(sampling)
    built.fit([(SeriesBatch(values), (at > 18).long())], CLASSES)
    exists = torch.arange(40) < torch.tensor([40, 25, 1])[:, None]
    together = built(SeriesBatch(values[:3], exists))
    for i, n in enumerate((40, 25, 1)):
        torch.testing.assert_close(built(values[i : i + 1, :n]), together[i : i + 1], rtol=1e-4, atol=1e-4)
    other = machine(sampling)
    other.load_state_dict(built.state_dict())
    torch.testing.assert_close(other(values), built(values))


def test_the_machine_has_no_share_where_it_is_not_surely_better(monkeypatch: pytest.MonkeyPatch) -> None:
    values, at = steps(12)
    shares = list[float]()
    for sure in (2.0, 1e6, -1e6):
        monkeypatch.setattr(ridge_head, "SURE", sure)
        built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
        built.fit([(SeriesBatch(values), NUMBER.targets(at[:, None].float()))], NUMBER)
        shares.append(float(built.second.gain[1]))
        if shares[-1] == 0:
            torch.testing.assert_close(built(values), built.bank(values), rtol=1e-4, atol=1e-4)
    assert shares[1] == 0 < shares[2]


def test_a_surely_helpful_share_is_taken_where_the_best_one_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    values, at = steps(30)
    differences = list[Tensor]()
    monkeypatch.setattr(
        second_reading, "is_surely_less", lambda *given: differences.append(given[0]) or len(differences) in (2, 3)
    )
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    built.fit([(SeriesBatch(values), NUMBER.targets(at[:, None].float()))], NUMBER)
    assert float(differences[9].mean()) < float(differences[2].mean()) < float(differences[1].mean())
    torch.testing.assert_close(built.second.gain[:, 0], torch.tensor([0.7, 0.3]))


@pytest.mark.parametrize("exists", [torch.zeros(2, 5, dtype=torch.bool), torch.arange(5) < torch.tensor([[1], [0]])])
def test_series_without_samples_and_with_one_sample(exists: Tensor) -> None:
    sampling = SeriesSampling(channels=2, spacing=1.0, extent=39.0)
    built = machine(sampling)
    values, at = steps(20)
    built.fit([(SeriesBatch(values.expand(-1, -1, 2)), (at > 18).long())], CLASSES)
    given = SeriesBatch(noise(2, 5, 2), exists)
    found = built.numbers(given)
    assert bool(found[:, 6].eq(exists.sum(1)).all())  # the count of the first channel
    by_place = found[:, 18 : 18 + 2 * built.num_places].unflatten(1, (2, -1))
    for i, n in enumerate(exists.sum(1).tolist()):
        assert bool(by_place[i].isnan().all()) == (n == 0)
        assert found[i, -17:-5].tolist() == pytest.approx([0.0 if n else math.nan] * 12, abs=0, nan_ok=True)
        if n:
            torch.testing.assert_close(by_place[i], given.values[i, 0, :, None].expand_as(by_place[i]))
    torch.testing.assert_close(found[:, -4:], torch.zeros(2, 4))
    assert bool(built(given).isfinite().all())


def test_an_unobserved_channel_and_a_single_class_give_finite_outputs() -> None:
    values, at = steps(20)
    seen = torch.ones_like(values)
    sampling = SeriesSampling(channels=4, spacing=1.0, extent=39.0, observation=(0, 1))
    batch = SeriesBatch(torch.cat([values, 0 * values, seen, 0 * seen], -1))
    built = machine(sampling)
    built.fit([(batch, (at > 18).long())], CLASSES)
    assert bool(built(batch).isfinite().all())
    built.fit([(batch, torch.zeros(20, dtype=torch.long))], CLASSES)
    assert bool((built(batch).argmax(1) == 0).all())


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-4), (torch.bfloat16, 0.3)])
def test_outputs_in_other_dtypes_are_close(dtype: torch.dtype, near: float) -> None:
    values, at = steps(60)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    built.fit([(SeriesBatch(values), NUMBER.targets(at[:, None].float()))], NUMBER)
    before, values = built(values), values.to(dtype)
    found = built.to(dtype)(values)  # a threshold equals a training response, which is rounded differently
    torch.testing.assert_close(found.float(), before, rtol=near, atol=near)


@pytest.mark.slow
def test_a_graph_takes_any_series() -> None:
    values, at = steps(30)
    sampling = SeriesSampling(channels=2, spacing=1.0, extent=39.0, observation=(0,))
    batch = torch.cat([values, (noise(30, 40, 1) > 0).float()], -1)
    torch.manual_seed(0)
    built = SeriesMachine.Config(bank=FEW, num_places=4, num_centres=12, num_trees=5).build(sampling, 2)
    built.fit([(SeriesBatch(batch), (at > 18).long())], CLASSES)
    built.second.gain[1] = 1.0
    exists = torch.arange(40) < torch.tensor([40, 7, 1, 0])[:, None]
    inputs = (torch.where(exists[..., None], batch[:4], 0.0), exists)

    class Called(nn.Module):
        def forward(self, values: Tensor, exists: Tensor) -> Tensor:
            return built(SeriesBatch(values, exists))

    several = torch.export.Dim("batch", min=1)
    graph = torch.export.export(Called(), inputs, dynamic_shapes=({0: several}, {0: several}))
    torch.testing.assert_close(graph.module()(*(each[1:] for each in inputs)), built(SeriesBatch(*inputs))[1:])


def test_a_single_series_is_fitted_exactly() -> None:
    values, _ = steps(1)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    built.fit([(SeriesBatch(values), torch.ones(1, 1))], NUMBER)
    torch.testing.assert_close(built(values), torch.ones(1, 1))


def test_both_parts_leave_out_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    values, at = steps(20)
    groups, seen = torch.arange(20) // 2, list[Tensor | None]()
    for kind in (FilterBank, TableMachine):
        fit = kind.fit

        def watched(*given: Any, fit: Any = fit, groups: Tensor | None = None, **others: Any) -> Tensor:
            seen.append(groups)
            return fit(*given, groups=groups, **others)

        monkeypatch.setattr(kind, "fit", watched)
    monkeypatch.setattr(second_reading, "is_surely_less", lambda *given: seen.append(given[2]) or True)
    built = machine(SeriesSampling(channels=1, spacing=1.0, extent=39.0), 1)
    built.fit([(SeriesBatch(values), NUMBER.targets(at[:, None].float()))], NUMBER, groups=groups)
    assert len(seen) == 2 + 10  # both fits, and each share above 0
    assert all(each is groups for each in seen)


def test_channels_share_the_limited_numbers_of_a_series() -> None:
    for channels, watched, longest, places in (
        (1, 0, 40, 32),
        (1, 0, 5, 5),
        (4, 0, 40, 15),
        (5, 1, 40, 15),
        (30, 0, 40, 1),
    ):
        observation = tuple(range(watched))
        built = machine(SeriesSampling(channels=channels, spacing=1.0, extent=longest - 1.0, observation=observation))
        assert built.num_places == places
        valued = channels - watched
        count = (
            valued * (9 + places + built.num_spreads + len(built.lags) + built.num_bands + 6)
            + (2 * valued * (valued - 1) if valued <= 6 else 0)
            + 4
        )
        assert built.second.machine.table.reading.num_numbers == len(built.second.machine.mean) == count
        assert built.second.machine.table.reading.may_miss == (tuple(range(count - 4)) if watched else ())


def test_numbers_that_vary_by_rounding_alone_are_ignored() -> None:
    values, at = steps(20)
    built = machine(SeriesSampling(channels=2, spacing=1.0, extent=39.0), 1)
    level = 1e4 + 1e-3 * noise(20, 1, 1)  # float32 has a spacing of 1e-3 there
    batch = SeriesBatch(torch.cat([values, level.expand(-1, 40, -1)], -1))
    built.fit([(batch, NUMBER.targets(at[:, None].float()))], NUMBER)
    of_each = built.second.machine.scale[:18].view(2, 9)
    assert float(of_each[1, 0]) == 0  # its mean
    assert float(of_each[0, 0]) > 0


def test_sizes_below_one_are_refused() -> None:
    with refused(ValueError, "models.SeriesMachine", "num_places", "0"):
        SeriesMachine.Config(num_places=0)
    with refused(ValueError, "models.SeriesMachine", "num_centres", "0"):
        SeriesMachine.Config(num_centres=0)
