"""Tables: data frames with columns of every kind, and inputs that are refused."""

import copy
import datetime
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import fredholm
from fredholm.estimators.tables import _cell
from fredholm.models import CKCNN, FilterBank, ImageBank, NGramBank, TableMachine
from fredholm.tasks.tables.columns import Column
from fredholm.training import Run
from tests.refusals import refused

NUM = 120
SMALL = TableMachine.Config(num_centres=200, num_trees=20, texts=NGramBank.Config(num_grams=200, num_letter_grams=300))
WITHOUT_TEXTS = TableMachine.Config(num_centres=200, num_trees=20)


def flats(seed: int = 0, n: int = NUM) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with a column of every kind, and a price that depends on each of them."""
    draw = np.random.default_rng(seed)
    area, town = draw.uniform(30, 120, n), draw.integers(0, 3, n)
    sold = pd.Timestamp("2025-01-01") + pd.to_timedelta(draw.integers(0, 700, n), unit="D")
    bright, lift = draw.random(n) < 0.5, draw.random(n) < 0.5
    price = area * (2 + town) * np.where(bright, 1.2, 1.0) + 20 * lift
    area[::9] = np.nan
    frame = pd.DataFrame({"area": area, "time": sold, "lift": lift, "zip": pd.Categorical(8000 + 10 * town)})
    frame["target"] = [f"{'bright' if each else 'dark'} rooms, number {i}" for i, each in enumerate(bright)]
    frame.loc[::11, "time"] = pd.NaT
    return frame, price


def new(**settings: Any) -> fredholm.TableRegressor:
    return fredholm.TableRegressor(**{"model": SMALL, "random_state": 0} | settings)


def columns_of(estimator: fredholm.TableRegressor) -> list[Column]:
    """The columns that an estimator has learnt."""
    facts: Any = estimator.trained_.task.facts
    return list(facts.columns)


def test_columns_of_a_data_frame_are_read_by_their_dtype() -> None:
    frame, price = flats()
    regressor = new().fit(frame, price)
    predicted = {column.name: column.kind for column in columns_of(regressor)}
    assert predicted == {"area": "number", "x_time": "date", "lift": "category", "zip": "category", "x_target": "text"}
    new_rows, expected = flats(seed=1)
    assert regressor.score(new_rows, expected) > 0.9
    assert vars(regressor)["feature_names_in_"].tolist() == list(frame.columns)
    with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
        regressor.predict(new_rows[list(new_rows.columns[::-1])])


def test_arrays_lists_and_frames_of_equal_values_give_equal_predictions() -> None:
    frame, price = flats()
    some = frame[["area", "lift", "target"]]
    as_lists = [list(row) for row in some.itertuples(index=False)]
    found = new().fit(some, price).predict(some)
    for X in (some.to_numpy(dtype=object), as_lists):
        regressor = new().fit(X, price)
        np.testing.assert_array_equal(found, regressor.predict(X))
        assert [column.name for column in columns_of(regressor)] == ["x0", "x1", "x2"]


def test_integer_and_float_categories_are_equal() -> None:
    frame, price = flats()
    frame = pd.DataFrame({"zip": frame["zip"].astype(int), "area": frame["area"]})
    regressor = new(model=WITHOUT_TEXTS, task={"categories": ["zip"]}).fit(frame, price)
    assert columns_of(regressor)[0].levels == ("8000", "8010", "8020")
    whole = regressor.predict(frame)
    frame["zip"] = frame["zip"].astype(float)
    frame.loc[0, "zip"] = np.nan
    np.testing.assert_array_equal(regressor.predict(frame)[1:], whole[1:])
    frame.loc[0, "zip"] = 7
    with pytest.warns(UserWarning, match=r"column 'zip': 1 of 120 cells are not among .* such as '7'"):
        regressor.predict(frame)


@pytest.mark.slow
def test_columns_of_dtype_category_may_be_declared_otherwise() -> None:
    frame, price = flats()
    frame["zip"] = frame["zip"].cat.rename_categories(["a", "b", "c"])
    kinds = []
    for task in ({}, {"texts": ("zip",)}, {"ignore": ["zip", "time"]}):
        regressor = new(task=task).fit(frame, price)
        kinds.append({column.name: column.kind for column in columns_of(regressor)})
    assert kinds[0]["zip"] == "category"
    assert kinds[1]["zip"] == "text"
    assert kinds[2].keys() == {"area", "lift", "x_target"}


def test_reserved_names_are_changed_and_stay_distinct() -> None:
    draw, given = np.random.default_rng(0), ["Time", "time", "x_time", "GROUP", "target", "split"]
    frame, new_rows = (pd.DataFrame(draw.normal(size=(n, 6)), columns=given) for n in (NUM, 50))
    numbers = TableMachine.Config(num_centres=200, num_trees=20)
    regressor = new(model=numbers).fit(frame, frame["time"] - frame["x_time"])
    names = [column.name for column in columns_of(regressor)]
    assert names == ["x_Time", "x_x_time", "x_time", "x_GROUP", "x_target", "x_split"]
    assert regressor.score(new_rows, new_rows["time"] - new_rows["x_time"]) > 0.9


def test_categories_of_any_type_may_be_given_as_objects() -> None:
    frame, price = flats()
    frame = pd.DataFrame({"band": pd.cut(frame["area"].fillna(60), [0, 60, 90, 200]), "zip": frame["zip"]})
    regressor = new(model=TableMachine.Config(num_centres=200, num_trees=20)).fit(frame, price)
    predicted = regressor.predict(frame)
    np.testing.assert_array_equal(predicted, regressor.predict(frame.astype(object)))


@pytest.mark.parametrize("value", [torch.zeros(2), pd.Series([1.0, 2.0]), np.zeros(2), [1.0]])
def test_cells_with_several_values_are_refused(value: Any) -> None:
    frame, price = flats()
    column = pd.Series([None] * NUM, dtype=object)
    column[5] = value
    with refused(TypeError, f"X, line 6: column 'area': a value is of type {type(value).__name__}; expected a number"):
        new().fit(frame.assign(area=column.to_list()), price)


@pytest.mark.slow
def test_classes_labels_numbers_and_quantiles() -> None:
    frame, price = flats()
    dear = np.where(price > np.median(price), "dear", "cheap")
    classifier = fredholm.TableClassifier(model=SMALL, random_state=0).fit(frame, dear)
    assert classifier.classes_.tolist() == ["cheap", "dear"]
    rows, prices = flats(seed=1)
    assert classifier.score(rows, np.where(prices > np.median(price), "dear", "cheap")) > 0.85
    np.testing.assert_allclose(classifier.predict_proba(rows).sum(1), 1, rtol=1e-5)
    labels = np.stack([price > np.median(price), frame["lift"]], 1).astype(int)
    assert fredholm.TableClassifier(model=SMALL, random_state=0).fit(frame, labels).predict(rows).shape == (NUM, 2)
    several = new(quantiles=(0.1, 0.9))
    several.fit(frame, np.stack([price, -price], 1))
    low, high = np.moveaxis(several.predict_quantiles(rows), -1, 0)
    assert low.shape == (NUM, 2)
    assert 0.6 < ((low < np.stack([prices, -prices], 1)) & (np.stack([prices, -prices], 1) < high)).mean() < 0.97


@pytest.mark.slow
def test_copying_searching_and_run_folders(tmp_path: Path) -> None:
    frame, price = flats()
    regressor = new(run_dir=tmp_path / "run").fit(frame, price)
    predicted = regressor.predict(frame)
    for other in (copy.deepcopy(regressor), pickle.loads(pickle.dumps(regressor))):  # noqa: S301 - written here
        np.testing.assert_array_equal(predicted, other.predict(frame))
    unfitted: Any = clone(regressor)
    with pytest.raises(NotFittedError):
        unfitted.predict(frame)
    renamed = frame.rename(columns={"time": "x_time", "target": "x_target"})
    renamed.to_csv(tmp_path / "new.csv", index=False)
    rows = Run(tmp_path / "run").predict([tmp_path / "new.csv"])
    np.testing.assert_allclose(np.array([row["target"] for row in rows], dtype=float), predicted, rtol=1e-5)
    search = GridSearchCV(new(), {"task": [{}, {"ignore": ["area"]}]}, cv=2)
    assert search.fit(frame, price).best_params_ == {"task": {}}


def test_unset_settings_equal_those_of_the_command_line(tmp_path: Path) -> None:
    frame, price = flats()
    fredholm.TableRegressor(run_dir=tmp_path, random_state=0).fit(frame, price)
    run = Run(tmp_path)
    read: Any = run.config.task
    requested = type(read)(data=read.data, target="number", label_columns=("target",), categories=("lift", "zip"))
    assert run.config.task == requested.recommended("small")[0]
    assert read.model.num_centres == NUM


def test_columns_without_names_are_matched_by_position() -> None:
    frame, price = flats()
    some = frame[["area", "lift"]]
    array = some.to_numpy(dtype=object)
    by_name, by_order = new(model=WITHOUT_TEXTS).fit(some, price), new(model=WITHOUT_TEXTS).fit(array, price)
    predicted = by_name.predict(some)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(by_name.predict(array), predicted)
    with pytest.warns(UserWarning, match="X has feature names, but TableRegressor was fitted without"):
        np.testing.assert_array_equal(by_order.predict(some), predicted)
    numbered = pd.DataFrame({0: some["area"], 1: some["lift"]})
    counted = new(model=WITHOUT_TEXTS).fit(numbered, price)
    np.testing.assert_array_equal(counted.predict(numbered.iloc[:, ::-1]), predicted)
    with refused(ValueError, "X has the column '2', which TableRegressor was not fitted on; expected 0, 1"):
        counted.predict(numbered.rename(columns={1: 2}))


def test_arrays_of_dates_are_read_in_any_unit() -> None:
    frame, price = flats()
    days = frame[["time"]].to_numpy()
    regressors = [new(model=WITHOUT_TEXTS).fit(days.astype(f"datetime64[{unit}]"), price) for unit in ("D", "us", "ns")]
    assert all(columns_of(each)[0].kind == "date" and columns_of(each)[0].may_miss for each in regressors)
    assert len({tuple(each.predict(days)) for each in regressors}) == 1


def test_categories_may_be_of_any_type() -> None:
    frame, price = flats()
    frame = frame[["area"]].assign(area=pd.cut(frame["area"], [0.0, 60.0, 90.0, 120.0]), sold=frame["time"])
    frame["sold"] = frame["sold"].dt.to_period("Y").astype("category")
    area, sold = columns_of(new(model=WITHOUT_TEXTS).fit(frame, price))
    assert (area.kind, area.levels) == ("category", ("(0.0, 60.0]", "(60.0, 90.0]", "(90.0, 120.0]"))
    assert (sold.kind, sold.levels) == ("category", ("2025", "2026"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, "3"),
        (3.0, "3"),
        (np.float32(0.5), "0.5"),
        (1e300, "1e+300"),
        (True, "True"),
        (np.False_, "False"),
        (" a b ", "a b"),
        (None, ""),
        (float("nan"), ""),
        (pd.NA, ""),
        (pd.NaT, ""),
        (np.datetime64("NaT"), ""),
        (np.datetime64("2026-01-31"), "2026-01-31T00:00:00"),
        (np.datetime64("2026-01-31T12:00:01", "ns"), "2026-01-31T12:00:01"),
        (pd.Timestamp("2026-01-31 12:00"), "2026-01-31T12:00:00"),
        (datetime.date(2026, 1, 31), "2026-01-31"),
        (pd.Period("2026-05", "M"), "2026-05-01T00:00:00"),
        (np.timedelta64(90, "m"), "5400.0"),
        (pd.Timedelta("1 day 0.5 s"), "86400.5"),
        (datetime.timedelta(milliseconds=-1), "-0.001"),
        (datetime.time(1, 30, 0, 500_000, tzinfo=datetime.UTC), "5400.5"),
        (Decimal("1.25"), "1.25"),
        (Decimal("sNaN"), ""),
    ],
)
def test_values_are_converted_to_text_as_in_files(value: Any, expected: str) -> None:
    assert _cell(value, "X") == expected


def test_bad_inputs_are_refused() -> None:
    frame, price = flats()
    with refused(ValueError, "X has the column 'area' twice; give each a name of its own"):
        new().fit(pd.concat([frame, frame[["area"]]], axis=1), price)
    with refused(ValueError, "X has 0 rows and 5 columns; expected at least one of each"):
        new().fit(frame[:0], price[:0])
    with refused(ValueError, "X, line 4: column 'area': it contains infinity; NaN and None are missing values"):
        new().fit(frame.assign(area=[np.inf if i == 3 else 1.0 for i in range(NUM)]), price)
    with refused(TypeError, "X, line 1: column 'area': a value is of type list; expected a number, a date, a period"):
        new().fit(frame.assign(area=[[1]] * NUM), price)
    with refused(TypeError, "X is of type dict; expected a data frame of pandas or polars, or an array (n, F)"):
        new().fit({"area": [1.0] * NUM}, price)
    with refused(ValueError, "X, line 2: column 'x0': the text is no UTF-8 at character 1"):
        new().fit([["a"], ["b\ud800"], *[["c"]] * (NUM - 2)], price)
    for missing in (None, np.nan, pd.NA):
        with refused(ValueError, f"y[3] is {missing!r}, a missing value; give that example a class, or leave it out"):
            classes = np.where(price > 200, "dear", "cheap").astype(object)
            classes[3] = missing
            fredholm.TableClassifier(model=SMALL).fit(frame, classes)
    with refused(ValueError, "training values of 'target' of X and y differ by less than can be computed with"):
        new().fit(frame, 1e-300 * price)
    with refused(ValueError, "categories names 'zap', and no such column is read"):
        new(task={"categories": ["zap"]}).fit(frame, price)
    with refused(ValueError, "valid_fraction"):
        new(valid_fraction=0.2).fit(frame, price)
    with refused(TypeError, "task['class_weights'] is 'even'; expected one of 'none', 'balanced'"):
        fredholm.TableClassifier(model=SMALL, task={"class_weights": "even"}).fit(frame, frame["lift"])
    with refused(ValueError, "task has no setting 'label_columns'"):
        new(task={"label_columns": ("area",)}).fit(frame, price)
    with refused(TypeError, "model is of type CKCNN.Config; expected a configuration, TableMachine.Config"):
        new(model=CKCNN.Config()).fit(frame, price)
    regressor = new().fit(frame, price)
    with refused(ValueError, "X, line 1: column 'area': 'wide' is no finite number"):
        regressor.predict(frame.assign(area=["wide"] * NUM))
    array = new().fit(frame.to_numpy(), price)
    with refused(ValueError, "X has 4 features, but TableRegressor is expecting 5 features"):
        array.predict(frame.iloc[:, :4].to_numpy())


def test_names_of_images_are_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    drawn, bright = np.random.default_rng(0), np.arange(60) % 3 == 0
    for i, is_bright in enumerate(bright):
        pixels = drawn.integers(0, 100, (9, 8), dtype=np.uint8) + 120 * np.uint8(is_bright)
        image.fromarray(pixels).save(f"photos/{i}.png")
    photos = [Path(f"photos/{i}.png") if i % 7 else None for i in range(60)]
    frame = pd.DataFrame({"photo": photos, "noise": drawn.normal(size=60)})
    small = TableMachine.Config(num_centres=60, num_trees=5, images=ImageBank.Config(num_filters=8))
    classifier = fredholm.TableClassifier(model=small, random_state=0).fit(frame[:45], bright[:45])
    found, is_there = classifier.predict(frame[45:]), np.arange(45, 60) % 7 > 0
    assert bool((found == bright[45:])[is_there].all())
    with refused(ValueError, "X, line 1: column 'photo': there is no file none.png"):
        classifier.predict(pd.DataFrame({"photo": ["none.png"], "noise": [0.0]}))


def test_names_of_series_are_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rises = np.arange(40) % 3 == 0
    for i, does in enumerate(rises):
        np.save(f"{i}.npy", np.where(does, 1.0, -1.0) * np.arange(12 + i % 4) / 9 + np.sin(np.arange(12 + i % 4) + i))
    frame = pd.DataFrame(
        {"recording": [f"{i}.npy" if i % 7 else None for i in range(40)], "noise": np.sin(np.arange(40))}
    )
    small = TableMachine.Config(num_centres=60, num_trees=0, series=FilterBank.Config(num_thresholds=2, num_groups=1))
    classifier = fredholm.TableClassifier(model=small, random_state=0).fit(frame[:30], rises[:30])
    found, is_there = classifier.predict(frame[30:]), np.arange(30, 40) % 7 > 0
    assert bool((found == rises[30:])[is_there].all())
