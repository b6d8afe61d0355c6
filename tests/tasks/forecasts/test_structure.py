"""Structures against the methods that they generalise, and bases against literal loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fredholm.tasks.forecasts import WindowSet
from fredholm.tasks.forecasts.base import Base, learn_base, read
from fredholm.tasks.forecasts.effect import Effect, Part
from fredholm.tasks.forecasts.structure import Structure


def drawn(count: int, channels: int = 1) -> Tensor:
    return torch.randn(count, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).cumsum(0)


def structure(
    level: float = 0.0,
    persistence: float = 1.0,
    slope: bool = False,
    season: float | None = None,
    trend: float = 0.0,
    damping: float = 1.0,
    in_logarithms: bool = False,
) -> Structure:
    return Structure(
        level=level,
        persistence=persistence,
        has_slope=slope,
        trend=trend,
        damping=damping,
        season=season,
        in_logarithms=in_logarithms,
    )


def test_without_variances_it_is_least_squares_on_a_line_and_a_season() -> None:
    y, t = drawn(30)[:, 0].numpy(), np.arange(35.0)
    table = np.stack([np.ones(35), t, *((t % 4 == k) * 1.0 for k in range(1, 4))], 1)
    expected = table[30:] @ np.linalg.lstsq(table[:30], y, rcond=None)[0]
    found = structure(slope=True, season=0.0).weights(30, 5, 4) @ torch.from_numpy(y)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def test_a_level_is_exponential_smoothing_and_a_large_one_repeats_the_last_value() -> None:
    y, v = drawn(200)[:, 0], 0.3
    alpha = (math.sqrt(v * v + 4 * v) - v) / 2  # of the Kalman filter in its steady state
    level = float(y[0])
    for value in y.tolist():
        level += alpha * (value - level)
    assert (structure(v).weights(200, 2, 1) @ y).tolist() == pytest.approx([level, level], rel=1e-9)
    last = structure(1e9, slope=True).weights(200, 2, 1) @ y
    drift = float(y[-1] - y[0]) / 199
    assert last.tolist() == pytest.approx([float(y[-1]) + drift, float(y[-1]) + 2 * drift], rel=1e-5)


def literal(v: float, persistence: float, z: float, phi: float, w: float | None, size: int) -> tuple[Tensor, Tensor]:
    """κ and A for `size` samples, three per season, sum by sum."""
    covariance = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        for j in range(size):
            covariance[i, j] = v * (min(i, j) + 1 if persistence == 1 else persistence ** abs(i - j))
            for s in range(min(i, j) + 1):  # accumulated change of slope at s
                covariance[i, j] += z * sum(phi**k for k in range(i - s + 1)) * sum(phi**k for k in range(j - s + 1))
            if w is not None and i % 3 == j % 3:
                covariance[i, j] += w * (min(i // 3, j // 3) + 1)
    phases = [(torch.arange(size) % 3 == k).double() for k in range(1, 3)] * (w is not None)
    return covariance, torch.stack([torch.ones(size).double(), *phases], 1)


@pytest.mark.parametrize("season", [None, 0.2])
@pytest.mark.parametrize(("persistence", "trend", "damping"), [(1.0, 0.0, 1.0), (0.7, 0.3, 1.0), (1.0, 0.3, 0.8)])
def test_it_is_the_best_linear_forecast_for_its_covariance(
    persistence: float, trend: float, damping: float, season: float | None
) -> None:
    v, n = 0.5, 12
    structure_found = structure(v, persistence, season=season, trend=trend, damping=damping)
    weights = structure_found.weights(n, 2, 3)
    covariance, parts = literal(v, persistence, trend, damping, season, n + 2)
    noisy = covariance[:n, :n] + torch.eye(n, dtype=torch.float64)
    # the likelihood uses contrasts, which do not depend on the parts
    full = torch.linalg.qr(parts[:n], mode="complete")[0][:, parts.shape[1] :]
    y, of_contrasts = torch.stack([drawn(n, 2)[:, 1], drawn(n)[:, 0] + 5], 1), full.T @ noisy @ full
    z = full.T @ y
    variance = (z * torch.linalg.solve(of_contrasts, z)).sum(0) / len(z)
    volume = torch.logdet(of_contrasts) + torch.logdet(parts[:n].T @ parts[:n])
    torch.testing.assert_close(structure_found.log_likelihood(y, 3), -0.5 * (len(z) * variance.log() + volume))
    # no unbiased change of the weights reduces the error: its gradient lies along the parts
    gradient = weights @ noisy - covariance[n:, :n]
    assert torch.allclose(weights @ parts[:n], parts[n:], atol=1e-9)
    rest = gradient.T - parts[:n] @ torch.linalg.lstsq(parts[:n], gradient.T).solution
    assert float(rest.abs().max()) < 1e-9


def test_weights_apply_far_from_0_and_in_any_unit() -> None:
    weights, y = structure(0.3, slope=True, season=0.03).weights(24, 3, 4)[None], drawn(24)[None]
    near = read(weights, y, [False])
    torch.testing.assert_close(read(weights, y * 1e-3 + 1e9, [False]), near * 1e-3 + 1e9, rtol=0, atol=1e-6)
    torch.testing.assert_close(near[0, :, 0], weights[0] @ y[0, :, 0])


def test_logarithms_are_used_where_all_samples_are_above_0() -> None:
    weights, y = structure(0.3, slope=True, season=0.03).weights(24, 3, 4)[None], drawn(24)[None]
    torch.testing.assert_close(read(weights, y.exp(), [True]), read(weights, y, [False]).exp())
    crossing = torch.cat([y.exp(), y.exp()])
    crossing[1, 5] = 0
    found = read(weights, crossing, [True])
    torch.testing.assert_close(found[0], read(weights, y, [False])[0].exp())
    torch.testing.assert_close(found[1], read(weights, crossing, [False])[1])


def windows(series: Tensor, places: list[int], horizon: int = 2) -> WindowSet:
    return WindowSet(
        values=(series,), truth=(series,), context=1, horizon=horizon, places=torch.tensor([[0, at] for at in places])
    )


def test_a_base_blends_with_the_last_value_and_reads_samples_in_sixteenths() -> None:
    series, one, other = drawn(100, 3), structure(0.3), structure(slope=True)
    base = Base(structures=(one, other), season=1, most=48, least=8, share=0.25)
    predicted = base.predictions(windows(series, [8, 10, 40, 100]), [2, 0])
    for row, (at, known) in enumerate([(8, 8), (10, 9), (40, 39), (100, 48)]):  # a sixteenth is 3 samples
        for f, (column, each) in enumerate([(2, one), (0, other)]):
            y = series[at - known : at, column]
            expected = 0.75 * y[-1] + 0.25 * each.weights(known, 2, 1) @ y
            torch.testing.assert_close(predicted[row, :, f], expected)


def test_the_structures_that_predict_windows_best_are_chosen() -> None:
    t, noise = torch.arange(96, dtype=torch.float64), 0.3 * drawn(97, 3).diff(dim=0)
    wave = torch.sin(t * math.pi / 6) + 0.5 * torch.cos(t * math.pi / 3)
    series = torch.stack([wave + 0.02 * t, 10 * noise[:, 1].cumsum(0), noise[:, 2]], 1) + noise * torch.tensor(
        [1, 0, 0]
    )
    found = learn_base([series], [series[:, [0, 1]]], [96], [0, 1], horizon=6, season=12)
    assert found is not None
    first, second = found.structures
    assert (first.season is not None, first.level <= 0.03, second.level >= 3) == (True, True, True)
    assert (found.most, found.least, found.share, found.season) == (96, 24, 1.0, 12)
    alone = learn_base([series], [series[:, [1]]], [96], [1], horizon=6, season=1)
    assert alone is not None
    assert (alone.structures, alone.least) == ((second,), 8) if second.season is None else alone.least == 8


def end_errors(y: Tensor, end: int, season: int) -> tuple[Structure, float]:
    """The structure chosen from the samples before `end`, and its mean absolute error on all later ones."""
    series, horizon = y[:, None], len(y) - end
    base = learn_base([series], [series], [end], [0], horizon=horizon, season=season)
    assert base is not None
    predicted = base.predictions(windows(series, [end], horizon), [0])[0, :, 0]
    return base.structures[0], float((predicted - y[end:]).abs().mean())


def test_seasons_that_grow_with_the_level_use_logarithms() -> None:
    t, noise = torch.arange(84, dtype=torch.float64), drawn(85).diff(dim=0)[:, 0]
    wave = 0.3 * torch.sin(t * math.pi / 6) + 0.2 * torch.cos(t * math.pi / 3)
    structure_found, error = end_errors((0.02 * t + wave + 0.02 * noise).exp(), 72, 12)
    assert structure_found.in_logarithms
    assert error < 0.15  # an additive season has 0.57
    structure_found, error = end_errors(50 + 0.5 * t + 10 * wave + 0.5 * noise, 72, 12)
    assert not structure_found.in_logarithms
    below, _ = end_errors((0.02 * t + wave + 0.02 * noise).exp() - 4, 72, 12)
    assert not below.in_logarithms


def test_changing_slopes_are_followed() -> None:
    t, noise = torch.arange(126, dtype=torch.float64), drawn(127).diff(dim=0)[:, 0]
    bent = t - 2 * (t - 30).clamp_min(0) + 2.5 * (t - 60).clamp_min(0) - 2 * (t - 95).clamp_min(0)
    structure_found, error = end_errors(bent + 0.3 * noise, 120, 1)
    assert structure_found.trend > 0
    assert error < 1  # constant levels and slopes have more than 3


def test_structures_of_few_samples_are_chosen_by_likelihood() -> None:
    # there are hardly more than one or two windows of 40 samples, and errors on them alone would give a sum of 38
    walks = torch.randn(12, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).cumsum(1)
    errors = [end_errors(walk, 40, 1)[1] for walk in walks]
    last = [float((walk[40:] - walk[39]).abs().mean()) for walk in walks]  # the best possible: 21
    assert sum(errors) < 1.05 * sum(last)


def test_samples_after_the_end_and_units_do_not_change_the_choice() -> None:
    series = drawn(80)
    later = torch.cat([series[:60], 100 * series[60:]])
    given: dict[str, Any] = {"horizon": 4, "season": 1}
    assert learn_base([later], [later], [60], [0], **given) == learn_base([series], [series], [60], [0], **given)
    scaled = 1000 * series
    assert learn_base([scaled], [scaled], [60], [0], **given) == learn_base([series], [series], [60], [0], **given)
    other = drawn(120, 2)[:60, 1:].diff(dim=0, prepend=torch.zeros(1, 1).double())
    pair, unlike = [series[:60], other], [series[:60], 1000 * other]
    assert learn_base(unlike, unlike, [60, 60], [0], **given) == learn_base(pair, pair, [60, 60], [0], **given)
    calm = torch.zeros(60, 1, dtype=torch.float64) + 5
    assert learn_base([series, calm], [series, calm], [60, 60], [0], **given) is not None


def test_short_series_have_no_base_or_no_season() -> None:
    series = drawn(30)
    assert learn_base([series], [series], [15], [0], horizon=2, season=1) is None
    missing = torch.full_like(series, torch.nan)
    assert learn_base([series], [missing], [30], [0], horizon=2, season=1) is None
    wave = torch.sin(torch.arange(30) * math.pi / 6).double()[:, None]
    longer = learn_base(
        [wave], [wave], [30], [0], horizon=2, season=12
    )  # two seasons fit into 30 samples, not into half of them
    assert longer is not None
    assert longer.structures[0].season is not None
    seasonal = learn_base([series], [series], [30], [0], horizon=2, season=16)  # two seasons are more than 30 samples
    assert seasonal is not None
    assert seasonal.structures[0].season is None


def test_a_base_is_learnt_from_the_series_without_the_effect() -> None:
    x, rest = torch.arange(80.0).double()[:, None], drawn(80).diff(dim=0, prepend=torch.zeros(1, 1).double())
    effect = Effect(
        mean=(0.0,),
        deviation=(0.5,),
        knots=((),),
        reach=5,
        parts=(Part(unit="one", lags=0, is_bent=False, pairs=(), weights=(4.0,), middle=0.0, widest=0.0),),
    )
    y = rest + 8 * x
    of_rest = learn_base([torch.cat([rest, x], 1)], [rest], [80], [0], horizon=4, season=1)
    found = learn_base([torch.cat([y, x], 1)], [y], [80], [0], horizon=4, season=1, effect=effect, ahead=(1,))
    assert found == of_rest
    assert found != learn_base([y], [y], [80], [0], horizon=4, season=1)
