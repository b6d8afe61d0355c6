"""Compare forecasts of generated series with and without channels that are known ahead.

Command:   python recipes/forecasts_known_ahead.py
           python recipes/forecasts_known_ahead.py --sides known sarimax   (pip install statsmodels)
Modality:  series
Hardware:  one core of an AMD EPYC, shared with other work; float64 in closed form; statsmodels 0.15.0
Time:      twenty minutes
Score:     see docs/forecasting.md
Data:      generated here, by seeds

Sides    without     `fredholm train forecast` at its defaults, on the predicted channel alone
         known       the same with the other channels known ahead
         ridge       a ridge regression for each step on lags and on the known channels from three samples before the
                     horizon to its end, with a penalty chosen by leave-one-out over windows
         sarimax     ARIMA(1, 1, 1) with a season (0, 1, 1) up to 24 samples, and the known channels as `exog`, on a
                     dozen test windows per series; with it, `known` is measured on the same windows

Numbers are MASE on the last fifth, geometric means over seeds.
"""

import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from numpy.random import Generator

from fredholm.tasks import Forecasting
from fredholm.training import seed_everything
from fredholm.training.progress import print_line

SIDES = ("without", "known", "ridge")
MOST_SEASON = 24


@dataclass(frozen=True, kw_only=True)
class Config:
    """Series and forecasts to compare.

    Args:
        series: names of the series; (): all.
        sides: forecasts; see the docstring of this file.
        seeds: the first seed, and the one after the last.
    """

    series: tuple[str, ...] = ()
    sides: tuple[str, ...] = SIDES
    seeds: tuple[int, int] = (0, 3)


class Generated(NamedTuple):
    """Generated series to predict, `(T,)` each, and their channels that are known ahead, by name."""

    targets: list[np.ndarray]
    known: dict[str, list[np.ndarray]]
    horizon: int
    season: int


def _walk(drawn: Generator, size: int, step: float) -> np.ndarray:
    return (step * drawn.normal(size=size)).cumsum()


def _reverting(drawn: Generator, size: int, keeps: float, step: float) -> np.ndarray:
    noise, found = drawn.normal(size=size) * step, np.zeros(size)
    for t in range(1, size):
        found[t] = keeps * found[t - 1] + noise[t]
    return found


def _season(drawn: Generator, size: int, length: int, height: float) -> np.ndarray:
    return (drawn.normal(size=length) * height)[np.arange(size) % length]


def _promotions(drawn: Generator, size: int) -> np.ndarray:
    found, t = np.zeros(size), 0
    while t < size:
        if drawn.random() < 0.06:
            days = drawn.integers(2, 6)
            found[t : t + days] = 1
            t += days
        t += 1
    return found


def promotions(drawn: Generator) -> Generated:
    """Promotions of two to five days raise sales."""
    x = _promotions(drawn, 400)
    y = 20 + _season(drawn, 400, 7, 2) + _walk(drawn, 400, 0.15) + 6 * x + drawn.normal(size=400)
    return Generated([y], {"promo": [x]}, 14, 7)


def growing(drawn: Generator) -> Generated:
    """Promotions raise growing sales by half."""
    x, t = _promotions(drawn, 500), np.arange(500)
    level = np.exp(3 + 0.004 * t * drawn.uniform(0.5, 1) + _walk(drawn, 500, 0.02))
    y = level * (1 + 0.1 * _season(drawn, 500, 7, 1)) * (1 + 0.5 * x) * np.exp(0.06 * drawn.normal(size=500))
    return Generated([y], {"promo": [x]}, 14, 7)


def late(drawn: Generator) -> Generated:
    """The effect of promotions is spread over four days."""
    x = _promotions(drawn, 400)
    later = np.convolve(x, [2, 4, 3, 1.5])[:400]
    y = 20 + _season(drawn, 400, 7, 2) + _reverting(drawn, 400, 0.9, 0.5) + later + drawn.normal(size=400)
    return Generated([y], {"promo": [x]}, 14, 7)


def few(drawn: Generator) -> Generated:
    """A series with only five or six promotions."""
    x = np.zeros(160)
    for at in drawn.choice(np.arange(10, 148, 20), 5, replace=False):
        x[at : at + 4] = 1
    x[-20:-16] = 1
    y = 20 + _season(drawn, 160, 7, 2) + _walk(drawn, 160, 0.3) + 5 * x + drawn.normal(size=160)
    return Generated([y], {"promo": [x]}, 7, 7)


