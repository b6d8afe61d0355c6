import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fredholm.estimators import SeriesForecaster
from fredholm.models import CKCNN
from fredholm.tasks import Forecasting
from fredholm.training import Run
from tests.refusals import refused

T, H = 90, 6
TIME = np.arange(T + H)
WAVES = np.stack([5 + np.sin(2 * np.pi * (TIME + shift) / 12) + 0.02 * TIME for shift in (0, 3, 7)])
"""Three series of season 12, with the samples after them."""
SEEN, NEXT = WAVES[:, :T], WAVES[:, T:]
NETWORK: dict[str, Any] = {
    "model": CKCNN.Config(embed_dim=4, depth=1, kernel_width=4, omega_0=3.0, dropout=0.0),
    "training": {"epochs": 1},
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> SeriesForecaster:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return SeriesForecaster(horizon=H, quantiles=(0.1, 0.9), random_state=0, run_dir=folder).fit(SEEN)


def facts_of(forecaster: SeriesForecaster) -> Forecasting.Facts:
    facts = forecaster.trained_.task.facts
    assert isinstance(facts, Forecasting.Facts)
    return facts


def test_it_predicts_the_following_samples(fitted: SeriesForecaster) -> None:
    predicted = fitted.predict(SEEN)
    assert (predicted.shape, predicted.dtype) == ((3, H), np.float64)
    np.testing.assert_allclose(predicted, NEXT, atol=0.05)
    np.testing.assert_allclose(fitted.predict(), predicted, rtol=1e-6)
    assert facts_of(fitted).season == 12
    assert fitted.valid_metrics_ == {}


def test_enough_samples_of_each_series_are_stored_for_prediction() -> None:
    noise = 0.3 * np.random.default_rng(0).normal(size=(1, 150))
    season = np.tile(np.random.default_rng(1).normal(size=12), 13)[:150]
    series = 0.05 * np.arange(150) + season + noise
    fitted = SeriesForecaster(horizon=H, season=12, random_state=0, task={"context": 12, "base": 1.0}).fit(series)
    base = facts_of(fitted).base
    assert base is not None
    assert (facts_of(fitted).context, base.most, base.least) == (12, 150, 24)
    np.testing.assert_allclose(fitted.predict(), fitted.predict(series), rtol=1e-6)
    assert np.abs(fitted.predict() - fitted.predict(series[:, -24:])).max() > 0.01
    with refused(ValueError, "series 0 has 23 samples; the model reads the last 24 of a series"):
        fitted.predict(series[:, -23:])


def test_quantiles_are_the_last_axis(fitted: SeriesForecaster) -> None:
    predicted = fitted.predict_quantiles()
    assert predicted.shape == (3, H, 2)
    assert (predicted[..., 0] <= predicted[..., 1]).all()
    np.testing.assert_allclose(predicted.mean(-1), fitted.predict())
    with refused(ValueError, "SeriesForecaster was fitted without quantiles; pass some"):
        SeriesForecaster(horizon=H).fit(SEEN).predict_quantiles()


def test_the_score_is_the_negative_scaled_error(fitted: SeriesForecaster) -> None:
    scale = np.abs(SEEN[:, 12:] - SEEN[:, :-12]).mean(1)[:, None]
    assert fitted.score(SEEN, fitted.predict(SEEN)) == 0
    assert fitted.score(SEEN, fitted.predict(SEEN) + 2 * scale) == pytest.approx(-2, rel=1e-4)
    missing = np.where(np.arange(H) == 1, np.nan, fitted.predict(SEEN) + scale)
    assert fitted.score(SEEN, missing) == pytest.approx(-1, rel=1e-4)
    with refused(ValueError, "y has shape (3, 5); expected (3, 6), the next samples of each series"):
        fitted.score(SEEN, NEXT[:, 1:])
    with refused(ValueError, "all of y is missing"):
        fitted.score(SEEN, np.full((3, H), np.nan))


@pytest.mark.slow
def test_predictions_have_the_form_of_the_series() -> None:
    of_channels = np.stack([SEEN, -SEEN], axis=1)
    one, listed = SeriesForecaster(horizon=H).fit(SEEN[0]), SeriesForecaster(horizon=H).fit([SEEN[0], SEEN[1, 5:]])
    two = SeriesForecaster(horizon=H, task={"channels": ("channel_1",)}).fit(of_channels)
    assert one.predict().shape == one.predict(SEEN[0].tolist()).shape == (H,)
    assert one.predict(SEEN).shape == (3, H)
    assert listed.predict().shape == (2, H)
    assert two.predict(of_channels[:2]).shape == (2, 1, H)
    np.testing.assert_allclose(two.predict()[:, 0], -NEXT, atol=0.05)
    whole = SeriesForecaster(horizon=H, quantiles=(0.5,)).fit(of_channels)
    assert whole.predict().shape == (3, 2, H)
    np.testing.assert_array_equal(whole.predict_quantiles()[..., 0], whole.predict())


def test_a_series_is_predicted_independently_of_the_others(fitted: SeriesForecaster) -> None:
    np.testing.assert_allclose(fitted.predict(SEEN[1:2, 20:]), fitted.predict(SEEN)[1:2], rtol=1e-6)


def test_gaps_are_filled_with_the_previous_value() -> None:
    gap = SEEN[:1].copy()
    gap[0, [30, -1]] = np.nan
    estimator = SeriesForecaster(horizon=H).fit(gap)
    np.testing.assert_allclose(estimator.predict(), estimator.predict(gap))
    assert np.isfinite(estimator.predict()).all()


@pytest.mark.parametrize("noise", [0.0, 1e-10])
def test_a_periodic_series_is_predicted_also_with_more_noise_than_in_training(noise: float) -> None:
    time, draw = np.arange(120), np.random.default_rng(0).normal
    wave = np.sin(2 * np.pi * time / 12)
    following = np.sin(2 * np.pi * np.arange(120, 120 + H) / 12)
    forecaster = SeriesForecaster(horizon=H, random_state=0).fit(wave + noise * draw(size=120))
    for other in (1e-6, 1e-3, 1e-1):
        predicted = forecaster.predict(wave + other * draw(size=120))
        np.testing.assert_allclose(predicted, following, atol=1e-4 + 5 * other)


def test_a_copy_predicts_the_same_and_a_clone_is_not_fitted(fitted: SeriesForecaster) -> None:
    other = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - written here
    assert (other.predict() == fitted.predict()).all()
    copied: Any = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    for method in (copied.predict, copied.predict_quantiles):
        with pytest.raises(NotFittedError):
            method()


def test_a_run_folder_can_be_used_by_the_command_line(fitted: SeriesForecaster, tmp_path: Path) -> None:
    assert fitted.run_dir is not None
    run = Run(Path(fitted.run_dir), device="cpu")
    assert run.task.facts == fitted.trained_.task.facts
    np.save(tmp_path / "seen.npy", SEEN[..., None].astype(np.float32))
    rows = run.predict([tmp_path / "seen.npy"])
    found = [float(row["channel_0"]) for row in rows]
    np.testing.assert_allclose(np.reshape(found, (3, H)), fitted.predict(SEEN), rtol=1e-6)


def test_networks_are_trained_from_one_seed_with_a_validation_split() -> None:
    first, second, other = (
        SeriesForecaster(horizon=H, random_state=seed, valid_fraction=0.2, **NETWORK).fit(SEEN) for seed in (0, 0, 1)
    )
    assert (first.predict() == second.predict()).all()
    assert (first.predict() != other.predict()).any()
    assert "mase" in first.valid_metrics_


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X is empty"),
        (np.zeros((2, 0)), "0 feature"),
        (np.zeros((2, 3, 4, 5)), "X has shape (2, 3, 4, 5); expected (T,), (n, T) or (n, C, T)"),
        (np.full((2, T), np.inf), "infinity"),
        (["a", "b"], "could not convert string to float"),
        ([np.zeros((2, 30)), np.zeros(40)], "series 1 of X has 1 channels, series 0 has 2"),
        (SEEN[:, :5], "expected context="),
        (SEEN.T[:, :2], "90 series of at most 2 samples, fewer than a horizon of"),
    ],
)
def test_inputs_that_are_not_series_are_refused(X: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - matched below
        SeriesForecaster(horizon=H, season=1).fit(X)
    assert message in str(caught.value)


def test_series_that_differ_from_training_are_refused(fitted: SeriesForecaster) -> None:
    context = facts_of(fitted).context
    with refused(ValueError, f"X: series 0 has 4 samples; the model reads the last {context} of a series"):
        fitted.predict(SEEN[:, :4])
    with refused(ValueError, "X has 2 channels; SeriesForecaster was fitted on 1"):
        fitted.predict(np.stack([SEEN, SEEN], axis=1))
    with refused(ValueError, "y was passed beside X; leave it out"):
        SeriesForecaster().fit(SEEN, NEXT)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"horizon": 0}, ValueError, "horizon is 0; expected at least 1"),
        ({"horizon": 2.5}, TypeError, "horizon is 2.5; expected a number of samples"),
        ({"season": True}, TypeError, "season is True"),
        ({"quantiles": (2.0,)}, ValueError, "quantiles are (2.0,)"),
        ({"task": {"horizon": 3}}, ValueError, "task has no setting 'horizon'"),
        ({"model": 3}, TypeError, "model is of type int"),
        ({"task": {"context": 200}}, ValueError, "make one of them shorter"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], kind: type, message: str) -> None:
    with refused(kind, message):
        SeriesForecaster(**settings).fit(SEEN)


