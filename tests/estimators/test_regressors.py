import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score

from fredholm import SeriesRegressor
from fredholm.estimators import Regressor
from fredholm.models import FilterBank
from fredholm.training import Run
from tests.estimators.cases import CASES, NUM, Case, of_two
from tests.refusals import refused

CLASS = np.arange(NUM) % 2
NUMBERS = 1000 - 30 * CLASS + np.random.default_rng(1).normal(size=NUM)
PAIRS = np.stack([NUMBERS, 1e-3 * CLASS], axis=1)
BRIEF = {"epochs": 1}
OF_NUMBERS = [name for name, case in CASES.items() if case().regressor is not None]


@pytest.fixture(scope="module", params=OF_NUMBERS)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(scope="module")
def fitted(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Regressor[Any]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return case.new_regressor(quantiles=(0.1, 0.5, 0.9), run_dir=folder).fit(case.X, PAIRS)


@pytest.mark.slow
def test_it_learns_several_numbers_in_their_units(case: Case, fitted: Regressor[Any]) -> None:
    predicted = fitted.predict(case.X)
    assert (predicted.shape, predicted.dtype) == ((NUM, 2), np.float64)
    assert fitted.score(case.X, PAIRS) == pytest.approx(r2_score(PAIRS, predicted))
    assert np.min(r2_score(PAIRS, predicted, multioutput="raw_values")) > 0.5
    assert "mean_absolute_error" in fitted.valid_metrics_
    assert is_regressor(fitted)


def test_quantiles_surround_the_predicted_number(case: Case, fitted: Regressor[Any]) -> None:
    predicted = fitted.predict_quantiles(case.X)
    assert predicted.shape == (NUM, 2, 3)
    assert (np.diff(predicted) >= 0).all()
    np.testing.assert_array_equal(predicted[..., 1], fitted.predict(case.X))


def test_a_copy_predicts_the_same(case: Case, fitted: Regressor[Any]) -> None:
    other = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - written here
    assert (other.predict_quantiles(case.X) == fitted.predict_quantiles(case.X)).all()
    copied: Any = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    assert copied.quantiles == (0.1, 0.5, 0.9)
    for method in ("predict", "predict_quantiles"):
        with pytest.raises(NotFittedError):
            getattr(copied, method)(case.X)


def test_a_run_folder_can_be_used_by_the_command_line(fitted: Regressor[Any]) -> None:
    assert fitted.run_dir is not None
    run = Run(Path(fitted.run_dir), device="cpu")
    assert run.evaluate("valid") == pytest.approx(fitted.valid_metrics_)
    assert run.task.facts == fitted.trained_.task.facts


@of_two(OF_NUMBERS)
def test_predictions_have_the_form_of_y(case: Case) -> None:
    whole_numbers = 5 - 4 * CLASS
    one, column = (
        case.new_regressor(training=BRIEF).fit(case.X, y).predict(case.X)
        for y in (whole_numbers.tolist(), whole_numbers[:, None].astype(float))
    )
    assert one.shape == (NUM,)
    np.testing.assert_array_equal(one[:, None], column)


@of_two(OF_NUMBERS)
def test_the_seed_decides_the_model(case: Case) -> None:
    first, second, other = (
        case.new_regressor(random_state=seed, training=BRIEF).fit(case.X, NUMBERS).predict(case.X) for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_quantiles_are_refused_if_none_were_fitted(case: Case) -> None:
    estimator = case.new_regressor(training=BRIEF).fit(case.X, NUMBERS)
    with refused(ValueError, f"{type(estimator).__name__} was fitted without quantiles; pass some, such as quantiles="):
        estimator.predict_quantiles(case.X)


@of_two(OF_NUMBERS)
def test_cross_validation_works(case: Case) -> None:
    assert np.isfinite(cross_val_score(case.new_regressor(training=BRIEF), case.X, NUMBERS, cv=2)).all()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed, but the target y is None; give each example a number"),
        (NUMBERS[:-1], f"inconsistent numbers of samples: [{NUM}, {NUM - 1}]"),
        (np.full(NUM, 7), "target of y is 7 in all examples; expected numbers that differ"),
        (np.stack([NUMBERS, np.ones(NUM)], axis=1), "target_1 of y is 1 in all examples"),
        (["a", "b"] * (NUM // 2), "could not convert string to float"),
        ([None, {}] * (NUM // 2), "y is no array of numbers"),
        (np.arange(NUM).astype("datetime64[D]"), "y is datetime64[D]; expected numbers, such as days since a date"),
        (np.where(CLASS, np.nan, NUMBERS), "Input y contains NaN"),
        (np.where(CLASS, np.inf, NUMBERS), "Input y contains infinity"),
        (np.zeros((NUM, 2, 2)), "Found array with dim 3"),
    ],
)
def test_bad_numbers_are_refused(case: Case, y: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - matched below
        case.new_regressor().fit(case.X, y)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("quantiles", "kind", "message"),
    [
        (0.5, TypeError, "quantiles is 0.5; expected numbers above 0 and below 1, increasing, such as"),
        ("abc", TypeError, "quantiles is 'abc'"),
        ((0.9, 0.1), ValueError, "quantiles are (0.9, 0.1); expected numbers above 0 and below 1, increasing"),
        ((0.0, 0.5), ValueError, "quantiles are (0.0, 0.5)"),
    ],
)
def test_bad_quantiles_are_refused(case: Case, quantiles: Any, kind: type, message: str) -> None:
    with refused(kind, message):
        case.new_regressor(quantiles=quantiles).fit(case.X, NUMBERS)


def test_a_single_example_is_refused(case: Case) -> None:
    with refused(ValueError, "y has 1 sample; expected at least 2"):
        case.new_regressor().fit(case.X[:1], NUMBERS[:1])


@pytest.mark.parametrize("task", [{"bin": 4.0}, {"permute_seed": 1}])
def test_series_are_prepared_as_in_training(task: dict[str, float], tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    X, y = drawn.normal(size=(12, 20)), drawn.normal(size=12)
    model = FilterBank.Config(num_groups=1, num_lags=3)
    regressor = SeriesRegressor(task=task, model=model, run_dir=tmp_path / "run", random_state=0).fit(X, y)
    np.savez(tmp_path / "new.npz", values=X[..., None])
    rows = Run(tmp_path / "run").predict([tmp_path / "new.npz"])
    np.testing.assert_allclose(regressor.predict(X), [float(row["target"]) for row in rows], rtol=1e-6)