def months(drawn: Generator) -> Generated:
    """Promotions in some of 60 months."""
    x = (drawn.random(60) < 0.2).astype(float)
    y = 20 + _season(drawn, 60, 12, 2) + _walk(drawn, 60, 0.2) + 4 * x + drawn.normal(size=60)
    return Generated([y], {"promo": [x]}, 6, 12)


def shops(drawn: Generator) -> Generated:
    """Promotions in six shops of different sizes."""
    targets, known = list[np.ndarray](), list[np.ndarray]()
    for _ in range(6):
        size, x = np.exp(drawn.normal() * 1.2 + 3), _promotions(drawn, 200)
        share = 1 + 0.3 * _season(drawn, 200, 7, 0.5) + _walk(drawn, 200, 0.01) + 0.4 * x
        targets.append(size * (share + 0.06 * drawn.normal(size=200)))
        known.append(x)
    return Generated(targets, {"promo": known}, 14, 7)


def price(drawn: Generator) -> Generated:
    """Sales with a price elasticity of -1.8."""
    x, now = np.empty(300), 10.0
    for t in range(300):
        if drawn.random() < 0.08:
            now = 10 * drawn.choice([0.7, 0.8, 0.9, 1, 1.1, 1.2])
        x[t] = now
    rest = _season(drawn, 300, 12, 0.1) + _walk(drawn, 300, 0.02)
    y = np.exp(4 + rest - 1.8 * np.log(x / 10) + 0.05 * drawn.normal(size=300))
    return Generated([y], {"price": [x]}, 12, 12)


def load(drawn: Generator) -> Generated:
    """A load of heating and cooling, by temperature."""
    t = np.arange(1200)
    heat = 12 + 10 * np.sin(2 * np.pi * t / 365) + _reverting(drawn, 1200, 0.8, 2)
    rest = _season(drawn, 1200, 7, 5) + _reverting(drawn, 1200, 0.9, 1) + drawn.normal(size=1200)
    y = 100 + 2 * np.maximum(15 - heat, 0) + 1.5 * np.maximum(heat - 20, 0) + rest
    return Generated([y], {"temperature": [heat]}, 7, 7)


def hours(drawn: Generator) -> Generated:
    """An hourly load that follows temperature and holidays."""
    t = np.arange(24 * 60)
    heat = 10 + 5 * np.sin(2 * np.pi * t / 24) + _reverting(drawn, len(t), 0.97, 0.8)
    holiday = np.repeat((drawn.random(60) < 0.1).astype(float), 24)
    rest = _reverting(drawn, len(t), 0.9, 0.5) + 0.5 * drawn.normal(size=len(t))
    y = 50 + 10 * np.sin(2 * np.pi * (t - 3) / 24) - 1.2 * heat - 8 * holiday + rest
    return Generated([y], {"temperature": [heat], "holiday": [holiday]}, 24, 24)


def shares(drawn: Generator) -> Generated:
    """Sales of six shops, multiplied by days of the week, prices and promotions."""
    targets, promos, prices, t = list[np.ndarray](), list[np.ndarray](), list[np.ndarray](), np.arange(200)
    week = np.array([1, 0.9, 0.95, 1, 1.3, 1.8, 0.6])[t % 7]
    for _ in range(6):
        x, changes = _promotions(drawn, 200), (drawn.random(200) < 0.08).cumsum()
        cost = drawn.choice([0.7, 0.8, 0.9, 1, 1.1, 1.2], changes[-1] + 1)[changes]
        level = np.exp(3 + 1.2 * drawn.normal() + _walk(drawn, 200, 0.02))
        targets.append(level * week * cost**-2 * (1 + 0.5 * x) * np.exp(0.08 * drawn.normal(size=200)))
        promos.append(x)
        prices.append(cost)
    return Generated(targets, {"promo": promos, "price": prices}, 14, 7)


def weekends(drawn: Generator) -> Generated:
    """Promotions that work only at weekends."""
    x, free = _promotions(drawn, 600), (np.arange(600) % 7 >= 5).astype(float)
    y = 20 + _season(drawn, 600, 7, 2) + _walk(drawn, 600, 0.15) + 9 * x * free + drawn.normal(size=600)
    return Generated([y], {"promo": [x], "weekend": [free]}, 14, 7)


