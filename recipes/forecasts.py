"""Compare forecasts of real series with the repeated last season, exponential smoothing and ARIMA.

Command:   pip install statsmodels
           python recipes/forecasts.py
           python recipes/forecasts.py --validate   (for choosing settings; the last fifth stays unread)
Modality:  series
Hardware:  one core of an AMD EPYC, shared with other work; float64 in closed form; statsmodels 0.15.0
Time:      minutes, most of them for ARIMA
Score:     see docs/forecasting.md
Data:      of statsmodels: sunspots (years), co2 (weeks and months), elnino (months), macrodata (quarters), nile (years)

Sides    default     `fredholm train forecast` at its defaults
         linear      the same without the kernel on the last samples
         training    the same with windows in the scale of the training part
         filters     the same with the features of a filter bank at its own defaults
         naive       the last season repeated
         ets         exponential smoothing in state space form: additive, with a damped trend, a season up to 24 samples
         arima       ARIMA(2, 1, 1), with a season up to 24 samples ARIMA(2, 1, 1)(0, 1, 1)

All predict the same windows of the last fifth of each series. The statistical models are fitted to the training part,
and see every sample before a window without being refitted.
"""

import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from fredholm.models import FilterBank
from fredholm.tasks import Forecasting
from fredholm.training import seed_everything
from fredholm.training.progress import print_line
from fredholm.training.scoring import score_split

SIDES = ("default", "linear", "training", "filters", "naive", "ets", "arima")
MOST_SEASON = 24


@dataclass(frozen=True, kw_only=True)
class Config:
    """Series and forecasts to compare.

    Args:
        series: names of the series; (): all.
        sides: forecasts; see the docstring of this file.
        validate: first cuts off the last fifth of each series.
    """

    series: tuple[str, ...] = ()
    sides: tuple[str, ...] = SIDES
    validate: bool = False


def tables() -> dict[str, list[str]]:
    """Every data set as lines of CSV."""
    from statsmodels import datasets  # pyright: ignore[reportMissingImports]  (a peer that is installed separately)

    def loaded(name: str) -> Any:
        return getattr(datasets, name).load_pandas().data

    co2, elnino, macro = loaded("co2"), loaded("elnino"), loaded("macrodata")
    weeks = [f"{day.date()},{value}" for day, value in co2["co2"].items()]
    months = [f"{day.date()},{value}" for day, value in co2["co2"].resample("MS").mean().items()]
    heat = [f"{int(row.iloc[0])}-{m:02}-01,{row.iloc[m]}" for _, row in elnino.iterrows() for m in range(1, 13)]
    quarters = [
        f"{int(row.year)}-{3 * int(row.quarter) - 2:02}-01,"
        f"{row.realgdp},{row.realcons},{row.unemp},{row.infl},{row.cpi}"
        for _, row in macro.iterrows()
    ]
    spots = [f"{int(row.YEAR)},{row.SUNACTIVITY}" for _, row in loaded("sunspots").iterrows()]
    flow = [f"{int(row.year)},{row.volume}" for _, row in loaded("nile").iterrows()]
    return {
        "co2, weeks": ["time,co2", *weeks],
        "co2, months": ["time,co2", *months],
        "elnino": ["time,temperature", *heat],
        "macrodata": ["time,realgdp,realcons,unemp,infl,cpi", *quarters],
        "nile": ["time,volume", *flow],
        "sunspots": ["time,sunspots", *spots],
    }


def ours(data: Path, **settings: Any) -> tuple[Forecasting, dict[str, float]]:
    """A fitted task with the recommended context, and its test metrics."""
    seed_everything(0)
    config = Forecasting.Config(data=str(data), **settings).recommended("small").config
    assert isinstance(config, Forecasting.Config)
    task = config.build()
    net = task.model()
    task.initialise(net, torch.device("cpu"))
    return task, score_split(task, "test", net.eval(), batch_size=64, device=torch.device("cpu"), dtype=torch.float32)


def of_statsmodels(side: str, task: Forecasting) -> float:
    """MASE of a model of statsmodels on the test windows, with one model per channel."""
    windows, errors = task.held_out("test"), []
    horizon = task.facts.horizon
    scales = task.held_out_batch("test", torch.tensor([0]))["error_scale"][0, 0]
    first = int(windows.places[:, 1].min())
    for c in range(len(task.facts.predicted)):
        y = windows.truth[0][:, c].numpy()
        seen = windows.values[0][:, task.facts.channels.index(task.facts.predicted[c])].numpy()  # without gaps
        fitted = _fitted(side, seen[:first], task.facts.season)
        at = first
        for place in windows.places[:, 1].tolist():
            if place > at:
                fitted, at = fitted.append(seen[at:place], refit=False), place
            predicted = np.asarray(fitted.forecast(horizon))
            errors.append(np.abs(predicted - y[place : place + horizon]).mean() / float(scales[c]))
    return float(np.mean(errors))


def _fitted(side: str, y: np.ndarray, season: int) -> Any:
    from statsmodels.tsa.statespace.exponential_smoothing import (  # pyright: ignore[reportMissingImports]  (a peer)
        ExponentialSmoothing,
    )
    from statsmodels.tsa.statespace.sarimax import SARIMAX  # pyright: ignore[reportMissingImports]  (a peer)

    has_season = 1 < season <= MOST_SEASON
    if side == "ets":
        model = ExponentialSmoothing(y, trend=True, damped_trend=True, seasonal=season if has_season else None)
    else:
        model = SARIMAX(y, order=(2, 1, 1), seasonal_order=(0, 1, 1, season) if has_season else (0, 0, 0, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of optimisers that stop early
        return model.fit(disp=False, maxiter=100)


def main(config: Config) -> None:
    """Prints a line per series and side: MASE on the test windows, and seconds."""
    torch.set_num_threads(1)
    models = {
        "linear": FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=1024),
        "filters": FilterBank.Config(num_lags=1024),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in tables().items():
            if config.series and name not in config.series:
                continue
            data = Path(folder) / f"{name}.csv"
            data.write_text("\n".join(lines[: 1 + int(0.8 * (len(lines) - 1))] if config.validate else lines))
            task, metrics = ours(data)
            facts = task.facts
            shape = f"season {facts.season}, horizon {facts.horizon}, context {facts.context}"
            print_line(f"{name}: {shape}, {task.num_train} and {task.num_held_out('test')} windows")
            for side in config.sides:
                start = time.process_time()
                if side in ("default", "naive"):
                    mase = metrics["mase" if side == "default" else "seasonal_naive_mase"]
                elif side in models:
                    mase = ours(data, model=models[side])[1]["mase"]
                elif side == "training":
                    mase = ours(data, scale="training")[1]["mase"]
                else:
                    mase = of_statsmodels(side, task)
                print_line(f"  {side:<8} {mase:.3f}   {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