def test_a_known_channel_is_read_beyond_the_end() -> None:
    promo = np.array([t % 7 in (2, 3) or t % 5 == 0 for t in range(94)], float)
    X = np.stack([10 + np.sin(np.arange(94) * np.pi / 3) + 4 * promo, promo])[None]  # (1, 2, 94)
    true, given = X[0, 0, 90:], X.copy()
    given[0, 0, 90:] = np.nan
    forecaster = SeriesForecaster(horizon=4, season=6, task={"known": ("channel_1",)}).fit(given)
    assert forecaster.predict().shape == (1, 1, 4)
    np.testing.assert_allclose(forecaster.predict()[0, 0], true, atol=0.5)
    np.testing.assert_allclose(forecaster.predict(given), forecaster.predict())
    with refused(ValueError, "X: series 0 has 0 samples after the last one with channel_0; the model predicts 4"):
        forecaster.predict(given[..., :90])


def test_times_of_known_samples_are_counted_from_the_first_sample_of_the_fit() -> None:
    promo = np.array([t % 7 in (2, 3) for t in range(90)], float)
    X = np.stack([10 + np.sin(np.arange(90)) + 4 * promo, promo])[None]
    task = {"known": ("channel_1",), "context": 12, "base": 0.0}  # 12 of 90 samples are stored
    forecaster = SeriesForecaster(horizon=4, season=6, task=task).fit(X)
    with refused(ValueError, "give rows from 90.0 to 93.0, with channel_1 filled and channel_0 empty"):
        forecaster.predict()