def ten(drawn: Generator) -> Generated:
    """Ten channels, of which a few matter, in pairs."""
    x = [_reverting(drawn, 700, 0.6, 1) if k % 2 else _promotions(drawn, 700) for k in range(10)]
    effect = 6 * x[0] * (x[1] > 0) + 3 * np.tanh(2 * x[3]) * (1 + x[2])
    y = 60 + _season(drawn, 700, 7, 2) + _walk(drawn, 700, 0.2) + effect + drawn.normal(size=700)
    return Generated([y], {f"x{k}": [each] for k, each in enumerate(x)}, 14, 7)


def noise(drawn: Generator) -> Generated:
    """Known channels without any effect."""
    y = 20 + _season(drawn, 300, 7, 2) + _walk(drawn, 300, 0.3) + drawn.normal(size=300)
    known = {"x": drawn.normal(size=300), "w": _promotions(drawn, 300), "z": _reverting(drawn, 300, 0.9, 1)}
    return Generated([y], {name: [each] for name, each in known.items()}, 14, 7)


def walks(drawn: Generator) -> Generated:
    """A random walk, with an unrelated one known ahead."""
    return Generated([_walk(drawn, 150, 1)], {"x": [_walk(drawn, 150, 1)]}, 10, 1)


def year_of_days(drawn: Generator) -> Generated:
    """Daily values with a yearly season, whose sines and cosines are known."""
    turn = 2 * np.pi * np.arange(1200) / 365.25
    rest = _season(drawn, 1200, 7, 3) + _reverting(drawn, 1200, 0.9, 0.8) + drawn.normal(size=1200)
    y = 50 + 10 * np.sin(turn + 1) + 4 * np.sin(2 * turn) + rest
    known = {f"{of.__name__}{k}": [of(k * turn)] for k in (1, 2) for of in (np.sin, np.cos)}
    return Generated([y], known, 30, 7)


