import copy
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import fredholm
from fredholm.estimators import Classifier
from fredholm.tasks.schedule import Preset
from fredholm.training import InterruptedRunError, Run, TrainingConfig, seed_everything
from fredholm.training import run as run_module
from tests.estimators.cases import CASES, NUM, Case, of_two
from tests.refusals import refused

WORDS = np.array(["odd", "even"] * (NUM // 2))
BRIEF = {"epochs": 1}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture(scope="module")
def fitted(case: Case) -> Classifier[Any]:
    return case.new().fit(case.X, WORDS)


def test_it_learns(case: Case, fitted: Classifier[Any]) -> None:
    assert fitted.score(case.X, WORDS) >= 0.95
    assert fitted.valid_metrics_["accuracy"] >= 0.75
    assert fitted.classes_.tolist() == ["even", "odd"]


def test_probabilities_are_in_the_order_of_the_classes(case: Case, fitted: Classifier[Any]) -> None:
    predicted = fitted.predict_proba(case.X)
    assert predicted.shape == (NUM, 2)
    np.testing.assert_allclose(predicted.sum(1), 1, rtol=1e-5)
    assert (fitted.predict(case.X) == fitted.classes_[predicted.argmax(1)]).all()


def test_an_example_is_predicted_independently_of_the_others(case: Case, fitted: Classifier[Any]) -> None:
    some = [5, 40, 0]
    np.testing.assert_allclose(
        fitted.predict_proba([case.X[i] for i in some]), fitted.predict_proba(case.X)[some], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy])  # noqa: S301 - trusted
def test_a_copy_predicts_the_same(case: Case, fitted: Classifier[Any], copied: Any) -> None:
    state = torch.get_rng_state()
    other = copied(fitted)
    assert torch.equal(state, torch.get_rng_state())
    assert (other.predict_proba(case.X) == fitted.predict_proba(case.X)).all()
    assert other.get_params().keys() == fitted.get_params().keys()


def test_weights_are_pickled_as_safetensors(fitted: Classifier[Any]) -> None:
    state = fitted.trained_.__getstate__()
    assert isinstance(state["weights"], bytes)
    assert b"torch._utils" not in pickle.dumps(state)


def test_constructor_parameters_are_stored_unchanged(case: Case) -> None:
    given = {"model": case.other_model, "task": {"split_seed": 1}, "training": {"epochs": 3}, "valid_fraction": 0.3}
    given |= {"preset": "base"} | {"random_state": 7, "run_dir": "somewhere", "verbose": True}
    estimator = case.kind(**given)
    assert all(estimator.get_params()[name] is value for name, value in given.items())
    copied: Any = clone(estimator)
    assert copied.get_params() == given
    assert not hasattr(copied, "classes_")
    assert estimator.set_params(verbose=False).get_params()["verbose"] is False
    assert case.kind.__name__ in repr(estimator)
    with pytest.raises(ValueError, match="Invalid parameter 'epochs'"):
        estimator.set_params(epochs=3)


def test_predicting_before_fit_is_refused(case: Case) -> None:
    for method in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError):
            getattr(case.new(), method)(case.X)


