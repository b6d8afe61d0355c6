import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score

from fredholm.domains import Grid
from fredholm.estimators import OperatorRegressor
from fredholm.models import NeuralOperator, SpectralConfig
from fredholm.training import Run
from tests.refusals import refused

N = 24
SMALL = NeuralOperator.Config(embed_dim=8, depth=1, kernel=SpectralConfig(num_waves_per_axis=3))
SETTINGS: dict[str, Any] = {"model": SMALL, "random_state": 0, "training": {"epochs": 1, "batch_size": 8}}


def waves(*shape: int, pos: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Waves along the first axis, and the same waves shifted by a quarter of their length."""
    phase = np.random.default_rng(0).uniform(0, 6, (N, 1))
    at = Grid(*shape).pos.numpy() if pos is None else pos
    given, targets = (2 + np.sin(2 * np.pi * at[:, 0] + phase + shift) for shift in (0, np.pi / 2))
    sizes = shape if pos is None else (len(pos),)
    return given.reshape(N, *sizes), targets.reshape(N, *sizes)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> OperatorRegressor:
    training = {"epochs": 30, "batch_size": 8, "learning_rate": 2e-2, "evaluate_every": 100}
    folder = tmp_path_factory.mktemp("runs") / "run"
    return OperatorRegressor(**{**SETTINGS, "training": training, "run_dir": folder}).fit(*waves(12))


def test_it_learns_and_its_score_is_r2(fitted: OperatorRegressor) -> None:
    X, y = waves(12)
    predicted = fitted.predict(X)
    assert (predicted.shape, predicted.dtype) == ((N, 12), np.float64)
    assert fitted.score(X, y) == pytest.approx(r2_score(y, predicted, multioutput="variance_weighted"))
    assert fitted.score(X, y) > 0.8
    assert "relative_l2" in fitted.valid_metrics_
    assert is_regressor(fitted)


def test_missing_samples_are_left_out_of_the_score(fitted: OperatorRegressor) -> None:
    X, y = waves(12)
    y[::3, 2], y[1:, 5], y[:, 7] = np.nan, np.nan, np.nan
    predicted, often = fitted.predict(X), np.arange(N) % 3
    error = np.nansum((y - predicted) ** 2, axis=0)
    error[5] = 0  # only one function has a sample here, so that its variance is 0
    spread = np.nansum((y - np.where(np.isnan(y), 0, y).sum(0) / (~np.isnan(y)).sum(0).clip(1)) ** 2)
    assert fitted.score(X, y) == pytest.approx(1 - error.sum() / spread)
    repeated = fitted.score(X.repeat(often, axis=0), y.repeat(often, axis=0))
    assert fitted.score(X, y, sample_weight=often) == pytest.approx(repeated)
    with refused(ValueError, "all of y is missing; expected some samples to compare with"):
        fitted.score(X, y * np.nan)
    with refused(ValueError, "inconsistent numbers of samples"):
        fitted.score(X, y, sample_weight=often[1:])


def test_it_predicts_on_other_grids_and_at_any_points(fitted: OperatorRegressor) -> None:
    X, y = waves(24)
    assert fitted.predict(X).shape == (N, 24)
    assert fitted.score(X, y) > 0.8
    places = np.array([[0.125], [0.875], [0.5]])
    assert fitted.predict(X, at=places).shape == (N, 3)
    np.testing.assert_array_equal(fitted.predict(X, at=Grid(24).pos.numpy()), fitted.predict(X))


def test_a_function_is_predicted_independently_of_the_others(fitted: OperatorRegressor) -> None:
    X, _ = waves(12)
    np.testing.assert_allclose(fitted.predict(X[[5, 0]]), fitted.predict(X)[[5, 0]], rtol=1e-5)


def test_a_copy_predicts_the_same_and_a_clone_is_not_fitted(fitted: OperatorRegressor) -> None:
    X, _ = waves(12)
    other = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - written here
    assert (other.predict(X) == fitted.predict(X)).all()
    copied: Any = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(X)


def test_a_run_folder_can_be_used_by_the_command_line(fitted: OperatorRegressor, tmp_path: Path) -> None:
    assert fitted.run_dir is not None
    run = Run(Path(fitted.run_dir), device="cpu")
    assert run.evaluate("valid") == pytest.approx(fitted.valid_metrics_)
    X, _ = waves(12)
    np.savez(tmp_path / "new.npz", values=X[:1])
    rows = run.predict([tmp_path / "new.npz"])
    np.testing.assert_allclose([float(row["value"]) for row in rows], fitted.predict(X[:1])[0], rtol=1e-5)


def test_channels_are_the_last_axis() -> None:
    X, y = waves(4, 6)
    two = OperatorRegressor(num_axes=2, **SETTINGS).fit(np.stack([X, -X], axis=-1), y)
    assert two.predict(np.stack([X, -X], axis=-1)).shape == (N, 4, 6)
    both = OperatorRegressor(num_axes=2, **SETTINGS).fit(X, np.stack([y, -y, y], axis=-1))
    assert both.predict(X).shape == (N, 4, 6, 3)
    assert both.predict(X, at=[[0.5, 0.5]]).shape == (N, 1, 3)
    assert OperatorRegressor(**SETTINGS).fit(X, y).predict(X).shape == (N, 4, 6)
    with refused(ValueError, "X has 2 channels; OperatorRegressor was fitted on 1"):
        both.predict(np.stack([X, X], axis=-1))


def test_predictions_stay_on_the_grid_of_the_targets() -> None:
    estimator = OperatorRegressor(**SETTINGS).fit(waves(12)[0], waves(7)[1])
    assert estimator.predict(waves(12)[0]).shape == estimator.predict(waves(30)[0]).shape == (N, 7)


def test_functions_at_scattered_points() -> None:
    drawn = np.random.default_rng(3)
    pos, target_pos = drawn.uniform(2, 9, (15, 2)), drawn.uniform(2, 9, (5, 2))
    X, y = waves(pos=pos)[0], waves(pos=target_pos)[1]
    estimator = OperatorRegressor(pos=pos, target_pos=target_pos, **SETTINGS).fit(X, y)
    assert estimator.predict(X).shape == (N, 5)
    assert OperatorRegressor(pos=pos, **SETTINGS).fit(X, waves(pos=pos)[1]).predict(X, at=target_pos).shape == (N, 5)
    onto = OperatorRegressor(target_pos=target_pos / 9, **SETTINGS).fit(waves(4, 4)[0], y)
    assert onto.predict(waves(5, 5)[0]).shape == (N, 5)
    with refused(ValueError, "X has shape (24, 4, 4); expected (n, 15) or (n, 15, channels), a value a point"):
        estimator.predict(waves(4, 4)[0])


def test_nan_values_count_as_missing_samples() -> None:
    X, y = waves(12)
    X[::2, 3], y[1, 5] = np.nan, np.nan
    assert np.isfinite(OperatorRegressor(**SETTINGS).fit(X, y).predict(X)).all()


def test_the_seed_decides_the_model() -> None:
    X, y = waves(12)
    first, second, other = (
        OperatorRegressor(**{**SETTINGS, "random_state": seed}, task={"regression": 0}).fit(X, y).predict(X)
        for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_cross_validation_works() -> None:
    X, y = waves(12)
    estimator: Any = OperatorRegressor(**SETTINGS)
    assert np.isfinite(cross_val_score(estimator, X, y, cv=2)).all()


@pytest.mark.parametrize(
    ("settings", "X", "y", "message"),
    [
        ({}, waves(12)[0], None, "requires y to be passed, but the target y is None; give each function another"),
        ({}, np.zeros(5), np.zeros(5), "X has shape (5,), a grid of 0 axes; expected 1, 2 or 3"),
        ({}, [["a"]], [["a"]], "X is no array of numbers"),
        ({}, np.zeros((3, 4)), 1j * np.ones((3, 4)), "y is no array of numbers: it is complex128; pass real parts and"),
        ({"pos": [[0.0], [1j]]}, np.zeros((3, 2)), np.zeros((3, 2)), "pos is no array of numbers: it is complex128"),
        ({}, np.full((3, 4), np.inf), np.zeros((3, 4)), "X contains infinity"),
        ({}, np.zeros((3, 4)), np.zeros((2, 4)), "inconsistent numbers of samples: [3, 2]"),
        ({}, np.zeros((3, 4)), np.zeros((3, 4, 2, 2)), "y has shape (3, 4, 2, 2); expected (n, H) or (n, H, channels)"),
        ({}, np.full((3, 4), np.nan), np.zeros((3, 4)), "X and y, function 0: has no samples"),
        (
            {},
            np.zeros((3, 4, 1)),
            np.zeros((3, 4)),
            "X has shape (3, 4, 1), a grid with an axis of one point; drop the axis; pass num_axes=1 if it is of chan",
        ),
        ({"num_axes": 4}, np.zeros((3, 4)), np.zeros((3, 4)), "a grid of 4 axes"),
        ({"num_axes": 1, "pos": [[0.0]]}, np.zeros((3, 1)), np.zeros((3, 1)), "num_axes=1 has no effect with pos"),
        ({"pos": [0.0, 1.0]}, np.zeros((3, 2)), np.zeros((3, 2)), "pos has shape (2,); expected finite coordinates"),
        ({"pos": [[0.0], [1.0]]}, np.zeros((3, 4)), np.zeros((3, 4)), "X has shape (3, 4); expected (n, 2)"),
        ({"target_pos": [[0.0, 1.0]]}, np.zeros((3, 4)), np.zeros((3, 1)), "hold 3 functions of 2 coordinates"),
    ],
)
def test_inputs_that_are_not_functions_are_refused(settings: dict[str, Any], X: Any, y: Any, message: str) -> None:
    with refused(ValueError, message):
        OperatorRegressor(**SETTINGS, **settings).fit(X, y)


def test_bad_query_points_and_models_are_refused(fitted: OperatorRegressor) -> None:
    X, y = waves(12)
    with refused(ValueError, "at has points of 2 coordinates; OperatorRegressor was fitted on 1"):
        fitted.predict(X, at=[[0.0, 1.0]])
    with refused(ValueError, "y has shape (24, 11); expected (24, 12)"):
        fitted.score(X, y[:, 1:])
    with refused(ValueError, "task has no setting 'answer'"):
        OperatorRegressor(task={"answer": 3}).fit(X, y)
    with refused(TypeError, "model is of type str; expected a configuration"):
        OperatorRegressor(model="itnet").fit(X, y)
