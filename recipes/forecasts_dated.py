"""Compare forecasts of generated series with dates, by the defaults and by methods that know the calendar.

Command:   python recipes/forecasts_dated.py
           python recipes/forecasts_dated.py --sides ours --task.calendar none
Modality:  series
Hardware:  one core of an AMD EPYC, shared with other work; in closed form
Time:      forty minutes
Score:     see docs/forecasting.md
Data:      generated here, by seeds

Sides    ours        `fredholm train forecast` at its defaults, with a horizon where the series has one
         boosting    histogram gradient boosting for each step, on lags and on the hour, weekday, day of the month and of
                     the year of the predicted sample
         ridge       a ridge regression for each step on lags and on indicators and harmonics of the same, with a
                     penalty chosen by leave-one-out over windows
         additive    a piecewise linear trend with harmonics of day, week and year, fitted again before each window
         smoothing   exponential smoothing, the best of no season, an additive and a multiplicative one, by one-step
                     errors in training
         theta       the Theta method on seasonally adjusted samples
         naive       the last season again

Numbers are MASE on at most 60 test windows, evenly spread over the last fifth; geometric means over seeds.
"""

import dataclasses
import datetime
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import tyro
from numpy.random import Generator

from fredholm.tasks import Forecasting
from fredholm.training import seed_everything
from fredholm.training.progress import print_line

SIDES = ("ours", "boosting", "ridge", "additive", "smoothing", "theta", "naive")
HOUR, DAY = datetime.timedelta(hours=1), datetime.timedelta(days=1)
MOST = 60
"""Test windows on which all sides are measured."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Series and forecasts to compare.

    Args:
        series: names of the series; (): all.
        sides: forecasts; see the docstring of this file.
        seeds: the first seed, and the one after the last.
        task: other settings of the task.
    """

    series: tuple[str, ...] = ()
    sides: tuple[str, ...] = SIDES
    seeds: tuple[int, int] = (0, 3)
    task: Forecasting.Config = field(default_factory=Forecasting.Config)


class Generated(NamedTuple):
    """Generated series `(T,)` with their times; the horizon is None where the default is taken."""

    values: list[np.ndarray]
    times: list[list[datetime.datetime]]
    horizon: int | None


def _times(drawn: Generator, size: int, step: datetime.timedelta) -> list[datetime.datetime]:
    start = datetime.datetime(2019, 1, 1) + int(drawn.integers(365)) * DAY
    return [start + t * step for t in range(size)]


def _part(times: list[datetime.datetime], of: str) -> np.ndarray:
    """A part of the times: hour and day of the year with their fractions."""
    read: dict[str, Callable[[datetime.datetime], float]] = {
        "hour": lambda t: t.hour + t.minute / 60,
        "weekday": lambda t: t.weekday(),
        "day": lambda t: t.day,
        "left": lambda t: _days_left(t),
        "year": lambda t: t.timetuple().tm_yday + t.hour / 24,
        "month": lambda t: t.month,
    }
    return np.array([read[of](each) for each in times])


def _days_left(t: datetime.datetime) -> int:
    """Days to the end of the month, 0 on its last."""
    return ((t.replace(day=28) + 4 * DAY).replace(day=1) - t.replace(hour=0, minute=0)).days - 1


def _walk(drawn: Generator, size: int, step: float) -> np.ndarray:
    return (step * drawn.normal(size=size)).cumsum()


def _reverting(drawn: Generator, size: int, keeps: float, step: float) -> np.ndarray:
    noise, found = drawn.normal(size=size) * step, np.zeros(size)
    for t in range(1, size):
        found[t] = keeps * found[t - 1] + noise[t]
    return found


def _peaks(drawn: Generator, hour: np.ndarray) -> np.ndarray:
    """A daily course with two peaks."""
    found = np.zeros_like(hour)
    for at in (8 + drawn.normal(), 18.5 + drawn.normal()):
        away = (hour - at + 12) % 24 - 12
        found += drawn.uniform(5, 10) * np.exp(-0.5 * (away / drawn.uniform(1.5, 3)) ** 2)
    return found