@pytest.mark.parametrize("case", ["images", "series"], indirect=True)
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.arange(NUM) % 2 == 0, [False, True]),
        ([10, 9] * (NUM // 2), [9, 10]),
        ([2.0, -1.0] * (NUM // 2), [-1.0, 2.0]),
        (WORDS.astype(object), ["even", "odd"]),
    ],
)
def test_classes_keep_their_type(case: Case, labels: Any, classes: list[Any]) -> None:
    estimator = case.new(training=BRIEF).fit(case.X, labels)
    assert estimator.classes_.tolist() == classes
    assert estimator.predict(case.X).dtype == np.asarray(labels).dtype


@pytest.mark.parametrize("case", ["images", "points"], indirect=True)
def test_classes_that_the_task_orders_differently_are_not_mixed_up(case: Case) -> None:
    labels = np.array(["10", "9"] * (NUM // 2))  # 10 comes first as text, 9 as a number
    assert case.new().fit(case.X, labels).score(case.X, labels) >= 0.95


@of_two(CASES)
def test_the_seed_decides_the_model_and_global_generators_stay_unchanged(case: Case) -> None:
    def compute(seed: int) -> np.ndarray:
        return case.new(random_state=seed, training=BRIEF).fit(case.X, WORDS).predict_proba(case.X)

    def drawn() -> tuple[float, ...]:
        return random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002 - the global generator is meant

    seed_everything(1)
    expected = drawn()
    seed_everything(1)
    first = compute(0)
    assert drawn() == expected
    assert (compute(0) == first).all()
    assert (compute(1) != first).any()


@pytest.mark.parametrize("case", ["images", "series"], indirect=True)
def test_without_a_seed_every_fit_differs(case: Case) -> None:
    predicted = [case.new(random_state=None, training=BRIEF).fit(case.X, WORDS).predict_proba(case.X) for _ in range(2)]
    assert (predicted[0] != predicted[1]).any()
    drawn = [np.random.RandomState(3) for _ in range(2)]
    predicted = [case.new(random_state=each, training=BRIEF).fit(case.X, WORDS).predict_proba(case.X) for each in drawn]
    assert (predicted[0] == predicted[1]).all()


def test_a_run_folder_can_be_used_by_the_command_line(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    estimator = case.new(run_dir=folder, training=BRIEF).fit(case.X, WORDS)
    assert capsys.readouterr().out == ""
    run = Run(folder, device="cpu")
    assert run.evaluate("valid") == pytest.approx(estimator.valid_metrics_)
    for name, tensor in run.model().state_dict().items():
        assert torch.equal(tensor, estimator.trained_.model.state_dict()[name]), name
    with refused(ValueError, f"run_dir {folder} is not empty; pass a new folder"):
        estimator.fit(case.X, WORDS)


@pytest.mark.parametrize("case", ["series"], indirect=True)
def test_a_folder_whose_run_failed_can_be_reused(case: Case, tmp_path: Path) -> None:
    with refused(ValueError, "epochs is -1"):
        case.new(run_dir=tmp_path, training={"epochs": -1}).fit(case.X, WORDS)
    case.new(run_dir=tmp_path, training=BRIEF).fit(case.X, WORDS)


@pytest.mark.parametrize("case", ["series"], indirect=True)
def test_progress_is_shown_if_verbose(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.new(verbose=True, training=BRIEF).fit(case.X, WORDS)
    assert "epoch 1/1" in capsys.readouterr().out


@of_two(CASES)
def test_without_a_validation_split_all_examples_are_used_for_training(case: Case, tmp_path: Path) -> None:
    estimator = case.new(valid_fraction=0, run_dir=tmp_path, training=BRIEF).fit(case.X, WORDS)
    assert estimator.valid_metrics_ == {}
    task = Run(tmp_path, device="cpu").task
    assert (task.num_train, task.num_held_out("valid"), task.num_held_out("test")) == (NUM, 0, 0)


def test_settings_reach_the_run(case: Case, tmp_path: Path) -> None:
    training = {"batch_size": 5, "epochs": 1}
    case.new(run_dir=tmp_path, model=case.other_model, valid_fraction=0.25, training=training).fit(case.X, WORDS)
    config: Any = Run(tmp_path, device="cpu").config
    assert (config.seed, config.training.batch_size, config.task.valid_fraction) == (0, 5, 0.25)
    assert config.task.model == case.other_model
    assert config.training.tensorboard is False


def test_the_default_for_series_is_fitted_to_all_examples(tmp_path: Path) -> None:
    case = CASES["series"]()
    estimator = case.kind(run_dir=tmp_path, random_state=0).fit(case.X, WORDS)
    assert (estimator.valid_metrics_, Run(tmp_path, device="cpu").task.num_train) == ({}, NUM)
    assert estimator.score(case.X, WORDS) == 1


def test_explicit_settings_stay_even_if_they_equal_a_default(tmp_path: Path) -> None:
    given = {"position_frequencies": 64, "split_seed": 0}
    case = CASES["images"]()
    case.kind(task=given, training={"epochs": 1}, run_dir=tmp_path).fit(case.X, WORDS)
    task: Any = Run(tmp_path, device="cpu").config.task
    assert task.position_frequencies == 64


def test_averaging_follows_an_explicit_batch_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise InterruptedRunError(2, "interrupted")

    monkeypatch.setattr(run_module.Trainer, "fit", interrupted)
    case, size = CASES["images"](), TrainingConfig().batch_size
    with pytest.raises(KeyboardInterrupt):
        case.kind(training={"epochs": 299, "batch_size": size}, run_dir=tmp_path).fit(case.X, WORDS)
    training = Run(tmp_path, device="cpu").config.training
    assert training.batch_size == size
    assert training.ema_decay == pytest.approx(1 - 50 / 299, abs=1e-4)  # one step per epoch


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"training": {"epoch": 3}}, ValueError, "training has no setting 'epoch'; the settings are epochs, "),
        ({"task": {"patches": 3}}, ValueError, "task has no setting 'patches'; the settings are "),
        ({"task": {"data": "a"}}, ValueError, "task has no setting 'data'"),
        ({"task": {"target": "class"}}, ValueError, "task has no setting 'target'"),
        ({"task": {"test_fraction": 0.1}}, ValueError, "task has no setting 'test_fraction'"),
        ({"task": [1]}, TypeError, "task is of type list; expected a mapping of settings by name, or None"),
        ({"preset": "large"}, ValueError, "preset is 'large'; expected one of small, base"),
        ({"random_state": -1}, ValueError, "seed is -1"),
        ({"random_state": "a"}, ValueError, "cannot be used to seed"),
        ({"valid_fraction": 1.0}, ValueError, "valid_fraction"),
        ({"valid_fraction": "a"}, TypeError, "valid_fraction must be a number; got 'a'"),
        ({"run_dir": 3}, TypeError, "run_dir is 3; expected a folder, or None to keep no run"),
        ({"model": "itnet"}, TypeError, "model is of type str; expected a configuration, "),
    ],
)
def test_bad_settings_are_refused(case: Case, settings: dict[str, Any], kind: type, message: str) -> None:
    with refused(kind, message):
        case.new(**settings).fit(case.X, WORDS)


def test_models_of_other_tasks_are_refused(case: Case) -> None:
    with refused(TypeError, "expected a configuration, "):
        case.new(model=case.foreign_model).fit(case.X, WORDS)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed, but the target y is None"),
        (WORDS[:-1], f"inconsistent numbers of samples: [{NUM}, {NUM - 1}]"),
        (["same"] * NUM, "y has only one class, same; expected at least 2"),
        (np.linspace(0, 1, NUM), "Unknown label type: continuous"),
        ([1.0, np.nan] * (NUM // 2), "contains NaN"),
        (np.arange(3 * NUM).reshape(NUM, 3), "y should be a 1d array"),
        (np.array([1, "a"] * (NUM // 2), dtype=object), "of several kinds"),
        (["a", " a"] * (NUM // 2), "the classes [' a', 'a'] have equal texts"),
        (["a", ""] * (NUM // 2), "a class is '', an empty text; give it a name"),
    ],
)
def test_bad_classes_are_refused(case: Case, y: Any, message: str) -> None:
    with refused(ValueError, message):
        case.new().fit(case.X, y)


@pytest.mark.parametrize("case", ["series"], indirect=True)
def test_classes_in_a_column_are_accepted_with_a_warning(case: Case) -> None:
    with pytest.warns(DataConversionWarning, match="column-vector"):
        case.new(training=BRIEF).fit(case.X, WORDS[:, None])


@of_two(CASES)
def test_cross_validation_and_pipelines_work(case: Case) -> None:
    assert np.isfinite(cross_val_score(case.new(training=BRIEF), case.X, WORDS, cv=2)).all()
    pipeline = make_pipeline(FunctionTransformer(), case.new(training=BRIEF))
    assert pipeline.fit(case.X, WORDS).predict(case.X).shape == (NUM,)


def test_an_interruption_raises_keyboard_interrupt(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise InterruptedRunError(2, "interrupted; step 3 of 9 is saved")

    monkeypatch.setattr(run_module.Trainer, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt, match="step 3 of 9"):
        case.new().fit(case.X, WORDS)


@pytest.mark.parametrize("preset", ["small", pytest.param("base", marks=pytest.mark.slow)])
def test_unset_settings_equal_those_of_the_command_line(case: Case, preset: Preset, tmp_path: Path) -> None:
    at_once = (fredholm.SeriesClassifier, fredholm.TextClassifier, fredholm.GraphClassifier)
    brief = {"epochs": 0 if case.kind in at_once else 1}
    estimator = case.kind(preset=preset, run_dir=tmp_path, training=brief).fit(case.X, WORDS)
    run = Run(tmp_path, device="cpu")
    read: Any = run.config.task
    columns = {"target": read.target, "label_columns": read.label_columns} if hasattr(read, "label_columns") else {}
    requested = type(read)(data=read.data, **columns)
    task, schedule, _ = requested.recommended(preset, epochs=brief["epochs"] or None)
    assert run.config.task == task
    expected = schedule.adjusted(epochs=1).settings if brief["epochs"] else schedule.settings
    assert run.config.training == TrainingConfig(**expected, tensorboard=False)
    assert estimator.predict(case.X).shape == (NUM,)


@pytest.mark.slow
def test_the_error_for_missing_scikit_learn_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import fredholm; from fredholm import *\n"
        "try: fredholm.ImageClassifier\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'estimators need scikit-learn; get it with: pip install "fredholm[data]"'


def test_the_package_exports_the_estimators_and_refuses_unknown_names() -> None:
    kinds = {
        f"{kind_of_input}{kind}"
        for kind_of_input in ("Image", "Series", "Text", "Point", "Graph")
        for kind in ("Classifier", "Regressor")
    }
    kinds |= {"SeriesForecaster", "OperatorRegressor"}
    assert kinds <= set(dir(fredholm))
    assert all(getattr(fredholm, name).__name__ == name for name in kinds)
    with pytest.raises(AttributeError, match="has no attribute 'Classifiers'"):
        fredholm.Classifiers  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]
