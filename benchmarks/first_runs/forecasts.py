"""Forecasts of daily sales of shops and of an hourly load."""

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV

from benchmarks.first_runs.first_run import FirstRun, Peer
from fredholm.tasks.splits.splits import HeldOut

DAYS, SHOPS, HOURS = 730, 8, 2400


def sales(folder: Path, seed: int) -> Path:
    """Eight shops with a weekly pattern each, a trend, a yearly cycle, and errors that last for some days."""
    draw, day = np.random.default_rng(seed), np.arange(DAYS)
    rows = ["unique_id,ds,y"]
    for shop in range(SHOPS):
        week = draw.gamma(4, 0.25, 7)
        level = draw.uniform(50, 500) * np.exp(draw.normal(0, 3e-4) * day)
        year = 1 + 0.2 * np.sin(2 * np.pi * (day / 365.25 + draw.uniform()))
        lasting = np.zeros(DAYS)
        for t in range(1, DAYS):
            lasting[t] = 0.8 * lasting[t - 1] + draw.normal(0, 0.06)
        values = draw.poisson(level * week[day % 7] * year * np.exp(lasting))
        start = datetime.date(2021, 1, 1)
        rows += [f"shop {shop},{start + datetime.timedelta(t)},{value}" for t, value in enumerate(values.tolist())]
    path = folder / "sales.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def load(folder: Path, seed: int) -> Path:
    """A load with two peaks a day, lower at weekends, and the temperature that drives a part of it."""
    draw, hour = np.random.default_rng(seed), np.arange(HOURS)
    weather = np.zeros(HOURS)
    for t in range(1, HOURS):
        weather[t] = 0.97 * weather[t - 1] + draw.normal(0, 0.5)
    temperature = 12 + 6 * np.sin(2 * np.pi * (hour - 9) / 24) + weather
    peaks = sum(size * np.exp(-0.5 * ((hour % 24 - at) / wide) ** 2) for at, size, wide in ((8, 30, 2), (19, 45, 3)))
    is_weekend = (hour // 24) % 7 >= 5
    values = 100 + peaks * np.where(is_weekend, 0.6, 1) + 1.5 * np.maximum(18 - temperature, 0)
    values += draw.normal(0, 3, HOURS)
    start = datetime.datetime(2023, 1, 2)
    rows = ["time,load,temperature"]
    rows += [
        f"{start + datetime.timedelta(hours=t)},{value:.2f},{degrees:.2f}"
        for t, (value, degrees) in enumerate(zip(values.tolist(), temperature.tolist(), strict=True))
    ]
    path = folder / "load.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def last_season(task: Any, split: HeldOut) -> float:
    """MASE of repeating the last season."""
    batch = task.held_out_batch(split, torch.arange(task.num_held_out(split)))
    return float(((batch["naive"] - batch["answers"]).abs() / batch["error_scale"]).mean())


def on_lags(build: Callable[[], Any]) -> Peer:
    """MASE of a regression for each step, on the values of a window in its scale, relative to the last value."""

    def peer(task: Any, split: HeldOut) -> float:
        task = dataclasses.replace(task.config, context=task.facts.context, base=0.0).build()
        learnt = task.train_batch(torch.arange(task.num_train), torch.Generator())
        x, y = learnt["values"].flatten(1).numpy(), learnt["targets"].numpy()
        target = task.facts.target
        y = y * np.array(target.deviation) + np.array(target.mean)
        batch = task.held_out_batch(split, torch.arange(task.num_held_out(split)))
        windows = batch["values"].flatten(1).numpy()
        predicted = np.stack([build().fit(x, each).predict(windows) for each in y.T], axis=1)
        numbers = torch.from_numpy(predicted).reshape(batch["answers"].shape) * batch["scale"] + batch["base"]
        return float(((numbers - batch["answers"]).abs() / batch["error_scale"]).mean())

    return peer


PEERS: dict[str, Peer] = {
    "last season again": last_season,
    "gradient boosting on lags": on_lags(lambda: HistGradientBoostingRegressor(max_iter=60, random_state=0)),
    "ridge on lags": on_lags(lambda: RidgeCV(np.logspace(-3, 4, 15))),
}
FIRST_RUNS = (
    FirstRun(name="sales", task="forecast", data="sales of eight shops by the day", make=sales, peers=PEERS),
    FirstRun(name="load", task="forecast", data="a load by the hour, and its temperature", make=load, peers=PEERS),
)
