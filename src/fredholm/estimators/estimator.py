"""The base class of all estimators: scikit-learn's interface to a run."""

import contextlib
import dataclasses
import numbers
import re
import tempfile
import warnings
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast, final, get_args, get_type_hints

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from fredholm.storage.tensors import model_tensors
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.schedule import Preset
from fredholm.tasks.task import SplitTask, Task
from fredholm.training.batches import LostWorkerError
from fredholm.training.config import TrainingConfig
from fredholm.training.interruption import InterruptedRunError
from fredholm.training.progress import muted
from fredholm.training.random_state import random_state as global_random_state
from fredholm.training.random_state import restore_random_state
from fredholm.training.run import Run, train
from fredholm.training.storage.run_folder import DATA, RunFolder
from fredholm.training.trainer import DivergedError

from .setting_types import check_types
from .trained_model import TrainedModel


# its __init__ has every argument by name, as scikit-learn reads them
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Estimator(BaseEstimator, ABC):
    """Base class of estimators: a task on arrays.

    Settings that are not given follow from the data, by the rules of `fredholm train TASK DATA`.

    Args:
        preset: compute budget: "small", for a CPU, or "base", for a GPU.
        model: configuration of a model of the task, used unchanged; None: the task's own model, sized for the data.
        task: further settings of the task by name, as a mapping; see the task's `Config`.
        training: settings of `TrainingConfig` by name, as a mapping, in place of those that suit the data.
        valid_fraction: share of the examples that is not trained on but chooses the best step; 0: no validation part,
            and the last step is used. None: the task's own.
        random_state: randomness of the initial weights, the order of the examples, augmentation and dropout; an integer
            is the seed of a run by `fredholm train --seed`. The validation part depends on X and y alone.
        run_dir: a new or empty folder for the run, with its data; `fredholm predict` and `evaluate` read it.
            None: the run is not kept.
        verbose: whether to show progress.

    Attributes:
        trained_: the `TrainedModel`; `trained_.model` is the module.
        valid_metrics_: metrics on the validation part by name; empty without one.
    """

    _task: ClassVar[type[SplitTask[Any]]]
    _decided: ClassVar[tuple[str, ...]] = ("data", "model", "test_fraction", "valid_fraction")
    """Settings of the task that are not allowed in `task`: they follow from X and y, or are parameters."""
    _given_data: ClassVar[str] = "X and y"
    """Name of the data in messages."""

    preset: Preset = "small"
    model: Any = None
    task: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    valid_fraction: float | None = None
    random_state: int | np.random.RandomState | None = None
    run_dir: str | Path | None = None
    verbose: bool = False

    @final
    def __sklearn_is_fitted__(self) -> bool:
        """Whether the last `fit` finished."""
        return hasattr(self, "trained_")

    @final
    def _forget(self) -> None:
        """Drops the fitted model, so that a failed `fit` does not leave a mixture of two."""
        vars(self).pop("trained_", None)

    @final
    def _learn(self, write: Callable[[Path], dict[str, Any]]) -> None:
        """Trains a new model.

        Args:
            write: writes the training set to an empty folder, and returns the task settings, among them `data`, that
                give its place and the target.

        Raises:
            ValueError: settings do not fit, or `run_dir` is not empty.
            TypeError: a setting has the wrong type.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is saved there.
        """
        seed = _seed(self.random_state)
        with self._folder() as folder, _keeping_global_randomness():
            written = write(folder / DATA)
            with contextlib.nullcontext() if self.verbose else muted():
                config = self._run_config(written, seed)
                try:
                    result = train(config, folder, tasks=(self._task,), needs_measure=False)
                except InterruptedRunError as error:
                    raise KeyboardInterrupt(f"training was interrupted: {error}") from None
            run = Run(folder, tasks=(self._task,), device=config.training.device)
            weights = {name: tensor.cpu() for name, tensor in model_tensors(run.model()).items()}
        self.valid_metrics_ = result.metrics
        self.trained_ = TrainedModel(config.task, run.task.facts, weights, config.training.device)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """Yields the run folder, with an empty folder for the data in it."""
        with contextlib.ExitStack() as stack:
            if self.run_dir is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fredholm-")))
                stack.enter_context(naming_data_as_given(self._given_data, folder))
            else:
                if not isinstance(self.run_dir, str | Path):
                    raise TypeError(f"run_dir is {self.run_dir!r}; expected a folder, or None to keep no run")
                folder = user_path(self.run_dir)
                if not RunFolder(folder).is_new():
                    raise ValueError(f"run_dir {folder} is not empty; pass a new folder, or None to keep no run")
            (folder / DATA).mkdir(parents=True, exist_ok=True)
            yield folder

    def _run_config(self, written: dict[str, Any], seed: int) -> Run.Config:
        """Returns the run's config: the user's settings, and sizes that suit the data, chosen in this place alone."""
        given = written | self._task_settings()
        training = _named("training", self.training, TrainingConfig)
        settings = TrainingConfig(**training)
        if self.preset not in get_args(Preset):
            raise ValueError(f"preset is {self.preset!r}; expected one of {', '.join(get_args(Preset))}")
        config = cast(Callable[..., Task.Config], self._task.Config)(**given)
        epochs, batch_size = (
            getattr(settings, name) if name in training else None for name in ("epochs", "batch_size")
        )
        task, schedule, _ = config.recommended(self.preset, epochs=epochs or None, keeps_model="model" in given)
        schedule = schedule.adjusted(epochs=epochs or None, batch_size=batch_size)
        return Run.Config(
            task=dataclasses.replace(task, **given),
            training=TrainingConfig(**{**schedule.settings, "tensorboard": False, **training}),
            seed=seed,
        )

    def _task_settings(self) -> dict[str, Any]:
        """Task settings given by the user."""
        given = _named("task", self.task, self._task.Config, apart_from=self._decided)
        if self.valid_fraction is not None:
            given["valid_fraction"] = self.valid_fraction
        if self.model is not None:
            given["model"] = self._checked_model()
        return given

    def _checked_model(self) -> Any:
        expected = get_type_hints(self._task.Config)["model"]
        if not isinstance(self.model, expected):
            got = type(self.model).__qualname__
            raise TypeError(f"model is of type {got}; expected a configuration, {expected.__qualname__}")
        return self.model