DAYS = pd.date_range("2026-01-01", periods=T + H)


@pytest.mark.slow
@pytest.mark.parametrize(
    "times",
    [
        DAYS,
        pd.date_range("2026-03-28", periods=T + H, freq="h", tz="Europe/Berlin"),  # one night has 23 hours
        pd.date_range("2026-02-01", periods=T + H, freq="D", tz="Europe/Berlin"),  # and so has one day
        pd.date_range("2019-01-31", periods=T + H, freq="ME"),
        pd.period_range("2019-01", periods=T + H, freq="M"),
        pd.date_range("2026-01-01", periods=T + H, freq="15min"),
    ],
    ids=["days", "hours of a zone", "days of a zone", "ends of months", "months", "quarters of an hour"],
)
def test_predictions_of_a_data_frame_continue_its_times(times: Any) -> None:
    settings: dict[str, Any] = {"horizon": H, "season": 12, "quantiles": (0.1, 0.9), "random_state": 0}
    expected = SeriesForecaster(**settings).fit(SEEN[None, :2])
    frame = pd.DataFrame(WAVES[:2].T, columns=["a", "b"], index=times.rename("at"))
    fitted = SeriesForecaster(**settings).fit(frame[:T])
    predicted = fitted.predict()
    pd.testing.assert_frame_equal(predicted, fitted.predict(frame[:T]), rtol=1e-6)
    pd.testing.assert_index_equal(predicted.index, frame.index[T:], check_freq=False)
    np.testing.assert_allclose(predicted.to_numpy().T[None], expected.predict(), rtol=1e-6)
    np.testing.assert_allclose(
        fitted.predict_quantiles()["b at 0.9"], expected.predict_quantiles()[0, 1, :, 1], rtol=1e-6
    )
    true = frame[T:].add([1.0, 3.0])
    of_arrays = expected.score(SEEN[None, :2], true.to_numpy().T[None])
    assert fitted.score(frame[:T], true) == pytest.approx(of_arrays, rel=1e-5)
    assert fitted.score(frame[:T], true.to_numpy()) == fitted.score(frame[:T], true)


