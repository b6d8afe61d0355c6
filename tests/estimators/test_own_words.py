"""Messages of an estimator name the arguments of the user, and no temporary files of the estimator."""

import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.estimators import ImageClassifier, OperatorRegressor, SeriesForecaster, TextClassifier
from fredholm.tasks import ImageLearning
from fredholm.training import DivergedError
from tests.refusals import refused

LABELS = [0, 1] * 9
IMAGES = (np.arange(18 * 64).reshape(18, 8, 8) * 7 % 251).astype(np.uint8)
WAVES = np.sin(np.arange(18 * 20.0)).reshape(18, 20)
TASK = {"patch_size": 4, "position_frequencies": 2}


def images(**settings: Any) -> None:
    ImageClassifier(task=TASK, **settings).fit(IMAGES, LABELS)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (
            lambda: SeriesForecaster(horizon=30).fit(WAVES),
            "X: the training part of the series '0' has 20 of its 20 samples; expected",
        ),
        (lambda: OperatorRegressor().fit(WAVES[:1], WAVES[:1]), "X and y: too few examples to choose by"),
        (lambda: TextClassifier(task={"split_by": "time"}).fit(["a b", "c"] * 9, LABELS), "has no effect with X and y"),
    ],
)
def test_an_error_names_the_arrays(fit: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        fit()
    assert "fredholm-" not in str(caught.value)


def test_a_warning_names_the_arrays_and_is_raised_at_once() -> None:
    with pytest.warns(UserWarning, match="training sentences of X and y have more than 8 tokens") as caught:
        TextClassifier(task={"context": 8}).fit(["a b c d e f g h i j k", "l m n o p q r s t u"] * 9, LABELS)
    assert not [each for each in caught if "fredholm-" in str(each.message)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="training sentences of X and y have"):
            TextClassifier(task={"context": 8}).fit(["a b c d e f g h i j k", "l m n o p q r s t u"] * 9, LABELS)


def test_without_a_run_folder_messages_do_not_speak_of_saved_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(DivergedError, "the loss is ", " at step ", "(epoch 0); try a lower learning_rate"):
        images(training={"learning_rate": 1e30})
    original = ImageLearning.train_batch_rows

    def stopped_by_signal(*given: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return original(*given)

    monkeypatch.setattr(ImageLearning, "train_batch_rows", stopped_by_signal)
    with pytest.raises(KeyboardInterrupt, match=r"^training was interrupted: interrupted$"):
        images()


def test_errors_in_files_of_a_temporary_run_are_reported_without_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(config: Any, folder: Path, **settings: Any) -> None:
        wrong = folder / "config.json"
        raise ValueError(f"{wrong}: run.seed is 1.5; expected int; {folder}: put it back; a copy is kept in {folder}")

    monkeypatch.setattr("fredholm.estimators.estimator.train", refusing)
    with pytest.raises(ValueError, match=r"^config.json: run.seed is 1.5; expected int; put it back$"):
        images()


def test_with_a_run_folder_messages_name_its_files(tmp_path: Path) -> None:
    with refused(DivergedError, f"the batch is saved in {tmp_path / 'non_finite_batch.safetensors'}; try a lower"):
        images(training={"learning_rate": 1e30}, run_dir=tmp_path)


def test_a_full_disk_is_reported_with_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is temporary, but a user has to know where space is needed."""

    def full(*given: Any, **settings: Any) -> None:
        raise OSError(28, "No space left on device", str(given[1]))

    monkeypatch.setattr("fredholm.estimators.estimator.train", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tempfile.gettempdir()}/fredholm-"):
        images()
