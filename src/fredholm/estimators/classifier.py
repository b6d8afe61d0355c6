"""What all estimators of classes share: scikit-learn's contract round a run."""

import contextlib
import dataclasses
import numbers
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, final, get_args, get_type_hints

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fredholm.tasks.schedule import Preset
from fredholm.tasks.task import SplitTask, Task
from fredholm.training.checkpoint import model_tensors
from fredholm.training.config import TrainingConfig
from fredholm.training.interruption import InterruptedRunError
from fredholm.training.progress import muted
from fredholm.training.random_state import random_state as global_random_state
from fredholm.training.random_state import restore_random_state
from fredholm.training.run import Run, train
from fredholm.training.run_folder import DATA, RunFolder

from .trained_model import TrainedModel

Read = TypeVar("Read", bound=Sequence[Any] | np.ndarray)
"""X, checked."""


class Classifier(ClassifierMixin, BaseEstimator, ABC, Generic[Read]):
    """A task that tells classes, on arrays.

    What is not set follows from the data, by the rules of `fredholm train TASK DATA`.

    Args:
        preset: how much to spend: "small", which two cores train in minutes, or "base", for a GPU.
        model: a configuration of a model of the task, which is taken as it is; None: the task's own, at a size that
            suits the data.
        task: further settings of the task by name, as a mapping; see the task's `Config`.
        training: settings of `TrainingConfig` by name, as a mapping, in place of those that suit the data.
        valid_fraction: share of the examples that nothing is learnt from, but on which the best step is chosen; 0:
            there is none, and the last step counts. None: the task's own.
        random_state: of the first weights, the order of the examples, augmentation and dropout; an integer is the seed
            of a run by `fredholm train --seed`. It does not choose the validation part, which depends on X and y alone.
        run_dir: a new or empty folder for the run, with its data; `fredholm predict` and `evaluate` read it.
            None: the run is not kept.
        verbose: whether progress is shown.

    Attributes:
        classes_: the classes, sorted, in the order of the columns of `predict_proba`.
        trained_: the `TrainedModel`; `trained_.model` is the module.
        valid_metrics_: the metrics on the validation part by name; empty where there is none.
    """

    _task: ClassVar[type[SplitTask[Any]]]

    def __init__(
        self,
        *,
        preset: Preset = "small",
        model: Any = None,
        task: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        valid_fraction: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        run_dir: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.preset: Preset = preset
        self.model = model
        self.task = task
        self.training = training
        self.valid_fraction = valid_fraction
        self.random_state = random_state
        self.run_dir = run_dir
        self.verbose = verbose

    @final
    def fit(self, X: Any, y: Any) -> Self:
        """Trains a new model.

        Args:
            X: n examples; see the class.
            y: n classes, of one kind: integers, texts or truth values.

        Raises:
            ValueError: X or y are not as expected, settings do not fit, or `run_dir` is not empty.
            TypeError: X or a setting is of another kind.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is kept there.
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; give each example a class"
            )
        examples = self._checked(X, is_new=True)
        check_consistent_length(examples, y)
        classes, codes = _classes(y)
        seed = _seed(self.random_state)
        with self._folder() as folder, _own_randomness():
            data = self._write(examples, codes, class_names(classes), folder / DATA)
            with contextlib.nullcontext() if self.verbose else muted():
                config = self._run_config(data, seed)
                try:
                    result = train(config, folder, tasks=(self._task,), needs_measure=False)
                except InterruptedRunError as error:
                    raise KeyboardInterrupt(f"training was interrupted: {error}") from None
            run = Run(folder, tasks=(self._task,), device=config.training.device)
            weights = {name: tensor.cpu() for name, tensor in model_tensors(run.model()).items()}
        self.classes_ = classes
        self.valid_metrics_ = result.metrics
        self.trained_ = TrainedModel(config.task, run.task.facts, weights, config.training.device)
        return self

    @final
    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, float32 `(n, classes)`, of examples as in `fit`.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not fit what was learnt from.
        """
        check_is_fitted(self)
        examples = self._checked(X, is_new=False)
        found = self._probabilities(self.trained_, examples)
        known = self._known(self.trained_)
        return found[:, [known.index(name) for name in class_names(self.classes_)]].numpy()

    @final
    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each example, `(n,)`; errors as of `predict_proba`."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return self.classes_[likeliest]

    @abstractmethod
    def _checked(self, X: Any, *, is_new: bool) -> Read:
        """X in one form; sets what `predict` has to find again where it is new, else compares with that."""

    @abstractmethod
    def _write(self, examples: Read, codes: np.ndarray, classes: tuple[str, ...], folder: Path) -> Path:
        """Writes a training set without others, and says what `Config.data` is."""

    @abstractmethod
    def _probabilities(self, trained: TrainedModel, examples: Read) -> Tensor:
        """`(n, classes)`, in the order of `_known`, on the CPU."""

    @abstractmethod
    def _known(self, trained: TrainedModel) -> tuple[str, ...]:
        """The names of the classes, in that order."""

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """The run folder, with an empty folder for the data."""
        with contextlib.ExitStack() as stack:
            if self.run_dir is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fredholm-")))
            else:
                folder = Path(self.run_dir).expanduser()
                if not RunFolder(folder).is_new():
                    raise ValueError(f"run_dir {folder} is not empty; pass a new folder, or None to keep no run")
            (folder / DATA).mkdir(parents=True, exist_ok=True)
            yield folder

    def _run_config(self, data: Path, seed: int) -> Run.Config:
        """The run: what the user set and, for the rest, what suits the data. The one place that chooses sizes."""
        given = _named("task", self.task, self._task.Config, apart_from=("data", "model", "valid_fraction"))
        if self.valid_fraction is not None:
            given["valid_fraction"] = self.valid_fraction
        if self.model is not None:
            given["model"] = self._checked_model()
        training = _named("training", self.training, TrainingConfig)
        if self.preset not in get_args(Preset):
            raise ValueError(f"preset is {self.preset!r}; expected one of {', '.join(get_args(Preset))}")
        kind = cast(Callable[..., Task.Config], self._task.Config)
        task, schedule, _ = kind(data=str(data), **given).suited(self.preset)
        return Run.Config(
            task=dataclasses.replace(task, **given),
            training=TrainingConfig(**{**vars(schedule), "tensorboard": False, **training}),
            seed=seed,
        )

    def _checked_model(self) -> Any:
        expected = get_type_hints(self._task.Config)["model"]
        if not isinstance(self.model, expected):
            came = type(self.model).__qualname__
            raise TypeError(f"model is of type {came}; expected a configuration, {expected.__qualname__}")
        return self.model


def class_names(classes: np.ndarray) -> tuple[str, ...]:
    """What classes are called in a run.

    Raises:
        ValueError: two are called alike, or one is empty.
    """
    names = tuple(str(each).strip() for each in classes.tolist())
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"the classes {list(names)} are not told apart by their texts; give each another text")
    return names


def _classes(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """The classes, sorted, and the number of each example's."""
    labels = column_or_1d(y, warn=True)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"the classes in y are of several kinds ({error}); make them all integers, or all texts"
        ) from error
    check_classification_targets(labels)
    if len(classes) < 2:
        raise ValueError(f"y has only one class, {classes[0]}; expected at least 2")
    return classes, codes


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


@contextlib.contextmanager
def _own_randomness() -> Iterator[None]:
    """Leaves the global generators of Python, NumPy and torch as they were."""
    state = global_random_state()
    try:
        yield
    finally:
        restore_random_state(state)


def _named(what: str, given: Mapping[str, Any] | None, owner: type, apart_from: tuple[str, ...] = ()) -> dict[str, Any]:
    """Settings by name, all of which the dataclass has."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{what} is of type {type(given).__name__}; expected a mapping of settings by name, or None")
    known = [field.name for field in dataclasses.fields(owner) if field.name not in apart_from]
    for name in given or ():
        if name not in known:
            raise ValueError(f"{what} has no setting {name!r}; the settings are {', '.join(known)}")
    return dict(given or {})