def as_array(values: Any) -> Any:
    """Converts a table or tensor, such as a data frame, to an array; lists and other values are returned unchanged."""
    if hasattr(values, "__array__"):
        return np.asarray(values)
    return np.asarray(values.to_numpy()) if hasattr(values, "to_numpy") else values


def is_missing(value: Any) -> bool:
    """Whether a value is None, or NaN or similar, which is not equal to itself."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError, ArithmeticError, RuntimeError):  # pandas' missing value, or several values
        return np.ndim(np.asarray(value)) == 0


def real_numbers(values: Any, they_are: str) -> np.ndarray:
    """Returns an array of real numbers in its dtype; other arrays, such as of objects, are converted to float64.

    Args:
        values: array-like.
        they_are: beginning of a message, such as "X is".

    Raises:
        ValueError: the values are no array of real numbers.
    """
    try:
        found = np.asarray(as_array(values))
        if np.iscomplexobj(found):
            raise TypeError(f"it is {found.dtype}; pass real parts and imaginary parts as numbers of their own")
        return found if found.dtype.kind in "iuf" else found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{they_are} no array of numbers: {error}") from error


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


@contextlib.contextmanager
def _keeping_global_randomness() -> Iterator[None]:
    """Restores the global generators of Python, NumPy and torch on exit."""
    state = global_random_state()
    try:
        yield
    finally:
        restore_random_state(state)


@contextlib.contextmanager
def naming_data_as_given(data: str, folder: Path) -> Iterator[None]:
    """Replaces paths of a temporary folder in errors and warnings by the user's name of the data, while entered.

    Disk errors are unchanged: they name the full disk.
    """

    def renamed(message: Warning | str) -> str:
        named = re.sub(rf"{re.escape(str(folder / DATA))}(/[\w.-]+)*", data, str(message))
        # drop the parts of a message that name files in the temporary folder
        parts = [part.removeprefix(f"{folder}/").removeprefix(f"{folder}: ") for part in named.split("; ")]
        return "; ".join(part for part in parts if str(folder) not in part)

    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.showwarning = lambda message, *where: show(renamed(message), *where)
        try:
            yield
        except (ValueError, DivergedError, LostWorkerError, Warning, KeyboardInterrupt) as error:
            error.args = (renamed(str(error)),)
            raise


def _named(what: str, given: Mapping[str, Any] | None, owner: type, apart_from: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns settings by name after checking that the dataclass has them, with these types."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{what} is of type {type(given).__name__}; expected a mapping of settings by name, or None")
    known = [field.name for field in dataclasses.fields(owner) if field.name not in apart_from]
    for name in given or ():
        if name not in known:
            raise ValueError(f"{what} has no setting {name!r}; the settings are {', '.join(known)}")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in (given or {}).items()}
    check_types(what, plain, owner)
    return plain
