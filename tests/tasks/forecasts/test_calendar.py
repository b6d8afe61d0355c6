"""The calendar in forecasts: its coordinates against datetime, and its effect from a file to a prediction."""

import dataclasses
import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fredholm.estimators import SeriesForecaster
from fredholm.models import CKCNN
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import Forecasting
from fredholm.tasks.forecasts import Clock
from fredholm.tasks.forecasts.calendar import HOUR_HARMONICS, WEEKDAY_HARMONICS, YEAR, YEAR_HARMONICS, Calendar
from tests.refusals import refused

CPU = torch.device("cpu")
DAY = datetime.timedelta(days=1)
EVERY = Calendar.candidates(Clock(step=3600.0, is_dated=True), 10_000)
SMALL = CKCNN.Config(embed_dim=4, depth=1, kernel_width=4, dropout=0.0)


def is_last_working_day(day: datetime.date) -> bool:
    after = [day + k * DAY for k in range(1, 4)]
    return day.weekday() < 5 and next(each for each in after if each.weekday() < 5).month != day.month


def is_first_working_day(day: datetime.date) -> bool:
    before = [day - k * DAY for k in range(1, 4)]
    return day.weekday() < 5 and next(each for each in before if each.weekday() < 5).month != day.month


def expected(time: datetime.datetime) -> list[float]:
    seconds, hour, day = time.timestamp(), time.hour + time.minute / 60, time.date()

    def turns(count: int, turn: float) -> list[float]:
        return [of(2 * math.pi * k * turn) for k in range(1, count + 1) for of in (math.sin, math.cos)]

    found = [float(day.weekday() == k) for k in range(6)] + turns(HOUR_HARMONICS, hour / 24)
    for which in (range(5, 7), range(6)):
        found += [(day.weekday() == k) * each for k in which for each in turns(WEEKDAY_HARMONICS, hour / 24)]
    left = [(day + k * DAY).month != day.month for k in (1, 2)]
    found += [day.day == 1, day.day == 2, day.day == 15, left[1] and not left[0], left[0]]
    found += [is_first_working_day(day), is_last_working_day(day)]
    return found + turns(YEAR_HARMONICS, seconds / YEAR)