def weekends_of_hours(drawn: Generator) -> Generated:
    """Hourly values with another daily shape at weekends."""
    t = np.arange(24 * 70)
    turn, free = 2 * np.pi * t / 24, (t // 24 % 7 >= 5).astype(float)
    rest = _reverting(drawn, len(t), 0.9, 0.6) + 0.5 * drawn.normal(size=len(t))
    y = 20 + 8 * np.sin(turn - np.pi / 2) * (1 - 0.6 * free) - 5 * free + rest
    known = {"weekend": free, "weekend_sin": free * np.sin(turn), "weekend_cos": free * np.cos(turn)}
    return Generated([y], {name: [each] for name, each in known.items()}, 24, 24)


def days_of_the_week(drawn: Generator) -> Generated:
    """Known days of the week, which every window shows anyway."""
    y = 50 + _season(drawn, 400, 7, 3) + _walk(drawn, 400, 0.3) + drawn.normal(size=400)
    return Generated([y], {f"day{k}": [(np.arange(400) % 7 == k).astype(float)] for k in range(6)}, 14, 7)


SERIES: dict[str, Callable[[Generator], Generated]] = {
    each.__name__: each
    for each in (
        *(promotions, growing, late, few, months, shops, price, load, hours, shares, weekends, ten, noise, walks),
        *(year_of_days, weekends_of_hours, days_of_the_week),
    )
}


class Fitted(NamedTuple):
    """A task and its model."""

    task: Forecasting
    model: torch.nn.Module

    def mase(self, some: torch.Tensor) -> float:
        """MASE on some of the test windows."""
        batch = self.task.held_out_batch("test", some)
        metrics = self.task.metrics()
        with torch.no_grad():
            self.task.score(self.model, batch, metrics)
        return float(metrics["mase"].compute())


def ours(series: Generated, folder: Path, known: bool) -> Fitted:
    """A fitted task at its defaults, with or without the known channels."""
    names = tuple(series.known) if known else ()
    lines = [",".join(["series", "time", "y", *names])]
    for i, y in enumerate(series.targets):
        columns = [y, *(series.known[name][i] for name in names)]
        lines += [",".join(map(str, (i, t, *row))) for t, row in enumerate(np.stack(columns, 1).tolist())]
    data = folder / "series.csv"
    data.write_text("\n".join(lines))
    seed_everything(0)
    task_config = Forecasting.Config(data=str(data), known=names, horizon=series.horizon, season=series.season)
    config = task_config.recommended("small").config
    assert isinstance(config, Forecasting.Config)
    task = config.build()
    model = task.model()
    task.initialise(model, torch.device("cpu"))
    return Fitted(task, model.eval())


def ridge(series: Generated, task: Forecasting) -> float:
    """MASE of ridge regressions on the windows of a task."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    test, horizon = task.held_out("test"), task.facts.horizon
    lags = min(task.facts.context, 3 * max(task.facts.season, horizon))
    known = [np.stack([each[i] for each in series.known.values()], 1) for i in range(len(series.targets))]

    def features(starts: list[list[int]]) -> np.ndarray:
        return np.stack(
            [np.r_[series.targets[i][t - lags : t], known[i][t - 3 : t + horizon].ravel()] for i, t in starts]
        )

    def answers(starts: list[list[int]]) -> np.ndarray:
        return np.stack([series.targets[i][t : t + horizon] for i, t in starts])

    train, queries = task.splits.train.places.tolist(), test.places.tolist()
    scaler = StandardScaler().fit(features(train))
    model = RidgeCV(np.logspace(-1, 5, 13)).fit(scaler.transform(features(train)), answers(train))
    error = np.abs(model.predict(scaler.transform(features(queries))) - answers(queries))
    q = task.held_out_batch("test", torch.arange(len(test)))["error_scale"][:, 0].numpy()
    return float((error / q).mean())


def sarimax(series: Generated, task: Forecasting, some: torch.Tensor) -> float:
    """MASE of SARIMAX on some test windows of a task, fitted to each series before its first window."""
    from statsmodels.tsa.statespace.sarimax import SARIMAX  # pyright: ignore[reportMissingImports]  (a peer)

    test, horizon, errors = task.held_out("test"), task.facts.horizon, list[float]()
    scales = task.held_out_batch("test", some)["error_scale"][:, 0, 0].tolist()
    season = (0, 1, 1, series.season) if 1 < series.season <= MOST_SEASON else (0, 0, 0, 0)
    fitted, fitted_series, at = None, -1, 0
    for (i, place), q in zip(test.places[some].tolist(), scales, strict=True):
        y, x = series.targets[i], np.stack([each[i] for each in series.known.values()], 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of optimisers that stop early
            if i != fitted_series:
                model = SARIMAX(y[:place], exog=x[:place], order=(1, 1, 1), seasonal_order=season)
                fitted, fitted_series, at = model.fit(disp=False, maxiter=50), i, place
            assert fitted is not None
            if place > at:
                fitted, at = fitted.append(y[at:place], exog=x[at:place], refit=False), place
            predicted = np.asarray(fitted.forecast(horizon, exog=x[place : place + horizon]))
        errors.append(float(np.abs(predicted - y[place : place + horizon]).mean()) / q)
    return float(np.mean(errors))


def scores(series: Generated, folder: Path, sides: tuple[str, ...]) -> list[float]:
    """MASE of each side."""
    fits = dict[bool, Fitted]()

    def fit(known: bool) -> Fitted:
        if known not in fits:
            fits[known] = ours(series, folder, known)
        return fits[known]

    def some(task: Forecasting) -> torch.Tensor:
        numbers = task.held_out("test").places[:, 0]
        by_series = [(numbers == i).nonzero()[:, 0] for i in numbers.unique().tolist()]
        return torch.cat([own[:: max(1, len(own) // 12)] if "sarimax" in sides else own for own in by_series])

    mase: dict[str, Callable[[], Any]] = {
        "without": lambda: fit(False).mase(some(fit(False).task)),
        "known": lambda: fit(True).mase(some(fit(True).task)),
        "ridge": lambda: ridge(series, fit(True).task),
        "sarimax": lambda: sarimax(series, fit(True).task, some(fit(True).task)),
    }
    return [mase[side]() for side in sides]


def main(config: Config) -> None:
    """Prints a line for each kind of series: MASE of each side."""
    torch.set_num_threads(1)
    for name, make in SERIES.items():
        if config.series and name not in config.series:
            continue
        start, found = time.process_time(), list[list[float]]()
        for seed in range(*config.seeds):
            with tempfile.TemporaryDirectory() as folder:
                found.append(scores(make(np.random.default_rng(seed)), Path(folder), config.sides))
        means = np.exp(np.log(found).mean(0)).tolist()
        scores_of_sides = "   ".join(f"{side} {mean:.3f}" for side, mean in zip(config.sides, means, strict=True))
        print_line(f"{name:<18} {scores_of_sides}   {time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
