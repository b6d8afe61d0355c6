"""The filter bank against a literal loop over series, filters, thresholds and samples."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.encoders.series import SeriesBatch
from fredholm.models import FilterBank, SeriesSampling
from fredholm.models.fitted.banks import filter_bank
from fredholm.models.fitted.banks.filter_bank import REACH, two_valued_filters
from fredholm.models.fitted.ridge_head import RidgeHead, ScoreRecorder
from fredholm.tasks.targets import ClassTarget
from tests.refusals import refused

CLASSES = ClassTarget(names=("a", "b", "c"))
SMALL: dict[str, Any] = {"num_thresholds": 3, "num_groups": 2}


def bank(longest: int = 37, channels: int = 1, spacing: float = 1.0, **settings: Any) -> FilterBank:
    """A bank with random thresholds, in float64."""
    sampling = SeriesSampling(channels=channels, spacing=spacing, extent=(longest - 1) * spacing)
    net = FilterBank.Config(**(SMALL | settings)).build(sampling, 3).double()
    net.thresholds.copy_(torch.randn_like(net.thresholds))
    return net


def slow_features(net: FilterBank, series: Tensor, stride: int = 1) -> list[float]:
    """Features of one series `(N, C)` at the training rate, one number after the other."""
    found: list[float] = []
    mass = len(series) / net.sampling.longest if net.by_length else 1.0
    rows = series.tolist()
    signals = [rows, [[b - a for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(rows)]]
    filters = two_valued_filters().tolist()
    for signal in range(net.num_signals):
        u = signals[signal]
        n = len(u)

        def response(
            taps: dict[int, list[float]], dilation: int, t: int, u: list[list[float]] = u, n: int = n
        ) -> float:
            total = 0.0
            for channel, weights in taps.items():
                for j, weight in enumerate(weights):
                    at = t + (j - REACH) * dilation
                    if 0 <= at < n:
                        total += weight * u[at][channel]
            return total

        start = 0
        for place, (dilation, number) in enumerate(net.scales):
            for q in range(start, start + number):
                shares, excesses = [], []
                for kind, taps in enumerate(filters):
                    nodes = list(range(0, n, stride))
                    inner = [t for t in nodes if t - REACH * dilation >= 0 and t + REACH * dilation < n]
                    if kind % 2 != place % 2 and inner:
                        nodes = inner
                    b = float(net.thresholds[signal, q, kind])
                    of_each = dict.fromkeys(net.channels[signal, place, kind].nonzero()[:, 0].tolist(), taps)
                    z = [response(of_each, dilation, t) for t in nodes]
                    above = [value for value in z if value > b]
                    shares.append(mass * len(above) / max(len(nodes), 1))
                    excesses.append(sum(value - b for value in above) / max(len(above), 1))
                found += shares + excesses
            start += number
        for place, dilation in enumerate(net.group_dilations):
            nodes = list(range(0, n, stride))
            won, lost = [], []
            for group in range(net.config.num_groups):
                channels = net.group_channels[signal, place, group].nonzero()[:, 0].tolist()
                taps = net.group_filters[signal, place, group].tolist()
                z = [[response(dict(zip(channels, one, strict=False)), dilation, t) for one in taps] for t in nodes]
                for k in range(len(taps)):
                    wins = sum(max(max(at), 0.0) for at in z if at[k] == max(at))
                    losses = sum(1 for at in z if at[k] == min(at))
                    won.append(math.sqrt(mass * wins / max(len(nodes), 1)))
                    lost.append(math.sqrt(mass * losses / max(len(nodes), 1)))
            found += won + lost
    return found


def padded(series: list[Tensor]) -> SeriesBatch:
    mask = torch.arange(max(map(len, series))) < torch.tensor([len(one) for one in series])[:, None]
    return SeriesBatch(torch.nn.utils.rnn.pad_sequence(series, batch_first=True), mask)


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize(("channels", "settings"), [(1, {}), (3, {}), (1, {"differences": False}), (11, {})])
def test_features_equal_those_of_the_loop(channels: int, settings: dict[str, Any], by_length: bool) -> None:
    net = bank(23, channels, **settings)
    net.by_length.fill_(by_length)
    series = [torch.randn(n, channels, dtype=torch.float64) for n in (23, 9, 14)]
    found = net.features(padded(series))
    expected = torch.tensor([slow_features(net, one) for one in series], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("settings", [{"num_groups": 0}, {"num_thresholds": 0}, {"num_thresholds": 1}])
def test_each_kind_of_features_alone(settings: dict[str, Any]) -> None:
    net = bank(23, **settings)
    u = torch.randn(1, 23, 1, dtype=torch.float64)
    expected = torch.tensor([slow_features(net, u[0])], dtype=torch.float64)
    torch.testing.assert_close(net.features(u), expected)


@pytest.mark.parametrize(("length", "stride"), [(16, 2), (17, 3), (8, 1), (1, 1)])
def test_long_series_are_pooled_over_every_kth_sample(length: int, stride: int) -> None:
    net = bank(17, num_nodes=8)
    u = torch.randn(1, length, 1, dtype=torch.float64)
    expected = torch.tensor([slow_features(net, u[0], stride)], dtype=torch.float64)
    torch.testing.assert_close(net.features(u), expected)


def test_a_filter_is_the_integral_operator_of_its_taps() -> None:
    """The response is that of `kernels.Convolution` with the same taps and dilation."""
    from fredholm import IntegralOperator, domains, kernels
    from fredholm.models.fitted.banks.filter_bank import _Nodes

    u = torch.randn(2, 31, 1, dtype=torch.float64)
    kernel = kernels.Convolution(1, 85, 9, padding="same", dilation=3).double()
    kernel.weight.data = two_valued_filters().double()[:, None]
    operator = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    nodes = _Nodes.of(u.transpose(1, 2), torch.tensor([31, 31]), 3, 1)
    response = nodes.filtered(two_valued_filters().double(), torch.ones(85, 1, dtype=torch.float64))
    torch.testing.assert_close(response.transpose(1, 2), operator(u, domains.Sequence(31)))


def test_padding_and_batch_mates_change_nothing() -> None:
    net = bank(29, 2)
    series = [torch.randn(n, 2, dtype=torch.float64) for n in (29, 1, 2, 12, 8, 9, 25)]
    together = net.features(padded(series))
    noisy = padded(series)
    values = torch.where(noisy.mask[..., None], noisy.values, torch.randn_like(noisy.values))  # type: ignore[index]
    longer = torch.cat([values, torch.randn(7, 5, 2, dtype=torch.float64)], 1)
    mask = torch.cat([noisy.mask, torch.zeros(7, 5, dtype=torch.bool)], 1)  # type: ignore[list-item]
    torch.testing.assert_close(net.features(SeriesBatch(longer, mask)), together)
    for one, row in zip(series, together, strict=True):
        torch.testing.assert_close(net.features(one[None])[0], row)


def test_gaps_are_bridged_by_straight_lines() -> None:
    net = bank(20)
    line = torch.linspace(-1, 3, 20, dtype=torch.float64)[None, :, None]
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[0, [3, 4, 11]] = False
    torch.testing.assert_close(net.features(SeriesBatch(line, mask)), net.features(line))


def test_features_do_not_depend_on_the_rate_or_form_of_times() -> None:
    net = bank(41, spacing=0.5)
    t = torch.arange(41, dtype=torch.float64) * 0.5
    u = (t * 0.9).sin()[None, :, None]
    expected = net.features(u)
    torch.testing.assert_close(net.features(SeriesBatch(u, spacing=torch.tensor([0.5]))), expected)
    torch.testing.assert_close(net.features(SeriesBatch(u, times=3 + t[None])), expected)
    fine = (torch.arange(161, dtype=torch.float64) * 0.125 * 0.9).sin()[None, :, None]
    torch.testing.assert_close(net.features(SeriesBatch(fine, spacing=torch.tensor([0.125]))), expected)
    both = SeriesBatch(
        torch.cat([fine, torch.nn.functional.pad(u, (0, 0, 0, 120))]),
        torch.arange(161) < torch.tensor([[161], [41]]),
        spacing=torch.tensor([0.125, 0.5]),
    )
    torch.testing.assert_close(net.features(both), expected.expand(2, -1))
    drawn = torch.sort(torch.cat([torch.rand(800, dtype=torch.float64) * 20, t[[0, -1]]])).values
    near = net.features(SeriesBatch((drawn * 0.9).sin()[None, :, None], times=drawn[None]))
    assert (near - expected).abs().mean() < 0.01
    wrong = net.features(SeriesBatch(fine, spacing=torch.tensor([0.5])))
    assert (wrong - expected).abs().mean() > 0.05


def batches(n: int = 24, length: int = 30) -> list[tuple[SeriesBatch, Tensor]]:
    """Two kinds of waves and noise, in two batches."""
    labels = torch.arange(n) % 3
    t = torch.arange(length, dtype=torch.float32)
    phase = 6 * torch.rand(n, 1)
    waves = torch.stack([(0.4 * t + phase).sin(), (0.9 * t + phase).sin(), torch.randn(n, length)])
    values = waves[labels, torch.arange(n)][..., None]
    cut = n // 3
    return [(SeriesBatch(values[:cut]), labels[:cut]), (SeriesBatch(values[cut:]), labels[cut:])]


def fitted(seed: int = 0, **settings: Any) -> FilterBank:
    given = batches()
    torch.manual_seed(seed)
    net = FilterBank.Config(**(SMALL | settings)).build(SeriesSampling(channels=1, spacing=1.0, extent=29.0), 3)
    net.fit(given, CLASSES)
    return net


def test_it_learns_and_is_restored_from_its_tensors() -> None:
    net, (given, labels) = fitted(), batches(60)[1]
    assert (net(given).argmax(1) == labels).float().mean() > 0.9
    torch.manual_seed(5)
    other = FilterBank.Config(**SMALL).build(net.sampling, 3)
    assert not other(given).any()
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(given), net(given))
    assert not torch.equal(net.thresholds[0], net.thresholds[1])


@pytest.mark.parametrize(("seed", "by_length"), [(5, True), (2, False)])
def test_the_mass_of_the_measure_has_the_smaller_left_out_error(seed: int, by_length: bool) -> None:
    torch.manual_seed(seed)
    given = padded([torch.randn(int(n), 1) for n in torch.randint(8, 30, (24,))])
    labels = torch.arange(24) % 3
    net = FilterBank.Config(**SMALL).build(SeriesSampling(channels=1, spacing=1.0, extent=29.0), 3)
    left_out = net.fit([(given, labels)], ScoreRecorder(CLASSES))
    assert bool(net.by_length) == by_length
    refit = RidgeHead(net.head.weight.shape[1], 3, further=net.head.blocks[1:])
    found = refit.fit(net.features(given), labels, ScoreRecorder(CLASSES), equal_in_doubt=True)
    torch.testing.assert_close(found, left_out)
    torch.testing.assert_close(refit.state_dict(), net.head.state_dict())
    net.by_length.logical_not_()
    refit.fit(net.features(given), labels, CLASSES, equal_in_doubt=True)
    assert net.head.error < refit.error


@pytest.mark.parametrize(("most", "fits"), [(1500, [(60, None)]), (40, [(40, None), (60, 1)])])
def test_differences_have_no_share_where_they_amplify_noise(
    monkeypatch: pytest.MonkeyPatch, most: int, fits: list[tuple[int, int | None]]
) -> None:
    monkeypatch.setattr(filter_bank, "CHOSEN", most)
    fit, seen = RidgeHead.fit, list[tuple[int, int | None]]()

    def watched(head: RidgeHead, features: Tensor, *given: Any, shares: Any = None, **further: Any) -> Tensor:
        seen.append((len(features), shares and len(shares)))
        return fit(head, features, *given, shares=shares, **further)

    monkeypatch.setattr(RidgeHead, "fit", watched)
    torch.manual_seed(2)
    labels = torch.arange(60) % 2
    slow = torch.where(labels[:, None] == 0, 2.0, 1.0) * torch.sin(0.3 * torch.arange(60) + 6.3 * torch.rand(60, 1))
    shares = list[list[float]]()
    for noise in (0.8, 0.0):
        values = (slow + noise * torch.randn(60, 60))[..., None]
        net = FilterBank.Config(**SMALL).build(SeriesSampling(channels=1, spacing=1.0, extent=59.0), 3)
        net.fit([(SeriesBatch(values), labels)], CLASSES)
        shares.append(net.head.shares.tolist())
    assert seen == 2 * fits
    assert shares[0][1] < 0.5
    assert shares[0][1] < shares[1][1]


def test_filters_see_which_channel_is_ahead() -> None:
    torch.manual_seed(0)
    labels = torch.arange(80) % 2
    signal = torch.nn.functional.avg_pool1d(torch.randn(80, 1, 60), 5, stride=1)[:, 0]
    late = torch.where(labels[:, None] == 0, signal[:, :50], signal[:, 4:54])
    values = torch.stack([signal[:, 2:52], late], -1)
    net = FilterBank.Config(num_thresholds=0, num_groups=16).build(
        SeriesSampling(channels=2, spacing=1.0, extent=49.0), 3
    )
    net.fit([(SeriesBatch(values[:50]), labels[:50])], CLASSES)
    assert (net(values[50:]).argmax(1) == labels[50:]).float().mean() > 0.9


def test_the_seed_decides_everything() -> None:
    state = torch.get_rng_state()
    one = fitted(3)
    torch.set_rng_state(state)
    same = fitted(3)
    torch.set_rng_state(state)
    other = fitted(4)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name]), name
    assert not torch.equal(one.thresholds, other.thresholds)
    assert not torch.equal(one.group_filters, other.group_filters)


def test_thresholds_are_quantiles_of_training_responses() -> None:
    net = bank(30, num_groups=0).float()
    constant = SeriesBatch(torch.full((4, 30, 1), 2.0))
    net.fit([(constant, torch.tensor([0, 1, 2, 0]))], CLASSES)
    assert net.thresholds[0, :, -1].amax() <= 2.0 + 1e-5  # the filter for the level gives 2, less near the ends
    assert net.thresholds[0, :, -1].amin() > 0
    assert not net.thresholds[1, :, :-1].any()  # differences of a constant
    assert net(constant).isfinite().all()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_series_of_a_single_sample(length: int) -> None:
    torch.manual_seed(0)
    net = FilterBank.Config(**SMALL).build(SeriesSampling(channels=2, spacing=1.0, extent=1.0), 2)
    values, labels = torch.randn(12, length, 2), torch.arange(12) % 2
    values[..., 0] += 4 * labels[:, None]
    net.fit([(SeriesBatch(values), labels)], ClassTarget(names=("a", "b")))
    assert net(values).isfinite().all()
    assert (net(values).argmax(1) == labels).all()


def test_series_without_samples_have_no_features() -> None:
    net = bank(12)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, :3] = True
    found = net.features(SeriesBatch(torch.randn(2, 5, 1, dtype=torch.float64), mask))
    assert not found[0].any()
    assert found[1].any()
    assert net.features(torch.zeros(0, 5, 1, dtype=torch.float64)).shape == (0, found.shape[1])


def test_precision_of_dtypes() -> None:
    net, u = bank(33, 2), torch.randn(3, 33, 2, dtype=torch.float64)
    double = net.features(u)
    narrow = net.config.build(net.sampling, 3)
    narrow.load_state_dict(net.state_dict())
    single = narrow.features(u.float())
    assert single.dtype == torch.float32
    # a response within rounding of its threshold may fall on either side
    assert (single - double).abs().mean() < 1e-4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(narrow.features(u.float()), single)


def test_bad_arguments_are_refused() -> None:
    with refused(ValueError, "num_thresholds, num_groups and num_lags are 0; give one of them"):
        FilterBank.Config(num_thresholds=0, num_groups=0)
    with refused(ValueError, "num_nodes must be at least 1; got 0"):
        FilterBank.Config(num_nodes=0)
    with refused(ValueError, "there is no series to fit to"):
        bank().fit([], CLASSES)
    with refused(ValueError, "expected channels of at least 1, and a finite spacing and extent above 0"):
        SeriesSampling(channels=1, spacing=0.0, extent=1.0)


def test_lags_of_series_without_samples_are_zero() -> None:
    """Also if no series of a batch has samples, so that there are no values to read."""
    net = bank(channels=2, num_lags=3)
    nothing, times = torch.zeros(2, 4, dtype=torch.bool), torch.rand(2, 4).double().cumsum(1)
    values = torch.randn(2, 4, 2).double()
    assert not net.features(SeriesBatch(values, nothing, times))[:, -6:].any()
    some = torch.arange(4) < torch.tensor([0, 2])[:, None]
    lags = net.features(SeriesBatch(values, some))[:, -6:].unflatten(1, (2, 3))
    assert not lags[0].any()
    torch.testing.assert_close(lags[1], F.pad(values[1, :2].T, (1, 0)))