def test_coordinates_are_those_of_dates() -> None:
    drawn = np.random.default_rng(0).integers(-200_000_000, 6_000_000_000, 60)
    days = [
        datetime.datetime(*day, tzinfo=datetime.UTC).timestamp()
        for day in ((2000, 2, 29), (2100, 3, 1), (1969, 12, 31))
    ]
    seconds = np.append(drawn // 60 * 60.0, days)
    times = [datetime.datetime.fromtimestamp(float(each), datetime.UTC) for each in seconds]
    found = EVERY.of(torch.from_numpy(seconds))
    torch.testing.assert_close(found, torch.tensor([expected(time) for time in times]).double(), rtol=0, atol=1e-5)
    some = Calendar(groups=("weekdays", "year"))
    assert len(some) == 6 + 2 * YEAR_HARMONICS
    torch.testing.assert_close(some.of(torch.from_numpy(seconds)), found[:, EVERY.columns_of(some.groups)])
    assert Calendar(groups=()).of(torch.zeros(3, 2)).shape == (3, 2, 0)


@pytest.mark.parametrize(
    ("step", "samples", "groups"),
    [
        (60.0, 3000, ()),
        (3600.0, 400, ("weekdays", "hours", "hours of weekends")),
        (86400.0, 100, ("weekdays", "ends of months")),
        (7 * 86400.0, 60, ("year",)),
        (30 * 86400.0, 600, ()),
    ],
)
def test_groups_suit_the_clock(step: float, samples: int, groups: tuple[str, ...]) -> None:
    assert Calendar.candidates(Clock(step=step, is_dated=True), samples).groups == groups
    assert Calendar.candidates(Clock(step=step), samples).groups == ()


def test_working_days_span_weekends() -> None:
    clock = Clock(step=86400.0, is_dated=True, weekdays=(0, 1, 2, 3, 4))
    assert "year" in Calendar.candidates(clock, 261).groups
    assert "year" not in Calendar.candidates(clock, 260).groups


def payments(count: int = 230, seed: int = 0) -> tuple[list[datetime.date], np.ndarray]:
    """Daily payments with peaks on the last day of a month."""
    days = [datetime.date(2023, 1, 10) + t * DAY for t in range(count)]
    y = 20 + 0.3 * np.random.default_rng(seed).normal(size=count)
    return days, y + 9 * np.array([(day + DAY).day == 1 for day in days])


def written(folder: Path) -> Path:
    path = folder / "payments.csv"
    path.write_text("\n".join(["time,y", *(f"{day},{y}" for day, y in zip(*payments(), strict=True))]))
    return path


def config(folder: Path, **settings: Any) -> Forecasting.Config:
    return Forecasting.Config(**{"data": str(written(folder)), "horizon": 14, "context": 14, "base": 1.0} | settings)


def test_the_end_of_a_month_is_predicted(tmp_path: Path) -> None:
    given = config(tmp_path)
    built = given.build()
    assert built.facts.groups == ("ends of months",)
    assert given.recommended("small").notes == ("read from the dates: ends of months (--task.calendar none: nothing)",)
    model = built.model()
    built.initialise(model, CPU)
    rows = built.predict(model.eval(), [Path(built.config.data)], CPU)  # from 2023-08-28
    found = {str(row["time"]): float(row["y"]) for row in rows}
    assert found.pop("2023-08-31") == pytest.approx(29, abs=1)
    assert list(found.values()) == pytest.approx([20] * 13, abs=1)
    with refused(ValueError, "calendar is none; the run reads ends of months"):
        dataclasses.replace(given, calendar="none").build(built.facts)
    facts = from_json(json.loads(json.dumps(to_json(built.facts))), Forecasting.Facts, Forecasting.parts)
    assert facts == built.facts
    form = built.tensor_form(model)
    assert [slot.name for slot in form.inputs] == ["values", "time"]
    y = torch.from_numpy(payments()[1][-built.facts.num_read :])[None, :, None]
    last = datetime.datetime(2023, 8, 27, tzinfo=datetime.UTC).timestamp()
    answers = form.call(model, y, torch.tensor([last], dtype=torch.float64))
    assert answers[0, :, 0].tolist() == pytest.approx([float(row["y"]) for row in rows], rel=1e-5)
    for other in (config(tmp_path, calendar="none"), dataclasses.replace(given, model=SMALL, base=0.0)):
        task = other.build()
        assert len(task.facts.groups) == (other.calendar == "auto")
        batch = task.train_batch(torch.tensor([0]), torch.Generator())
        # a network sees what the calendar adds, over the horizon too
        assert batch["values"].shape == ((1, 28, 2) if other.calendar == "auto" else (1, 14, 1))
    with refused(ValueError, "calendar is 'months'; expected auto or none"):
        config(tmp_path, calendar="months")


def test_the_last_working_day_of_a_month_is_predicted() -> None:
    index = pd.bdate_range("2023-01-10", "2023-11-15")
    days = [day.to_pydatetime() for day in index]
    ends = np.array([is_last_working_day(day.date()) for day in days])
    y = 20 + 0.3 * np.random.default_rng(0).normal(size=len(days)) + 9 * ends
    series = pd.Series(y, index=index, name="y")
    learner = SeriesForecaster(horizon=14, task={"context": 10, "base": 1.0}).fit(series)
    task = learner.trained_.task
    assert isinstance(task, Forecasting)
    assert task.facts.groups == ("ends of months",)
    for end in (len(days), len(days) - 20):
        found = learner.predict(series[:end])
        assert list(found.index) == list(pd.bdate_range(days[end - 1] + DAY, periods=14))
        expected = [29 if is_last_working_day(day.date()) else 20 for day in found.index]
        assert sum(expected) == 14 * 20 + 9
        assert found.tolist() == pytest.approx(expected, abs=1)
    form = task.tensor_form(learner.trained_.model)
    seen = torch.from_numpy(y[-task.facts.num_read :])[None, :, None]
    newest = torch.tensor([days[-1].replace(tzinfo=datetime.UTC).timestamp()], dtype=torch.float64)
    answers = form.call(learner.trained_.model, seen, newest)
    assert answers[0, :, 0].tolist() == pytest.approx(learner.predict().tolist(), rel=1e-5)


@pytest.mark.slow
def test_columns_of_windows_are_selected_in_a_form_that_onnxruntime_loads(tmp_path: Path) -> None:
    task = config(tmp_path, model=SMALL, base=0.0).build()
    form = task.tensor_form(task.model().eval())
    graph = torch.export.export(form.module(), form.example({"batch": 2})).graph
    indexed = [node for node in graph.nodes if node.target is torch.ops.aten.index.Tensor]
    assert len(indexed) == 2  # coordinates and levels; with the columns of windows onnxruntime 1.32 crashes


@pytest.mark.slow
def test_data_frames_are_predicted_by_their_dates() -> None:
    days, y = payments()
    series = pd.Series(y, index=pd.DatetimeIndex(days), name="y")
    fitted = SeriesForecaster(horizon=14, task={"context": 14, "base": 1.0}).fit(series)
    assert fitted.predict()["2023-08-31"] == pytest.approx(29, abs=1)
    assert fitted.predict(series[:-28])["2023-07-31"] == pytest.approx(29, abs=1)
    with refused(ValueError, "X has no times; the forecast reads ends of months from them: pass a data frame"):
        fitted.predict(y)