def _year(drawn: Generator, day: np.ndarray, height: float) -> np.ndarray:
    turn = 2 * np.pi * day / 365.25
    shifts = 2 * np.pi * drawn.random(2)
    return height * (np.sin(turn + shifts[0]) + 0.4 * np.sin(2 * turn + shifts[1]))


def _load(drawn: Generator, times: list[datetime.datetime], keeps: float = 0.9) -> np.ndarray:
    """A load that is lower at weekends, with another daily course."""
    hour, weekday, size = _part(times, "hour"), _part(times, "weekday"), len(times)
    work, saturday, sunday = (_peaks(drawn, hour) * share for share in (1, 0.5, 0.3))
    course = np.select([weekday == 5, weekday == 6], [saturday - 2, sunday - 4], work)
    return 40 + course + _reverting(drawn, size, keeps, 0.6) + 0.5 * drawn.normal(size=size)


def hours(drawn: Generator) -> Generated:
    """Hours of ten weeks, with another daily course at weekends."""
    times = _times(drawn, 24 * 70, HOUR)
    return Generated([_load(drawn, times)], [times], None)


def weekdays(drawn: Generator) -> Generated:
    """Hours of twelve weeks, with a daily course for each weekday."""
    times = _times(drawn, 24 * 84, HOUR)
    hour, weekday = _part(times, "hour"), _part(times, "weekday")
    course = np.choose(weekday.astype(int), [_peaks(drawn, hour) + 2 * drawn.normal() for _ in range(7)])
    return Generated(
        [30 + course + _reverting(drawn, len(hour), 0.9, 0.6) + 0.5 * drawn.normal(size=len(hour))], [times], None
    )


def fortnight(drawn: Generator) -> Generated:
    """Hours of two weeks."""
    times = _times(drawn, 24 * 14, HOUR)
    return Generated([_load(drawn, times)], [times], None)


def quarters(drawn: Generator) -> Generated:
    """Quarters of an hour of four weeks."""
    times = _times(drawn, 96 * 28, HOUR / 4)
    return Generated([_load(drawn, times, 0.97)], [times], None)


def _days(drawn: Generator, size: int, horizon: int) -> Generated:
    times = _times(drawn, size, DAY)
    week = 3 * drawn.normal(size=7)[_part(times, "weekday").astype(int)]
    rest = _reverting(drawn, size, 0.8, 1) + drawn.normal(size=size)
    return Generated([60 + week + _year(drawn, _part(times, "year"), 8) + rest], [times], horizon)


def year_14(drawn: Generator) -> Generated:
    """Days of three years, 14 ahead."""
    return _days(drawn, 1096, 14)


def year_60(drawn: Generator) -> Generated:
    """Days of three years, 60 ahead."""
    return _days(drawn, 1096, 60)


def sundays(drawn: Generator) -> Generated:
    """Daily sales of two years, none on Sundays."""
    times = _times(drawn, 730, DAY)
    weekday = _part(times, "weekday").astype(int)
    week = np.append(drawn.uniform(0.7, 1.6, 6), 0)[weekday]
    level = np.exp(4 + _year(drawn, _part(times, "year"), 0.2) + _walk(drawn, 730, 0.01))
    return Generated([drawn.poisson(level * week).astype(float)], [times], 14)


def month_ends(drawn: Generator) -> Generated:
    """Daily payments of two years, with peaks on the first and the last day of a month."""
    times = _times(drawn, 730, DAY)
    week = 2 * drawn.normal(size=7)[_part(times, "weekday").astype(int)]
    first, last = _part(times, "day") == 1, _part(times, "left") == 0
    y = 40 + week + 15 * first + 10 * last + _reverting(drawn, 730, 0.8, 1) + drawn.normal(size=730)
    return Generated([y], [times], 14)


def business(drawn: Generator) -> Generated:
    """Business days of three years, with a yearly season."""
    times = [each for each in _times(drawn, 1096, DAY) if each.weekday() < 5]
    week = 3 * drawn.normal(size=5)[_part(times, "weekday").astype(int)]
    rest = _reverting(drawn, len(times), 0.9, 1) + drawn.normal(size=len(times))
    return Generated([60 + week + _year(drawn, _part(times, "year"), 6) + rest], [times], None)


