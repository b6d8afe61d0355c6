"""Forecasts against literal loops over windows."""

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

from fredholm.encoders.series import SeriesBatch
from fredholm.estimators import SeriesForecaster
from fredholm.models import CKCNN, FilterBank, LagMachine
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import Forecasting, Task
from fredholm.tasks.forecasts import find_season, forecasting, open_long, reading
from fredholm.tasks.forecasts.errors import seasonal_naive
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

CPU = torch.device("cpu")
NONE = torch.Generator()
LINEAR = FilterBank.Config(num_thresholds=0, num_groups=0, num_lags=7)
SMALL = CKCNN.Config(embed_dim=4, depth=1, kernel_width=4, dropout=0.0)


def wave(t: int) -> float:
    return math.sin(t * math.pi / 3) + 0.2 * math.cos(0.7 * t)


def written(folder: Path, count: int = 60, names: tuple[str, ...] = ("a", "b")) -> Path:
    """Two series of two channels; sample t of the first channel is 100 i + t, of the second a sum of two waves."""
    rows = ["series,time,x,y"]
    for i, name in enumerate(names):
        rows += [f"{name},{2 * t + i},{100 * i + t},{wave(t) + i}" for t in range(count + 5 * i)]
    path = folder / "long.csv"
    path.write_text("\n".join(rows))
    return path


def task(folder: Path, **settings: Any) -> Forecasting:
    given = {"data": str(written(folder)), "horizon": 4, "context": 7, **settings}
    return Forecasting.Config(**given).build()


def fitted(built: Forecasting) -> torch.nn.Module:
    torch.manual_seed(0)
    model = built.model()
    built.initialise(model, CPU)
    return model.eval()


def test_the_default_horizon_fits_the_gaps_of_every_part(tmp_path: Path) -> None:
    path = tmp_path / "gaps.csv"
    path.write_text("\n".join(["time,y", *(f"{t},{wave(t)}" for t in range(100) if t < 80 or t % 4)]))
    built = Forecasting.Config(data=str(path), season=7).build()
    assert (built.facts.horizon, len(built.held_out("test"))) == (3, 5)