@pytest.mark.slow
def test_a_data_frame_may_have_a_column_with_the_series_of_each_row() -> None:
    long = pd.concat(
        [pd.DataFrame({"unique_id": k, "ds": DAYS[k : T + k], "y": SEEN[k]}) for k in (2, 0)],
        ignore_index=True,
    ).drop(index=[30, 31])
    fitted = SeriesForecaster(horizon=2, random_state=0).fit(long)
    predicted = fitted.predict()
    assert predicted["unique_id"].tolist() == [2, 2, 0, 0]
    assert predicted["ds"].tolist() == [*DAYS[T + 2 : T + 4], *DAYS[T : T + 2]]
    np.testing.assert_allclose(predicted["y"], NEXT[[2, 0], :2].flatten(), atol=0.05)
    one = fitted.predict(long[long["unique_id"] == 0])
    pd.testing.assert_frame_equal(one, predicted[2:].reset_index(drop=True), rtol=1e-6)
    column = SeriesForecaster(horizon=2).fit(pd.Series(SEEN[0], index=DAYS[:T], name="sales")).predict()
    assert (column.name, column.index.tolist()) == ("sales", DAYS[T : T + 2].tolist())


@pytest.mark.slow
def test_times_keep_their_type_and_known_channels_reach_ahead() -> None:
    def of(times: Any, **settings: Any) -> pd.DataFrame:
        frame = pd.DataFrame({"time": times, "a": SEEN[0], "b": SEEN[1]})
        if "task" in settings:
            frame.loc[T - 2 :, "a"] = np.nan
        return SeriesForecaster(horizon=2, random_state=0, **settings).fit(frame).predict()

    counted, written = of(2 * np.arange(T)), of(DAYS[:T].strftime("%d.%m.%Y"))
    assert counted["time"].tolist() == [2 * T, 2 * T + 2]
    assert written["time"].tolist() == ["2026-04-01", "2026-04-02"]
    tenths = pd.date_range("2026-01-01", periods=T + 2, freq="100ms")
    assert of(tenths[:T])["time"].tolist() == tenths[T:].tolist()
    np.testing.assert_allclose(counted[["a", "b"]], written[["a", "b"]], rtol=1e-6)
    ahead = of(DAYS[:T], task={"known": ("b",)})
    assert (list(ahead.columns), ahead["time"].tolist()) == (["time", "a"], DAYS[T - 2 : T].tolist())
    np.testing.assert_allclose(ahead["a"], SEEN[0, -2:], atol=0.05)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # of pandas, about these periods
def test_periods_of_business_days_are_continued() -> None:
    periods = pd.period_range("2026-01-02", periods=T + 3, freq="B")
    found = SeriesForecaster(horizon=3).fit(pd.Series(SEEN[0], index=periods[:T])).predict()
    assert list(found.index) == list(periods[T:])


def test_invalid_rows_are_refused() -> None:
    frame = pd.DataFrame({"a": SEEN[0], "b": SEEN[1]}, index=DAYS[:T])
    fitted = SeriesForecaster(horizon=2).fit(frame)
    for X, message in (
        (frame.assign(group=1), "X has a column 'group', which is no channel; drop or rename it"),
        (frame.assign(Time=1), "X has times as its index and a column 'Time', which is no channel"),
        (frame.assign(b="x"), "X, row 0: column 'b': 'x' is no number"),
        (frame[::-1], "sort the rows of a series by time"),
        (frame.set_axis([*DAYS[1:T], pd.NaT]), "X, row 89: the time is missing"),
        (frame[:0], "X has 0 rows and 2 columns of values; expected some of each"),
        (frame.assign(series=None), "X, row 0: column 'series' is missing; expected the series of the row"),
    ):
        with refused(ValueError, message):
            SeriesForecaster(horizon=2).fit(X)
    with refused(ValueError, "X, line 1: no column 'a'; the columns are time, c, b"):
        fitted.predict(frame.rename(columns={"a": "c"}))
    with refused(ValueError, "X: the series has 3 samples; the model reads the last"):
        fitted.predict(frame[:3])
    with refused(ValueError, "X has 1 channels; SeriesForecaster was fitted on 2"):
        fitted.predict(SEEN)
    later = pd.DataFrame({"a": NEXT[0, :2], "b": NEXT[1, :2]}, index=DAYS[T + 1 : T + 3])
    for y, message in (
        (later, "y has other times or series than the predicted samples; expected the rows of `predict`"),
        (later[["a"]].set_axis(DAYS[T : T + 2]), "y has no column 'b'; expected a, b"),
        (NEXT[:2, :2].flatten(), "y has shape (4,); expected (2, 2), as of `predict`"),
    ):
        with refused(ValueError, message):
            fitted.score(frame, y)
