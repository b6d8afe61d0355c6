"""Effects of known channels, against literal loops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.tasks.forecasts import Clock
from fredholm.tasks.forecasts import effect as module
from fredholm.tasks.forecasts.base import learn_base
from fredholm.tasks.forecasts.calendar import NO_CALENDAR
from fredholm.tasks.forecasts.effect import LAGS, PENALTIES, Effect, Part, learn_effect
from fredholm.tasks.forecasts.structure import LEAST_READ, Structure

STRUCTURE = Structure(
    level=0.3, persistence=1.0, has_slope=False, trend=0.0, damping=1.0, season=None, in_logarithms=False
)
PLAIN = Part(unit="one", lags=0, is_bent=False, pairs=(), weights=(), middle=0.0, widest=0.0)
UNDATED: dict[str, Any] = {"calendar": NO_CALENDAR, "starts": [0.0], "clock": Clock(step=1.0)}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def found(y: torch.Tensor, x: torch.Tensor, season: int = 1) -> Effect | None:
    """The effect of known channels `(T, K)` on predicted ones `(T, F)`."""
    values, count = torch.cat([y, x], 1), y.shape[1]
    known = range(count, values.shape[1])
    return learn_effect([values], [y], [len(y)], range(count), known, season=season, reach=12, **UNDATED)


def test_effects_are_terms_or_factors_of_channels_hinges_lags_and_products() -> None:
    seen, x = 3 + drawn(2, 9, 4), drawn(2, 7, 2, seed=1)
    weights, factor = drawn(3 * 4 + 3, seed=2), drawn(3, seed=3)
    parts = (
        replace(PLAIN, unit="size", lags=2, is_bent=True, pairs=((0, 1),), weights=tuple(weights.tolist())),
        replace(PLAIN, unit="deviation", weights=(2.0, -1.0)),
        PLAIN,
        replace(PLAIN, unit="factor", pairs=((0, 1),), weights=tuple(factor.tolist()), middle=0.1, widest=0.3),
    )
    effect = Effect(mean=(1.0, -0.5), deviation=(2.0, 0.5), knots=((), (-0.5, 0.5)), reach=5, parts=parts)
    terms, factors = effect.of(seen, x)
    assert terms.shape == factors.shape == (2, 7, 4)
    assert [effect.size(part) for part in parts] == [15, 2, 2, 3]
    clamped = 0
    for row in range(2):
        size, deviation = seen[row, -5:, 0].abs().mean(), seen[row, -5:, 1].std(correction=0)
        for t in range(7):
            features = list[float]()
            for lag in range(3):
                a, b = float(x[row, max(0, t - lag), 0]) / 2, float(x[row, max(0, t - lag), 1]) / 0.5
                features += [a, b, max(0.0, b + 0.5), max(0.0, b - 0.5)]
            a, b = features[:2]
            product = (a - 0.5) * (b + 1)
            features += [product, *((a - 0.5) * bend for bend in features[2:4])]
            expected = sum(w * f for w, f in zip(weights.tolist(), features, strict=True))
            assert float(terms[row, t, 0]) == pytest.approx(float(size) * expected)
            assert float(terms[row, t, 1]) == pytest.approx(float(deviation) * (2 * a - b))
            assert terms[row, t, 2:].tolist() == [0.0, 0.0]
            assert factors[row, t, :3].tolist() == [1.0, 1.0, 1.0]
            exponent = sum(w * f for w, f in zip(factor.tolist(), (a, b, product), strict=True)) - 0.1
            clamped += abs(exponent) > 0.3
            assert float(factors[row, t, 3]) == pytest.approx(np.exp(np.clip(exponent, -0.3, 0.3)))
    assert 0 < clamped < 14


def test_left_out_errors_are_those_of_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)
    before, targets, x = drawn(20, 8), drawn(20, seed=1), drawn(20, 9, 2, seed=2)
    q, stretch = drawn(20, seed=3).abs() + 0.5, torch.arange(20) // 5
    other = replace(STRUCTURE, level=300.0)
    steps = torch.stack([each.weights(8, 1, 1)[0] for each in (STRUCTURE, other)])
    rows = module._Rows(before, targets, q, stretch, x, torch.zeros(20, 9), torch.ones(0), (STRUCTURE, other), steps)
    effect = Effect(mean=(0.0, 0.0), deviation=(1.0, 1.0), knots=((), ()), reach=4, parts=())
    fits = rows.fits(effect, replace(PLAIN, unit="size"))
    errors, solved = dict[tuple[int, float], float](), dict[tuple[int, float], np.ndarray]()
    for s, step in enumerate(steps):
        unit = before[:, -4:].abs().mean(1)
        y = ((targets - before @ step) / q).numpy()
        e = ((x[:, 8] - torch.einsum("rnk,n->rk", x[:, :8], step)) * (unit / q)[:, None]).numpy()

        def ridge(own: np.ndarray, multiple: float, y: np.ndarray = y, e: np.ndarray = e) -> np.ndarray:
            gram = e[own].T @ e[own]
            return np.linalg.solve(gram + multiple * np.trace(gram) / 2 * np.eye(2), e[own].T @ y[own])

        for multiple in PENALTIES.tolist():
            square = 0.0
            for group in range(4):
                own = (stretch == group).numpy()
                square += float(((y[own] - e[own] @ ridge(~own, multiple)) ** 2).sum())
            errors[s, multiple], solved[s, multiple] = square, ridge(np.ones(20, bool), multiple)
        assert float(fits.square.sum(0)[s]) == pytest.approx((y**2).sum())
    best = min(errors, key=lambda each: errors[each])
    choice = fits.best()
    assert (choice.structure, choice.penalty) == (best[0], pytest.approx(best[1]))
    assert choice.error == pytest.approx(errors[best])
    np.testing.assert_allclose(fits.solve(choice).numpy(), solved[best])


def test_effects_of_known_channels_are_found() -> None:
    t, noise = torch.arange(150), drawn(150, 5)
    x = torch.stack([(drawn(150, seed=1) > 0.8).double(), drawn(150, seed=2)], 1)
    level = 0.2 * noise[:, 0].cumsum(0)
    before = torch.nn.functional.pad(x[:-1, 0], (1, 0))
    plain = level + 3 * x[:, 0] - x[:, 1] + 0.2 * noise[:, 1]
    late = level + 3 * before + 0.2 * noise[:, 2]
    bent = level + 3 * x[:, 1].clamp_min(0.5) + 0.2 * noise[:, 3]
    effect = found(torch.stack([plain, late, bent, noise[:, 4]], 1), x)
    assert effect is not None
    one, two, three, none = effect.parts
    assert (one.lags, one.is_bent, one.unit, len(one.weights)) == (0, False, "one", 2)
    deviation = x.std(0, correction=0)
    assert [w / float(d) for w, d in zip(one.weights, deviation, strict=True)] == pytest.approx([3, -1], abs=0.15)
    assert (two.lags, two.is_bent) == (1, False)
    assert (three.lags, three.is_bent, len(three.weights)) == (0, True, 5)
    assert none.weights == ()
    assert effect.reach == 12
    grown = torch.exp(t / 30) * (1 + 0.5 * x[:, 0] + 0.02 * noise[:, 0]) * (t > 0)
    with_size = found(grown[:, None], x[:, :1])
    assert with_size is not None
    assert with_size.parts[0].unit == "size"


def test_multiplicative_effects_and_interactions_are_found() -> None:
    t, noise = torch.arange(200), drawn(200, 2)
    x = torch.cat([(drawn(200, 2, seed=1) > 0.5).double(), drawn(200, 1, seed=2)], 1)
    season = 2 + torch.tensor([0.0, 3.0, 8.0], dtype=torch.float64)[t % 3]
    grown = season * torch.exp(0.7 * x[:, 0] - 0.2 * x[:, 2] + 0.05 * noise[:, 0])
    joint = 5 * x[:, 0] * x[:, 1] + 0.3 * noise[:, 1]
    effect = found(torch.stack([grown, joint], 1), x, season=3)
    assert effect is not None
    factor, both = effect.parts
    assert (factor.unit, factor.pairs, both.unit, both.pairs[0]) == ("factor", (), "one", (0, 1))
    deviation = x.std(0, correction=0)
    raw = torch.tensor(factor.weights, dtype=torch.float64) / deviation
    assert raw.tolist() == pytest.approx([0.7, 0.0, -0.2], abs=0.03)
    assert factor.middle == pytest.approx(float(x.mean(0) @ raw), abs=0.05)
    product = both.weights[effect.size(replace(both, pairs=()))]
    assert product / float(deviation[:2].prod()) == pytest.approx(5, abs=0.3)
    assert (both.middle, both.widest) == (0.0, 0.0)


def test_features_are_few_and_reach_no_further_back_than_the_samples_that_select_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert max(LAGS) < LEAST_READ
    x = (drawn(150, 2, seed=1) > 0.8).double()
    late = 3 * torch.nn.functional.pad(x[:-1], (0, 0, 1, 0)).sum(1, keepdim=True) + 0.2 * drawn(150, 1)
    effect = found(late, x)
    assert effect is not None
    assert effect.parts[0].lags == 1
    monkeypatch.setattr(module, "MOST_FEATURES", 3)
    held = found(late, x)
    assert held is None or held.parts[0].lags == 0
    few = found(3 * x[:20, :1] + 0.1 * drawn(20, 1), x[:20, :1])
    assert few is not None
    assert few.reach == 10


def test_structures_are_chosen_on_the_series_without_the_effect() -> None:
    x, rest = (drawn(120, 1, seed=1) > 0.8).double(), drawn(120, 1).cumsum(0)
    y = rest + 50 * x
    part = replace(PLAIN, weights=(50.0,))
    effect = Effect(mean=(0.0,), deviation=(1.0,), knots=((),), reach=5, parts=(part,))
    one = learn_base([torch.cat([y, x], 1)], [y], [120], [0], horizon=4, season=1, effect=effect, ahead=(1,))
    two = learn_base([rest], [rest], [120], [0], horizon=4, season=1)
    assert one is not None
    assert one == two


def test_samples_after_the_end_do_not_change_the_effect() -> None:
    x = (drawn(90, 1, seed=1) > 0.5).double()
    y = 3 * x + 0.3 * drawn(90, 1)
    values, other = torch.cat([y, x], 1), torch.cat([y, x], 1)
    other[70:] *= -100
    given: dict[str, Any] = {"season": 1, "reach": 9, **UNDATED}
    one, two = (learn_effect([each], [each[:, :1]], [70], [0], [1], **given) for each in (values, other))
    assert one is not None
    assert one == two


def test_noise_and_too_few_samples_give_no_effect() -> None:
    assert found(drawn(120, 1), drawn(120, 2, seed=1)) is None
    assert found(drawn(120, 1).cumsum(0), drawn(120, 2, seed=1).cumsum(0)) is None
    assert found(drawn(120, 1), torch.ones(120, 1).double()) is None
    x = (drawn(40, 1, seed=1) > 0.5).double()
    y = 3 * x + 0.3 * drawn(40, 1)
    assert found(y, x) is not None
    assert found(y[:15], x[:15]) is None