def test_splits_are_by_time_and_training_windows_reach_into_no_other_split(tmp_path: Path) -> None:
    built = task(tmp_path, model=SMALL, test_fraction=0.2, valid_fraction=0.1)
    parts = {"train": built.splits.train, "valid": built.held_out("valid"), "test": built.held_out("test")}
    ends = {0: (42, 48, 60), 1: (45, 52, 65)}  # ceil of a fifth, and of a tenth, of 60 and of 65 samples
    for number, part in enumerate(parts.values()):
        expected = []
        for i, end in ends.items():
            start = (0, *end)[number]
            expected += [[i, at] for at in range(max(start, 7), end[number] - 4 + 1)]
        assert part.places.tolist() == expected
    seen, found = parts["train"].seen(), parts["train"].wanted()
    assert seen[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found[0, :, 0].tolist() == [7, 8, 9, 10]
    assert float(found[parts["train"].places[:, 0] == 0].max()) == 41.0
    none = task(tmp_path, test_fraction=0.0)
    assert (none.num_held_out("test"), none.num_held_out("valid")) == (0, 0)
    few = task(tmp_path, num_windows=5).splits.train.places
    assert (len(few), few[0].tolist()) == (5, [0, 7])


@pytest.mark.parametrize("scale", ["window", "training"])
def test_batches_are_scaled_by_each_window(tmp_path: Path, scale: Any) -> None:
    built = task(tmp_path, scale=scale, channels=("y",))
    facts, windows = built.facts, built.splits.train
    assert (facts.channels, facts.predicted, facts.target.names[:2]) == (("x", "y"), ("y",), ("y + 1", "y + 2"))
    batch = built.train_batch(torch.tensor([3, 50]), NONE)
    for row, number in enumerate((3, 50)):
        seen, found = windows.seen()[number], windows.wanted()[number]
        s = list(facts.deviation)
        for c in range(2):
            if scale == "window":
                s[c] = max(float(seen[:, c].std(correction=0)), 0.05 * s[c])
            expected = [(float(v) - float(seen[-1, c])) / s[c] for v in seen[:, c]]
            assert batch["values"][row, :, c].tolist() == pytest.approx(expected, abs=1e-5)
        z = [(float(v) - float(seen[-1, 1])) / s[1] for v in found[:, 0]]
        standard = [(v - m) / d for v, m, d in zip(z, facts.target.mean, facts.target.deviation, strict=True)]
        assert batch["targets"][row].tolist() == pytest.approx(standard, abs=1e-5)


@pytest.mark.parametrize("season", [3, 6, 10])  # the horizon is 4, the context 7
def test_metrics_are_those_of_a_loop_over_test_windows(season: int, tmp_path: Path) -> None:
    built = task(tmp_path, season=season, base=0.0, quantiles=(0.1, 0.5, 0.9))
    model = fitted(built)
    found = score_split(built, "test", model, batch_size=7, device=CPU, dtype=torch.float32)
    errors: dict[str, list[float]] = {
        name: [] for name in ("mase", "naive", "absolute", "square", "inside", "quantile")
    }
    windows = built.held_out("test")
    batch = built.held_out_batch("test", torch.arange(len(windows)))
    with torch.no_grad():
        outputs = built._outputs(model, batch).view(len(windows), 4, 2, 3).sort(-1).values
    for n, (i, at) in enumerate(windows.places.tolist()):
        y, end = windows.truth[i], (48, 52)[i]
        for h in range(4):
            for c in range(2):
                q = float(np.mean([abs(float(y[t, c] - y[t - season, c])) for t in range(season, end)]))
                last, s = float(y[at - 1, c]), float(batch["scale"][n, 0, c])
                mean, deviation = (getattr(built.facts.target, moment)[2 * h + c] for moment in ("mean", "deviation"))
                levels = [(float(z) * deviation + mean) * s + last for z in outputs[n, h, c]]
                true, naive = float(y[at + h, c]), float(y[at + h - season * (h // season + 1), c])
                errors["mase"].append(abs(true - levels[1]) / q)
                errors["naive"].append(abs(true - naive) / q)
                errors["absolute"].append(abs(true - levels[1]))
                errors["square"].append((true - levels[1]) ** 2)
                errors["inside"].append(levels[0] <= true <= levels[2])
                errors["quantile"] += [
                    max(t * (true - v), (t - 1) * (true - v)) / q for t, v in zip((0.1, 0.5, 0.9), levels, strict=True)
                ]
    assert found["mase"] == pytest.approx(np.mean(errors["mase"]), rel=1e-4, abs=1e-7)
    assert found["seasonal_naive_mase"] == pytest.approx(np.mean(errors["naive"]), rel=1e-5)
    assert found["mean_absolute_error"] == pytest.approx(np.mean(errors["absolute"]), rel=1e-4, abs=1e-7)
    assert found["root_mean_squared_error"] == pytest.approx(math.sqrt(np.mean(errors["square"])), rel=1e-4, abs=1e-7)
    assert found["quantile_loss"] == pytest.approx(np.mean(errors["quantile"]), rel=1e-4, abs=1e-7)
    assert "coverage" in found


def test_the_naive_forecast_repeats_all_samples_where_a_season_is_longer(tmp_path: Path) -> None:
    built = task(tmp_path, season=10, horizon=9, base=0.0)
    windows = built.splits.train.select(torch.tensor([0]))
    assert windows.places.tolist() == [[0, 7]]
    y = windows.values[0]
    found = seasonal_naive(windows, built.facts.columns, season=10)[0]
    torch.testing.assert_close(found, torch.cat([y[:7], y[:2]])[:, built.facts.columns])


def test_weekends_without_samples_are_skipped(tmp_path: Path) -> None:
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(280)]
    worked = [day for day in days if day.weekday() < 5]
    rows = [f"{day},{10 + day.weekday() + i / 50}" for i, day in enumerate(worked) if i != 40]
    (tmp_path / "work.csv").write_text("\n".join(["time,v", *rows]) + "\n")
    config = Forecasting.Config(data=str(tmp_path / "work.csv"), horizon=12)
    assert (
        "no sample is on a Saturday or a Sunday: such days are skipped, in forecasts too"
        in config.recommended("small").notes
    )
    built = config.build()
    assert (built.facts.season, built.facts.horizon) == (5, 12)
    found = built.predict(fitted(built), [tmp_path / "work.csv"], CPU)
    first = worked[-1] + datetime.timedelta(days=3)  # the last sample is of a Friday
    after = [
        first + datetime.timedelta(days=i) for i in range(16) if (first + datetime.timedelta(days=i)).weekday() < 5
    ]
    assert [row["time"] for row in found] == [str(day) for day in after]
    expected = [10 + day.weekday() + (len(worked) + i) / 50 for i, day in enumerate(after)]
    assert [float(row["v"]) for row in found] == pytest.approx(expected, abs=0.05)
    (tmp_path / "week.csv").write_text("\n".join(["time,v", *(f"{day},1" for day in days)]) + "\n")
    with refused(ValueError, "2024-01-06 is a Saturday", "leave such days out"):
        built.predict(fitted(built), [tmp_path / "week.csv"], CPU)


def written_irregular(folder: Path, count: int = 900) -> Path:
    """Temperatures at irregular times of about 40 days, with none in hours 100 to 104."""
    drawn = np.random.default_rng(0)
    seconds = np.unique(np.round(3600 * drawn.uniform(7.3, 7.3 + 24 * 40, count)))
    hours = seconds[(seconds < 360_000) | (seconds > 378_000)] / 3600
    values = 10 + 5 * np.sin(hours * math.pi / 12) + 0.1 * drawn.normal(size=len(hours))
    times = [datetime.datetime(2024, 3, 1) + datetime.timedelta(hours=each) for each in hours.tolist()]
    path = folder / "sensor.csv"
    path.write_text("\n".join(["time,v", *(f"{t.isoformat()},{v}" for t, v in zip(times, values, strict=True))]) + "\n")
    return path


@pytest.mark.slow
def test_irregular_samples_are_averaged_over_bins(tmp_path: Path) -> None:
    path = written_irregular(tmp_path)
    with refused(ValueError, "times are not evenly spaced", "or set bin, a duration over which samples are averaged"):
        _ = Forecasting.Config(data=str(path)).build().facts
    with refused(ValueError, "at steps of 3600 seconds; at most half may be missing", "or set a longer bin"):
        _ = Forecasting.Config(data=str(written_irregular(tmp_path, 300)), bin=3600.0).build().facts
    frame = pd.read_csv(written_irregular(tmp_path), parse_dates=["time"])
    expected = frame.set_index("time")["v"].resample("3h").mean()
    (series,), clock, _ = open_long(path, bin=3 * 3600.0)
    assert (clock.step, clock.text(series.start)) == (3 * 3600.0, "2024-03-01T06:00:00")
    np.testing.assert_allclose(series.values[:, 0].numpy(), expected.to_numpy(), rtol=1e-6)
    built = Forecasting.Config(data=str(path), bin=3 * 3600.0, horizon=4).build()
    assert built.facts.season == 8
    model = fitted(built)
    found = built.predict(model, [path], CPU)
    after = list(pd.date_range(expected.index[-1], periods=5, freq="3h")[1:])
    assert [row["time"] for row in found] == [time.isoformat() for time in after]
    middles = [(time.hour + 1.5) * math.pi / 12 for time in after]
    assert [float(row["v"]) for row in found] == pytest.approx([10 + 5 * math.sin(t) for t in middles], abs=1.0)
    assert built.tensor_form(model).notes[-1] == "a sample is the mean over a bin of 10800 seconds"
    other = Forecasting.Config(data=str(path), bin=4 * 3600.0, horizon=4).build(
        dataclasses.replace(built.facts, season=8)
    )
    with refused(ValueError, "the steps of", "are 14400 seconds from sample to sample, dates without a zone; the run"):
        _ = other.splits
    with refused(ValueError, "bin is 0.0; expected a finite duration above 0"):
        Forecasting.Config(data=str(path), bin=0.0)
    learner = SeriesForecaster(horizon=4, task={"bin": 3 * 3600.0}).fit(frame)
    assert learner.predict()["time"].tolist() == after
    assert learner.predict(frame)["v"].tolist() == pytest.approx(learner.predict()["v"].tolist())
    for each in (learner.predict, learner.fit):
        with refused(ValueError, "X has no times, and bin=10800 averages over them: pass a data frame"):
            each(np.arange(99.0))


def test_even_samples_are_averaged_over_bins_of_their_times(tmp_path: Path) -> None:
    rows = [f"2024-03-01T{k // 2:02}:{30 * (k % 2):02}:00,{k}" for k in range(3, 48)]
    (tmp_path / "half.csv").write_text("\n".join(["time,v", *rows]) + "\n")
    (series,), clock, _ = open_long(tmp_path / "half.csv", bin=2 * 3600.0)
    assert clock.text(series.start) == "2024-03-01T00:00:00"
    assert series.values[:, 0].tolist() == [3.0, *(4 * k + 1.5 for k in range(1, 12))]
    np.savez(tmp_path / "half.npz", values=np.arange(10.0), offsets=[0, 10])
    (series,), clock, _ = open_long(tmp_path / "half.npz", bin=4.0)
    assert (clock.step, series.start, series.values[:, 0].tolist()) == (4.0, 0.0, [1.5, 5.5, 8.5])


@pytest.mark.slow
def test_times_with_a_zone_are_predicted_in_utc(tmp_path: Path) -> None:
    start = datetime.datetime(2022, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    rows = [f"{(start + datetime.timedelta(hours=i)).isoformat()},{math.sin(i * math.pi / 12)}" for i in range(240)]
    (tmp_path / "zoned.csv").write_text("\n".join(["time,v", *rows]) + "\n")
    config = Forecasting.Config(data=str(tmp_path / "zoned.csv"), horizon=3)
    built = config.build()
    (found, *_) = built.predict(fitted(built), [tmp_path / "zoned.csv"], CPU)
    assert found["time"] == "2022-01-10T23:00:00+00:00"  # midnight of 11 January in local time
    unknown = dataclasses.replace(built.facts, clock=dataclasses.replace(built.facts.clock, has_zone=None))
    before = config.build(unknown)
    assert len(before.splits.train) == len(built.splits.train)
    assert before.predict(fitted(built), [tmp_path / "zoned.csv"], CPU)[0]["time"] == "2022-01-10T23:00:00"
    (tmp_path / "plain.csv").write_text((tmp_path / "zoned.csv").read_text().replace("+01:00", ""))
    with refused(ValueError, "plain.csv: times are dates without a zone; those of the run are dates with a zone"):
        built.predict(fitted(built), [tmp_path / "plain.csv"], CPU)


def test_a_constant_channel_changes_no_scaled_error(tmp_path: Path) -> None:
    wave = np.sin(np.arange(60) / 3) + 0.1 * np.random.default_rng(0).normal(size=60)
    found = {}
    for name, channels in (("alone", [wave]), ("beside", [wave, np.full(60, 5.0)]), ("none", [np.full(60, 5.0)])):
        np.savez(tmp_path / f"{name}.npz", values=np.stack(channels, 1)[None])
        built = Forecasting.Config(data=str(tmp_path / f"{name}.npz"), horizon=4, context=14, season=6).build()
        model = fitted(built)
        found[name] = score_split(built, "test", model, batch_size=7, device=CPU, dtype=torch.float32)
    for metric in ("mase", "seasonal_naive_mase"):
        assert found["beside"][metric] == pytest.approx(found["alone"][metric], rel=1e-3)
        assert math.isnan(found["none"][metric])


def test_a_line_and_a_wave_are_predicted_and_dated(tmp_path: Path) -> None:
    result = train(
        Run.Config(
            task=Forecasting.Config(data=str(written(tmp_path)), horizon=4, context=14),
            training=TrainingConfig(epochs=0, tensorboard=False),
        ),
        tmp_path / "run",
    )
    assert result.metrics["mase"] < 0.02 < result.metrics["seasonal_naive_mase"]
    run = Run(tmp_path / "run")
    rows = run.predict([tmp_path / "long.csv"])
    assert [list(row) for row in rows] == [["file", "series", "time", "x", "y"]] * 8
    assert [(row["series"], row["time"]) for row in rows] == [
        *(("a", 2.0 * t) for t in range(60, 64)),
        *(("b", 2.0 * t + 1) for t in range(65, 69)),
    ]
    assert [float(row["x"]) for row in rows] == pytest.approx([60, 61, 62, 63, 165, 166, 167, 168], abs=0.1)
    assert float(rows[0]["y"]) == pytest.approx(wave(60), abs=0.05)
    (tmp_path / "short.csv").write_text("time,x,y\n0,1,1\n2,1,1\n")
    with refused(ValueError, "short.csv: short.csv has 2 samples; the model reads the last 14 of a series"):
        run.predict([tmp_path / "short.csv"])
    (tmp_path / "dated.csv").write_text("time,x,y\n2026-01-01,1,1\n2026-01-02,1,1\n")
    with refused(ValueError, "dated.csv: times are dates without a zone; those of the run are numbers"):
        run.predict([tmp_path / "dated.csv"])


def test_months_gaps_and_quantiles_in_a_prediction(tmp_path: Path) -> None:
    months = [f"{2000 + t // 12}-{t % 12 + 1:02}-01" for t in range(96)]
    values = [10 + math.sin(t * math.pi / 6) + 0.01 * ((7 * t) % 5) for t in range(96)]
    rows = [f"{m},{v}" for t, (m, v) in enumerate(zip(months, values, strict=True)) if t not in (30, 31)]
    (tmp_path / "m.csv").write_text("\n".join(["ds,y", *rows]))
    built = Forecasting.Config(data=str(tmp_path / "m.csv"), quantiles=(0.1, 0.5, 0.9)).build()
    assert (built.facts.season, built.facts.horizon, built.facts.context) == (12, 10, 25)
    places = built.splits.train.places[:, 1].tolist()
    assert not any(at <= missing < at + 10 for at in places for missing in (30, 31))
    assert 32 in places  # a gap in the context is filled
    assert float(built.splits.train.seen()[places.index(32), -1]) == pytest.approx(values[29])
    found = built.predict(fitted(built), [tmp_path / "m.csv"], CPU)
    assert [row["time"] for row in found[:2]] == ["2008-01-01", "2008-02-01"]
    assert list(found[0]) == ["file", "series", "time", "y", "y at 0.1", "y at 0.5", "y at 0.9"]
    for h, row in enumerate(found):
        low, middle, high = (float(row[f"y at {level}"]) for level in (0.1, 0.5, 0.9))
        assert low <= middle == float(row["y"]) <= high
        assert float(row["y"]) == pytest.approx(10 + math.sin(h * math.pi / 6), abs=0.3)


def test_seasons_are_found_by_autocorrelation() -> None:
    noise = torch.randn(2, 80, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wave = torch.sin(torch.arange(80) * 2 * math.pi / 9).double()
    assert find_season([(wave + 0.2 * noise[0] + torch.arange(80))[:, None]]) == 9
    assert find_season([noise[:1].T]) == 1
    assert find_season([torch.zeros(80, 1).double()]) == 1
    assert find_season([torch.arange(5.0)[:, None].double()]) == 1


def test_networks_and_filters_forecast_too(tmp_path: Path) -> None:
    built = task(tmp_path, model=SMALL)
    batch = built.train_batch(torch.arange(3), NONE)
    model = built.model()
    outputs = model(batch["values"]).float()
    assert outputs.shape == (3, 8)
    torch.testing.assert_close(built.loss(model, batch), (outputs - batch["targets"]).square().mean(1).sum())
    bank = task(tmp_path, model=FilterBank.Config(num_thresholds=2, num_groups=1, num_lags=20))
    filters = fitted(bank)
    assert isinstance(filters, FilterBank)
    assert filters.num_lags == 7
    scores = score_split(bank, "test", filters, batch_size=7, device=CPU, dtype=torch.float32)
    assert scores["mase"] < 0.1


@pytest.mark.parametrize("base", [None, 0.5])
def test_facts_survive_json_and_settings_that_contradict_them_are_refused(tmp_path: Path, base: float | None) -> None:
    built = task(tmp_path, base=base)
    known = [Forecasting.Facts, *Forecasting.parts]
    facts = from_json(json.loads(json.dumps(to_json(built.facts))), Task.Facts, known)
    assert facts == built.facts
    assert built.config.build(facts).num_train == built.num_train
    for name in ("context", "horizon", "season"):
        changed, expected = getattr(facts, name) + 1, getattr(facts, name)
        with refused(ValueError, f"{name} is {changed}; the run was made with {expected}"):
            dataclasses.replace(built.config, **{name: changed}).build(facts)
    longer = dataclasses.replace(built.config, season=None, context=None)
    written(tmp_path, count=70)
    assert longer.build(facts).splits.train.context == facts.context
    renamed = tmp_path / "long.csv"
    renamed.write_text(renamed.read_text().replace("time,x,y", "time,x,z"))
    with refused(ValueError, "the channels of ", "are ('x', 'z'); the run was made with ('x', 'y')"):
        longer.build(facts).num_train  # noqa: B018 - reads the data
    with refused(ValueError, "quantiles are (0.5,); the run was made with ()"):
        dataclasses.replace(built.config, quantiles=(0.5,)).build(facts)
    with refused(ValueError, f"base is 1; the run was made with {base or 0:g}"):
        dataclasses.replace(built.config, base=1.0).build(facts)


def test_gaps_that_leave_no_training_window_are_refused(tmp_path: Path) -> None:
    rows = (f"{t},{'' if t % 3 == 0 else t}" for t in range(60))
    (tmp_path / "gaps.csv").write_text("\n".join(["time,x", *rows]))
    with refused(ValueError, "no training window has horizon=4 observed samples; make the horizon shorter, or fill"):
        task(tmp_path, data=str(tmp_path / "gaps.csv"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 0}, "horizon is 0; expected at least 1"),
        ({"scale": "none"}, "scale is 'none'; expected one of"),
        ({"base": 1.5}, "base is 1.5; expected a share from 0 to 1"),
        ({"base": math.nan}, "base is nan; expected a share from 0 to 1"),
        ({"split_seed": 1}, "split_seed=1 has no effect with a split by time"),
        ({"valid_fraction": 0.3}, "valid_fraction=0.3 has no effect with model=LagMachine"),
        ({"channels": ("z",)}, "has no channel 'z'; the channels are x, y"),
        ({"context": 60}, "has 48 of its 60 samples; expected context=60 and horizon=4 together at least"),
        ({"horizon": 14}, "no test window has horizon=14 observed samples"),
        ({"test_fraction": 1.0}, "test_fraction is 1.0; expected a share from 0 to below 1"),
        ({"data": ""}, "no series are given"),
        ({"quantiles": (0.9, 0.1)}, "quantiles are (0.9, 0.1); expected numbers above 0 and below 1, increasing"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with refused(ValueError, message):
        _ = task(tmp_path, **settings).splits


def test_the_error_for_too_few_samples_gives_their_number(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("time,v\n0,1\n1,2\n")
    message = "the training part of the series has 1 of its 2 samples; expected context=1 and horizon=1 together"
    with refused(ValueError, message, "; give it more samples, or leave it out"):
        _ = Forecasting.Config(data=str(tmp_path / "two.csv")).build().facts
    rows = [f"{series},{3 * t if series == 'b' else t},{t}" for series in "ab" for t in range(20)]
    (tmp_path / "gaps.csv").write_text("\n".join(["series,time,v", *rows, ""]))
    with refused(ValueError, f"{tmp_path}/gaps.csv: series 'b' has 20 samples of 58, at steps of"):
        open_long(tmp_path / "gaps.csv")


@pytest.mark.slow
@pytest.mark.parametrize("model", [FilterBank.Config(num_groups=0, num_thresholds=4), SMALL])
def test_a_note_says_what_a_short_series_costs_the_others(model: Any, tmp_path: Path) -> None:
    lengths = {"a": 90, "b": 80, "c": 8}
    rows = [f"{name},{t},{wave(t):.4f}" for name, length in lengths.items() for t in range(length)]
    (tmp_path / "some.csv").write_text("\n".join(["series,time,v", *rows, ""]))
    config = Forecasting.Config(data=str(tmp_path / "some.csv"), season=7, model=model)
    (got,) = config.recommended("small").notes
    found = config.build().facts
    assert got.startswith(
        f"the series 'c' has 8 samples, so that every series is predicted {found.horizon} sample ahead from "
        f"{found.context}; without the short ones, which can be left out, it would be 7 ahead from "
    )
    (tmp_path / "some.csv").write_text("\n".join(["series,time,v", *rows[:-8], ""]))
    assert config.recommended("small").notes == ()


def with_weekends(folder: Path) -> Path:
    """Hourly values of seven weeks, lower on two days of each week, with noise."""
    drawn = np.random.default_rng(0)
    rows = [
        f"2026-01-{1 + t // 24:02}T{t % 24:02}:00" if t < 24 * 31 else f"2026-02-{1 + t // 24 - 31:02}T{t % 24:02}:00"
        for t in range(24 * 49)
    ]
    values = [
        (1.0 if t // 24 % 7 < 5 else 0.2) * (2 + math.sin(t * math.pi / 12)) + 0.02 * drawn.normal()
        for t in range(24 * 49)
    ]
    path = folder / "hours.csv"
    path.write_text("\n".join(["time,y", *(f"{time},{value}" for time, value in zip(rows, values, strict=True))]))
    return path


def chosen_context(config: Forecasting.Config) -> int | None:
    found = config.recommended("small").config
    assert isinstance(found, Forecasting.Config)
    assert found == dataclasses.replace(config, context=found.context, base=found.base)
    return found.context


@pytest.mark.slow
def test_the_context_holds_a_week_where_that_reduces_the_error(tmp_path: Path) -> None:
    weekly = Forecasting.Config(data=str(with_weekends(tmp_path)), calendar="none")
    assert weekly.build().facts.context == 72
    assert chosen_context(weekly) == 216
    assert chosen_context(dataclasses.replace(weekly, context=80)) == 80
    assert chosen_context(dataclasses.replace(weekly, model=SMALL)) is None
    noise = np.random.default_rng(0).normal(size=400).cumsum()
    (tmp_path / "walk.csv").write_text("\n".join(["time,y", *(f"{t},{y}" for t, y in enumerate(noise))]))
    assert chosen_context(Forecasting.Config(data=str(tmp_path / "walk.csv"), horizon=5, season=1)) == 15


@pytest.mark.slow
def test_the_shortest_context_with_a_nearly_best_error_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Forecasting.Config(data=str(with_weekends(tmp_path)), base=0.0)
    found, tried = dict[int, float](), list[tuple[int, int]]()

    def error(built: Forecasting, start: int) -> float:
        tried.append((built.facts.context, start))
        return found[built.facts.context]

    monkeypatch.setattr(Forecasting, "_left_out_error", error)
    found |= {72: 2.0, 144: 1.04, 216: 1.0}  # of 940 samples for training; 432 leave 21 windows of a day
    assert chosen_context(config) == 216
    assert tried == [(context, 216) for context in (72, 144, 216)]
    found[72] = 1.03
    assert chosen_context(config) == 72
    found |= dict.fromkeys(found, math.nan)  # of a constant series
    assert chosen_context(config) == 72
    found[72] = 3.0
    monkeypatch.setattr(reading, "LEAST_PREDICTED", 34)  # (940 - 144) // 24 is 33
    assert chosen_context(config) == 72
    monkeypatch.setattr(reading, "LEAST_PREDICTED", 33)
    monkeypatch.setattr(reading, "MOST_SEEN", 150)
    tried.clear()
    found |= {72: 2.0, 144: 1.0}
    assert chosen_context(config) == 144
    assert tried == [(72, 144), (144, 144)]


@pytest.mark.slow
def test_context_and_base_are_chosen_with_the_linear_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Forecasting.Config(data=str(with_weekends(tmp_path)))
    linear = dataclasses.replace(config, model=LagMachine.Config().bank)

    def fit(*_: Any, **__: Any) -> Any:
        raise AssertionError("a kernel is fitted")

    monkeypatch.setattr(LagMachine, "fit", fit)
    found, expected = (each.recommended("small").config for each in (config, linear))
    assert found == dataclasses.replace(expected, model=LagMachine.Config())


@pytest.mark.parametrize("few", [39, 40])
def test_left_out_errors_are_those_of_refits_without_each_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    drawn = np.random.default_rng(17).normal(size=(2, 65, 2)).cumsum(1)
    rows = [f"{name},{t},{x},{y}" for name, each in zip("ab", drawn, strict=True) for t, (x, y) in enumerate(each)]
    (tmp_path / "walks.csv").write_text("\n".join(["series,time,x,y", *rows]))
    monkeypatch.setattr(forecasting, "FEW", few)
    built = Forecasting.Config(
        data=str(tmp_path / "walks.csv"), horizon=4, context=7, num_windows=40, model=LINEAR
    ).build()
    windows, ends = built.splits.train, [52, 52]
    expected = list[float]()
    with torch.random.fork_rng():
        state = torch.get_rng_state()
        found = built._left_out_error(20)
        assert torch.equal(torch.get_rng_state(), state)
    model = built.model()
    assert isinstance(model, FilterBank)
    batch = built.train_batch(torch.arange(len(windows)), NONE)
    groups = torch.tensor([8 * at // ends[i] for i, at in windows.places.tolist()])
    target = built.facts.target
    outputs = model.fit([(SeriesBatch(batch["values"]), batch["targets"])], target, groups=groups)
    mean, deviation = torch.tensor(target.mean), torch.tensor(target.deviation)
    aim, predicted, compared = (
        batch["targets"] * deviation + mean,
        outputs * deviation + mean,
        list(range(len(windows))),
    )
    gain_by = predicted.clone()
    if few == 40:  # by fits to the windows before the stretch
        compared = list[int]()
        for stretch in range(4, 8):
            before = [n for n, (i, at) in enumerate(windows.places.tolist()) if at + 4 <= stretch * ends[i] / 8]
            own, some = (groups == stretch).nonzero()[:, 0].tolist(), torch.tensor(before)
            ahead = built.model()
            assert isinstance(ahead, FilterBank)
            given = SeriesBatch(batch["values"][some]), batch["targets"][some]
            ahead.fit([given], target, groups=groups[some])
            gain_by[own] = (ahead(SeriesBatch(batch["values"][own])) * deviation + mean).detach().double()
            compared += own
    errors = {g: float((g * gain_by - aim)[compared].square().mean()) for g in (1.0, 0.5, 0.0)}
    gain = min(errors, key=lambda g: errors[g])
    assert gain == (1.0 if few == 40 else 0.5)  # so that the choice depends on the errors used
    raw = [read.values for read in open_long(tmp_path / "walks.csv")[0]]
    for row, (i, at) in enumerate(windows.places.tolist()):
        if at < 20:
            continue
        z = gain * predicted[row].double()
        for h in range(4):
            for c in range(2):
                seen = raw[i][at - 7 : at, c]
                s = max(float(seen.std(correction=0)), 0.05 * built.facts.deviation[c])
                y = float(z[2 * h + c]) * s + float(seen[-1])
                known = raw[i][: ends[i], c]
                season = built.facts.season
                q = float((known[season:] - known[:-season]).abs().mean())
                expected.append(abs(y - float(raw[i][at + h, c])) / q)
    assert found == pytest.approx(float(np.mean(expected)), rel=1e-4)


@pytest.mark.slow
def test_left_out_errors_draw_no_random_numbers_and_ignore_constant_channels(tmp_path: Path) -> None:
    walk, model = np.random.default_rng(0).normal(size=80).cumsum(), FilterBank.Config(num_thresholds=2, num_groups=1)
    errors = list[float]()
    for channels in ([walk], [walk, np.full(80, 5.0)]):
        np.savez(tmp_path / "walks.npz", values=np.stack(channels, 1)[None])
        config = Forecasting.Config(data=str(tmp_path / "walks.npz"), horizon=4, context=9, season=1)
        errors.append(config.build()._left_out_error(9))
        torch.manual_seed(3)
        dataclasses.replace(config, model=model).build()._left_out_error(9)
        drawn = torch.rand(1)
        torch.manual_seed(3)
        assert torch.equal(torch.rand(1), drawn)
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_with_more_channels_fewer_contexts_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = np.random.default_rng(0).normal(size=(1, 400, 2)).cumsum(1)
    np.savez(tmp_path / "walks.npz", values=walks)
    tried = list[int]()
    monkeypatch.setattr(Forecasting, "_left_out_error", lambda built, start: tried.append(built.facts.context) or 1.0)
    monkeypatch.setattr(reading, "MOST_SEEN", 65)
    assert chosen_context(Forecasting.Config(data=str(tmp_path / "walks.npz"), horizon=5, season=1, base=0.0)) == 15
    assert tried == [15, 30]  # 45 samples would be 90 numbers


def test_a_context_is_at_most_two_thirds_of_the_shortest_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{i},{t},{wave(t) + i}" for i in range(40) for t in range(90)]  # 72 of each for training
    (tmp_path / "many.csv").write_text("\n".join(["series,time,y", *rows]))
    tried = list[int]()
    monkeypatch.setattr(Forecasting, "_left_out_error", lambda built, start: tried.append(built.facts.context) or 1.0)
    assert chosen_context(Forecasting.Config(data=str(tmp_path / "many.csv"), season=6, horizon=6, base=0.0)) == 18
    assert tried == [18, 36]  # 54 would leave windows too


@pytest.mark.slow
def test_contexts_are_tried_on_data_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, read = Forecasting.Config(data=str(with_weekends(tmp_path)), calendar="none"), list[Path]()
    monkeypatch.setattr(forecasting, "open_long", lambda path, bin: read.append(path) or open_long(path, bin=bin))
    assert chosen_context(config) == 216
    assert len(read) == 1


def rising_months(folder: Path, count: int = 90) -> Path:
    drawn = np.random.default_rng(0)
    season = drawn.normal(size=12)
    rows = [f"{t},{0.05 * t + season[t % 12] + 0.1 * drawn.normal()},{t % 3}" for t in range(count)]
    path = folder / "months.csv"
    path.write_text("\n".join(["time,y,z", *rows]))
    return path


def test_the_base_and_context_with_the_smallest_error_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Forecasting.Config(data=str(rising_months(tmp_path)), horizon=2, season=6, channels=("y",))
    tried = list[tuple[int, float | None, int]]()
    got = {(18, 0.0): 1.03, (36, 0.0): 1.0, (18, 0.5): 1.02, (18, 1.0): 1.01}

    def error(built: Forecasting, start: int) -> float:
        tried.append((built.facts.context, built.config.base, start))
        return got[built.facts.context, built.config.base or 0.0]

    monkeypatch.setattr(Forecasting, "_left_out_error", error)
    monkeypatch.setattr(reading, "LEAST_PREDICTED", 15)  # 36 samples leave 18 windows, 54 leave 9
    found = Forecasting(config).best_reading()
    assert found == (18, 1.0)
    assert tried == [(18, 0.0, 36), (36, 0.0, 36), (18, 0.5, 36), (18, 1.0, 36)]
    got |= {(18, 0.0): 1.1, (36, 0.5): 0.9, (36, 1.0): 1.2}
    assert Forecasting(config).best_reading() == (36, 0.5)
    got[36, 0.5] = 1.0  # not smaller
    assert Forecasting(config).best_reading() == (36, 0.0)
    got[18, 1.0] = 0.9
    assert Forecasting(config).best_reading() == (18, 1.0)
    tried.clear()
    assert Forecasting(dataclasses.replace(config, context=30, base=0.5)).best_reading() == (30, 0.5)
    assert not tried
    got |= {(5, 0.0): 1.0, (5, 0.5): 1.0, (5, 1.0): 1.0}
    assert Forecasting(dataclasses.replace(config, context=5, season=12)).best_reading() == (5, 0.0)
    assert tried == [(5, base, 24) for base in (0.0, 0.5, 1.0)]  # two seasons


def test_a_base_predicts_trend_and_months(tmp_path: Path) -> None:
    data = rising_months(tmp_path)
    scores = {}
    for base in (0.0, None):
        config = Forecasting.Config(data=str(data), horizon=6, season=12, channels=("y",), base=base)
        found = config.recommended("small").config
        assert isinstance(found, Forecasting.Config)
        built = found.build()
        scores[base] = score_split(built, "test", fitted(built), batch_size=7, device=CPU, dtype=torch.float32)["mase"]
    assert built.facts.base is not None
    assert built.facts.base.structures[0].has_slope
    assert built.facts.base.structures[0].season is not None
    assert scores[None] < 0.8 * scores[0.0]


def test_targets_are_differences_from_the_base(tmp_path: Path) -> None:
    config = Forecasting.Config(
        data=str(rising_months(tmp_path)), horizon=3, context=5, season=12, channels=("y",), base=0.5
    )
    built = config.build()
    base = built.facts.base
    assert base is not None
    assert (base.share, base.most, base.least) == (0.5, 72, 24)
    assert int(built.splits.train.places[:, 1].min()) == 24
    y = open_long(Path(config.data))[0][0].values[:, 0]
    batch = built.held_out_batch("test", torch.tensor([0]))
    at = int(built.held_out("test").places[0, 1])
    weights = base.structures[0].weights(72, 3, 12)
    expected = 0.5 * y[at - 1] + 0.5 * weights @ y[at - 72 : at]
    torch.testing.assert_close(batch["base"][0, :, 0], expected)
    scale = y[at - 5 : at].std(correction=0)
    mean, deviation = torch.tensor(built.facts.target.mean), torch.tensor(built.facts.target.deviation)
    z = ((y[at : at + 3] - expected) / scale - mean) / deviation
    torch.testing.assert_close(batch["targets"][0], z.float())
    short = rising_months(tmp_path, 23)
    with refused(ValueError, "has 23 samples; the model reads the last 24 of a series"):
        built.predict(fitted(built), [short], CPU)


def test_a_graph_with_a_context_longer_than_its_base_predicts_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fredholm.tasks.forecasts.base.MOST_READ", 24)
    data = rising_months(tmp_path)
    config = Forecasting.Config(data=str(data), horizon=3, context=30, season=12, channels=("y",), base=1.0)
    built = config.build()
    assert built.facts.base is not None
    assert built.facts.base.most == 24
    model = fitted(built)
    series = open_long(data)[0]
    found = built.tensor_form(model).module()(series[0].values[None, -30:])
    torch.testing.assert_close(found, built.forecasts(model, series[:1], CPU)[1], rtol=1e-5, atol=1e-5)


def test_a_base_for_series_that_are_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.csv").write_text("\n".join(["time,y", *(f"{t},{math.sin(t)}" for t in range(14))]))
    config = Forecasting.Config(data=str(tmp_path / "short.csv"), horizon=2, season=1)
    found = config.recommended("small").config
    assert isinstance(found, Forecasting.Config)
    assert found.base == 0.0
    with refused(ValueError, "base=0.5 has no effect: ", "short.csv is too short for structures of its series"):
        dataclasses.replace(config, base=0.5).build()