def weeks(drawn: Generator) -> Generated:
    """Weeks of five years."""
    times = _times(drawn, 260, 7 * DAY)
    rest = _reverting(drawn, 260, 0.7, 1) + drawn.normal(size=260) + _walk(drawn, 260, 0.2)
    return Generated([60 + _year(drawn, _part(times, "year"), 8) + rest], [times], 13)


def months(drawn: Generator) -> Generated:
    """Months of nine years, with a season that grows with the level."""
    times = [datetime.datetime(2012 + t // 12, t % 12 + 1, 1) for t in range(108)]
    season = np.exp(0.25 * drawn.normal(size=12))[_part(times, "month").astype(int) - 1]
    level = np.exp(4 + 0.008 * np.arange(108) + _walk(drawn, 108, 0.02))
    return Generated([level * season * np.exp(0.03 * drawn.normal(size=108))], [times], None)


def short(drawn: Generator) -> Generated:
    """Eight shops of 90 days with a common week."""
    week, times, values = np.exp(0.4 * drawn.normal(size=7)), _times(drawn, 90, DAY), list[np.ndarray]()
    weekday = _part(times, "weekday").astype(int)
    for _ in range(8):
        level = np.exp(4 + drawn.normal() + _reverting(drawn, 90, 0.8, 0.08))
        values.append(level * week[weekday] * np.exp(0.1 * drawn.normal(size=90)))
    return Generated(values, [times] * 8, None)


def shifts(drawn: Generator) -> Generated:
    """Days of 500 days, whose level shifts."""
    times = _times(drawn, 500, DAY)
    jumps = np.where(drawn.random(500) < 0.015, 8 * drawn.normal(size=500), 0).cumsum()
    week = 3 * drawn.normal(size=7)[_part(times, "weekday").astype(int)]
    return Generated([50 + jumps + week + drawn.normal(size=500)], [times], 14)


def intermittent(drawn: Generator) -> Generated:
    """Intermittent demand of two years, more likely on some weekdays."""
    times = _times(drawn, 730, DAY)
    chance = drawn.uniform(0.05, 0.5, 7)[_part(times, "weekday").astype(int)]
    return Generated([(drawn.random(730) < chance) * (1.0 + drawn.poisson(3, 730))], [times], 14)


def starts(drawn: Generator) -> Generated:
    """Five series of days that start on different dates, with a common week and year."""
    week, shift = 3 * drawn.normal(size=7), drawn.random() * 2 * np.pi
    values, stamps = list[np.ndarray](), list[list[datetime.datetime]]()
    for size in (1000, 900, 800, 700, 600):
        times = [datetime.datetime(2019, 3, 1) + (1000 - size + t) * DAY for t in range(size)]
        year = 8 * np.sin(2 * np.pi * _part(times, "year") / 365.25 + shift)
        own = week[_part(times, "weekday").astype(int)] + year
        rest = _reverting(drawn, size, 0.8, 1) + drawn.normal(size=size)
        values.append(60 + 5 * drawn.normal() + own + rest)
        stamps.append(times)
    return Generated(values, stamps, 28)


def walk(drawn: Generator) -> Generated:
    """A random walk of 400 days: no calendar."""
    return Generated([100 + _walk(drawn, 400, 1)], [_times(drawn, 400, DAY)], 14)


def sensor(drawn: Generator) -> Generated:
    """An hourly sensor that reverts to its mean: no calendar."""
    return Generated([20 + _reverting(drawn, 1200, 0.95, 1)], [_times(drawn, 1200, HOUR)], None)


SERIES: dict[str, Callable[[Generator], Generated]] = {
    each.__name__: each
    for each in (
        *(hours, weekdays, fortnight, quarters, year_14, year_60, sundays, month_ends, business, weeks, months),
        *(short, shifts, intermittent, starts, walk, sensor),
    )
}


class Problem(NamedTuple):
    """What a side is given.

    Attributes:
        values, times: the series on their clock, `(T,)` each, without gaps, and the time of every sample.
        train: the number of training samples of each series.
        places: series and index of the first predicted sample of the test windows, `(n, 2)`.
        horizon, season: H and m.
    """

    values: list[np.ndarray]
    times: list[list[datetime.datetime]]
    train: list[int]
    places: np.ndarray
    horizon: int
    season: int


def _read(task: Forecasting, series: Generated, places: np.ndarray) -> Problem:
    history, clock = task._history, task.facts.clock
    times = list[list[datetime.datetime]]()
    for each in history.series:
        stamps = [clock.after(each.start, t, each.day) for t in range(len(each))]
        times.append([datetime.datetime.fromtimestamp(at, datetime.UTC).replace(tzinfo=None) for at in stamps])
    values = [each[:, 0].numpy() for each in history.values]
    return Problem(values, times, [end for end, _ in history.ends], places, task.facts.horizon, task.facts.season)


def _calendar(times: list[datetime.datetime], is_linear: bool) -> np.ndarray:
    """Calendar columns `(T, K)`: plain numbers for trees, or indicators and harmonics."""
    parts = {name: _part(times, name) for name in ("hour", "weekday", "day", "left", "year")}
    if not is_linear:
        return np.stack(list(parts.values()), 1)
    found = [parts["day"] == 1, parts["left"] == 0, *(parts["weekday"] == k for k in range(6))]
    for name, length, most in (("hour", 24, 4), ("year", 365.25, 3)):
        turns = [2 * np.pi * k * parts[name] / length for k in range(1, most + 1)]
        found += [of(turn) for turn in turns for of in (np.sin, np.cos)]
    free = parts["weekday"] >= 5
    found += [free * of(2 * np.pi * k * parts["hour"] / 24) for k in (1, 2, 3, 4) for of in (np.sin, np.cos)]
    columns = np.stack(found, 1).astype(float)
    return columns[:, columns.std(0) > 1e-9]


def _on_lags(problem: Problem, is_linear: bool) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    every = [each for times in problem.times for each in times]
    sizes = np.cumsum([len(each) for each in problem.times])[:-1]
    calendar = np.split(_calendar(every, is_linear), sizes)
    horizon = problem.horizon
    lags = min(168 if problem.season == 24 else 3 * max(problem.season, min(horizon, 14)), min(problem.train) // 3)
    size = [each[:end].mean() or 1.0 for each, end in zip(problem.values, problem.train, strict=True)]

    def features(i: int, t: int, h: int) -> np.ndarray:
        return np.r_[problem.values[i][t - lags : t] / size[i], calendar[i][t + h]]

    places = [(i, t) for i, end in enumerate(problem.train) for t in range(lags, end - horizon + 1)]
    places = [places[k] for k in np.linspace(0, len(places) - 1, min(1500, len(places))).astype(int)]
    found = np.empty((len(problem.places), horizon))
    for h in range(horizon):
        x = np.stack([features(i, t, h) for i, t in places])
        y = np.array([problem.values[i][t + h] / size[i] for i, t in places])
        asked = np.stack([features(i, t, h) for i, t in problem.places])
        if is_linear:
            scaler = StandardScaler().fit(x)
            predicted = RidgeCV(np.logspace(-1, 5, 13)).fit(scaler.transform(x), y).predict(scaler.transform(asked))
        else:
            predicted = HistGradientBoostingRegressor(max_iter=60, random_state=0).fit(x, y).predict(asked)
        found[:, h] = predicted * np.array([size[i] for i, _ in problem.places])
    return found


def _additive(problem: Problem) -> np.ndarray:
    found = list[np.ndarray]()
    for i, at in problem.places:
        times, y = problem.times[i][: at + problem.horizon], problem.values[i][:at]
        t = np.arange(len(times)) / at
        hinges = [np.maximum(t - knot, 0) for knot in np.linspace(0, 0.8, 25)[1:]]
        own = _calendar(times, True)
        x = np.stack([np.ones_like(t), t, *hinges, *own.T], 1)
        penalty = np.r_[0, 0, np.full(len(hinges), 20.0), np.full(own.shape[1], 0.1)]
        beta = np.linalg.lstsq(np.r_[x[:at], np.diag(penalty**0.5)], np.r_[y, np.zeros(len(penalty))], rcond=None)[0]
        found.append(x[at:] @ beta)
    return np.stack(found)


class _Smoothing(NamedTuple):
    """Levels, slopes and seasons of every candidate after each sample, and its mean squared one-step error."""

    level: np.ndarray
    slope: np.ndarray
    season: np.ndarray
    error: np.ndarray


def _smoothed(y: np.ndarray, train: int, m: int, kind: str, grid: np.ndarray) -> _Smoothing:
    alpha, beta, gamma, phi = grid.T
    first = y[: m if kind != "none" else 1]
    level, slope = np.full(len(grid), first.mean()), np.zeros(len(grid))
    start = {"none": np.zeros(1), "added": first - first.mean(), "times": first / max(first.mean(), 1e-9)}[kind]
    season = np.tile(start[:, None], (1, len(grid)))
    levels, slopes, seasons, errors = [], [], [], np.zeros(len(grid))
    for t, value in enumerate(y):
        s, ahead = season[t % len(season)].copy(), level + phi * slope
        if kind == "times":
            predicted, own = ahead * s, value / np.maximum(s, 1e-3)
        else:
            predicted, own = ahead + s, value - s
        if len(first) <= t < train:
            errors += (value - predicted) ** 2
        before = level
        level = alpha * own + (1 - alpha) * ahead
        slope = beta * (level - before) + (1 - beta) * phi * slope
        if kind != "none":
            new = value / np.maximum(level, 1e-3) if kind == "times" else value - level
            season[t % m] = gamma * new + (1 - gamma) * s
        levels.append(level), slopes.append(slope), seasons.append(season.copy())
    return _Smoothing(np.array(levels), np.array(slopes), np.array(seasons), errors / max(train - len(first), 1))


def _smoothing(problem: Problem) -> np.ndarray:
    grid = np.array(list(itertools.product((0.02, 0.1, 0.3, 0.6, 0.95), (0, 0.01, 0.1), (0.02, 0.1, 0.3), (0.9, 1))))
    found, m, horizon = np.empty((len(problem.places), problem.horizon)), problem.season, problem.horizon
    for i, y in enumerate(problem.values):
        train, best = problem.train[i], None
        for kind in ("none", "added", "times"):
            if (kind != "none" and (m == 1 or train < 2 * m)) or (kind == "times" and y.min() <= 0):
                continue
            one = _smoothed(y, train, m, kind, grid)
            k = int(one.error.argmin())
            if best is None or one.error[k] < best[0]:
                phi = grid[k, 3]
                best = (one.error[k], kind, phi, one.level[:, k], one.slope[:, k], one.season[..., k].copy())
        assert best is not None
        _, kind, phi, level, slope, season = best
        for row in (problem.places[:, 0] == i).nonzero()[0]:
            at = problem.places[row, 1]
            h = np.arange(1, horizon + 1)
            line = level[at - 1] + slope[at - 1] * np.cumsum(phi**h)
            s = season[at - 1][(at + h - 1) % season.shape[1]]
            found[row] = line * s if kind == "times" else line + s
    return found


def _theta(problem: Problem) -> np.ndarray:
    found, m, h = list[np.ndarray](), problem.season, np.arange(1, problem.horizon + 1)
    for i, at in problem.places:
        y = problem.values[i][:at]
        shape, is_factor = np.zeros(max(m, 1)), bool(y.min() > 0)
        if m > 1 and at >= 2 * m:
            window = np.convolve(y, np.r_[0.5, np.ones(m - 1), 0.5] / m if m % 2 == 0 else np.ones(m) / m, "valid")
            edge = (at - len(window)) // 2
            rest = y[edge : edge + len(window)] / window if is_factor else y[edge : edge + len(window)] - window
            phases = (np.arange(len(window)) + edge) % m
            shape = np.array([rest[phases == k].mean() if (phases == k).any() else float(is_factor) for k in range(m)])
            shape = shape / shape.mean() if is_factor else shape - shape.mean()
        elif is_factor:
            shape = shape + 1
        s = shape[np.arange(at) % len(shape)]
        own = y / s if is_factor else y - s
        least, alpha, level = math.inf, 0.5, own[-1]
        for a in np.linspace(0.05, 0.95, 10):
            now, error = own[0], 0.0
            for value in own[-400:]:
                error += (value - now) ** 2
                now += a * (value - now)
            if error < least:
                least, alpha, level = error, a, now
        b = np.polyfit(np.arange(at), own, 1)[0] / 2
        line = level + b * (h - 1 + (1 - (1 - alpha) ** at) / alpha)
        ahead = shape[(at + h - 1) % len(shape)]
        found.append(line * ahead if is_factor else line + ahead)
    return np.stack(found)


def _naive(problem: Problem) -> np.ndarray:
    found = list[np.ndarray]()
    for i, at in problem.places:
        last = problem.values[i][max(0, at - problem.season) : at]
        found.append(np.tile(last, -(-problem.horizon // len(last)))[: problem.horizon])
    return np.stack(found)


PEERS: dict[str, Callable[[Problem], np.ndarray]] = {
    "boosting": lambda problem: _on_lags(problem, False),
    "ridge": lambda problem: _on_lags(problem, True),
    "additive": _additive,
    "smoothing": _smoothing,
    "theta": _theta,
    "naive": _naive,
}


def write(series: Generated, folder: Path) -> Path:
    """Writes the series to a file of the task."""
    lines = ["unique_id,ds,y"]
    for i, (values, times) in enumerate(zip(series.values, series.times, strict=True)):
        lines += [f"s{i},{at.isoformat()},{y!r}" for at, y in zip(times, values.tolist(), strict=True)]
    path = folder / "series.csv"
    path.write_text("\n".join(lines))
    return path


def scores(series: Generated, folder: Path, config: Config) -> dict[str, tuple[float, float]]:
    """MASE and seconds of each side."""
    start, found = time.process_time(), dict[str, tuple[float, float]]()
    seed_everything(0)
    given = dataclasses.replace(config.task, data=str(write(series, folder)), horizon=series.horizon)
    recommended = given.recommended("small").config if "ours" in config.sides else given
    assert isinstance(recommended, Forecasting.Config)
    task = recommended.build()
    test = task.held_out("test")
    some = torch.linspace(0, len(test) - 1, min(MOST, len(test))).round().long()
    batch = task.held_out_batch("test", some)
    if "ours" in config.sides:
        model = task.model()
        task.initialise(model, torch.device("cpu"))
        metrics = task.metrics()
        with torch.no_grad():
            task.score(model.eval(), batch, metrics)
        found["ours"] = float(metrics["mase"].compute()), time.process_time() - start
    problem = _read(task, series, test.places[some].numpy())
    answers, q = batch["answers"][..., 0].numpy(), batch["error_scale"][:, 0].numpy()
    for side in config.sides:
        if side != "ours":
            start = time.process_time()
            error = float((np.abs(PEERS[side](problem) - answers) / q).mean())
            found[side] = error, time.process_time() - start
    return found


def main(config: Config) -> None:
    """Prints a line for each kind of series: MASE of each side."""
    torch.set_num_threads(1)
    for name, make in SERIES.items():
        if config.series and name not in config.series:
            continue
        rows = list[dict[str, tuple[float, float]]]()
        for seed in range(*config.seeds):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(scores(make(np.random.default_rng(seed)), Path(folder), config))
        cells = list[str]()
        for side in config.sides:
            errors = np.log([row[side][0] for row in rows])
            seconds = np.mean([row[side][1] for row in rows])
            cells.append(f"{side} {math.exp(errors.mean()):.3f} ({seconds:.0f} s)")
        print_line(f"{name:<13} {'   '.join(cells)}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
