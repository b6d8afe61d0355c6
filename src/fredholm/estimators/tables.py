"""Estimators that predict classes, labels or numbers of table rows."""

import datetime
import json
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from sklearn.utils.validation import validate_data
from torch import Tensor

from fredholm.tasks.files.cells import MISSING
from fredholm.tasks.files.dates import duration
from fredholm.tasks.splits.split_marks import MARKS
from fredholm.tasks.tables.columns import kind_of_files
from fredholm.tasks.tables.table_learning import TableLearning
from fredholm.tasks.tables.table_set import Rows
from fredholm.tasks.targets import Answers
from fredholm.tasks.text.tokenizer import utf8

from .classifier import Classifier
from .estimator import as_array, is_missing
from .regressor import Regressor
from .target_estimator import WeightedEstimator, Weights

_OF_COLUMNS = ("categories", "texts", "ignore")
"""Settings of the task that hold column names."""
_WEIGHTS = "weight of the row"
"""Column of the weights in the data of the run."""


class TableEstimator(WeightedEstimator[Rows]):
    """Base class of estimators for the task `table` (`fredholm.tasks.TableLearning`) on data frames and arrays."""

    _task: ClassVar = TableLearning
    _decided: ClassVar = (*WeightedEstimator._decided, "label_columns", "columns", "weights")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    @final
    def _checked(self, X: Any, *, is_new: bool) -> Rows:
        if is_new:
            for name in ("n_features_in_", "feature_names_in_"):
                vars(self).pop(name, None)
        columns, has_names = self._columns(X, is_new=is_new), _is_frame(X)
        if is_new:
            self._has_names = has_names
            self._categories = tuple(column.name for column in columns if column.is_category)
        else:
            columns = self._as_learnt(columns, has_names=has_names)
        cells = {
            column.name: [
                _cell(value, f"X, line {line}: column {column.name!r}", is_category=column.name in self._categories)
                for line, value in enumerate(column.values, 1)
            ]
            for column in columns
        }
        return Rows(cells=cells, places=[(Path("X"), line) for line in range(1, len(columns[0].values) + 1)])

    def _columns(self, X: Any, *, is_new: bool) -> list["_Column"]:
        """Returns the columns of X; sets the attributes that scikit-learn compares."""
        if _is_another_table(X):
            raise TypeError(
                f"X is of type {type(X).__name__}; expected a data frame of pandas or polars, or an array (n, F)"
            )
        if not _is_frame(X):
            X = np.array(X, dtype=object) if isinstance(X, list | tuple) else as_array(X)
            rules: dict[str, Any] = {"dtype": None, "ensure_all_finite": "allow-nan"}
            values = np.asarray(validate_data(self, X, reset=is_new, **rules))
            # list, not tolist: Python has no nanoseconds, which would become integers
            return [_Column(f"x{number}", list(column), False) for number, column in enumerate(values.T)]
        names = [str(name) for name in X.columns]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise ValueError(f"X has the column {twice[0]!r} twice; give each a name of its own")
        if 0 in X.shape:
            raise ValueError(f"X has {X.shape[0]} rows and {X.shape[1]} columns; expected at least one of each")
        validate_data(self, X, reset=is_new, skip_check_array=True)
        return [
            _Column(name, X[own].to_list(), getattr(X[own].dtype, "categories", None) is not None)
            for name, own in zip(names, X.columns, strict=True)
        ]

    def _as_learnt(self, columns: list["_Column"], *, has_names: bool) -> list["_Column"]:
        """Matches columns by their names in `fit`, or by their order where either X has no names."""
        known = list(self._written)
        if new := [column.name for column in columns if column.name not in self._written]:
            if has_names and self._has_names:
                raise ValueError(
                    f"X has the column {new[0]!r}, which {type(self).__name__} was not fitted on; expected "
                    f"{', '.join(known)}"
                )
            for column, name in zip(columns, known, strict=True):
                column.name = name
        return columns

    @final
    def _select(self, examples: Rows, indices: np.ndarray) -> Rows:
        return examples.select(indices.tolist())

    @final
    def _write(self, examples: Rows, answers: Answers, folder: Path, weights: Weights = None) -> dict[str, Any]:
        labels = ("label",) if answers.kind == "class" else answers.names
        of_weights = None if weights is None else _WEIGHTS
        taken = {*labels, *MARKS, of_weights}
        self._written: dict[str, str] = {}
        for name in examples.cells:
            own = name
            while own.lower() in taken or (own != name and own in examples.cells):
                own = f"x_{own}"  # a file gives the original name another meaning
            self._written[name] = own
        written: dict[str, Sequence[Any]] = {
            **{own: _from_here(examples.cells[name]) for name, own in self._written.items()},
            **dict(zip(labels, zip(*_answer_cells(answers), strict=True), strict=True)),
            **({} if weights is None else {_WEIGHTS: weights.tolist()}),
        }
        with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
            for row in zip(*written.values(), strict=True):
                file.write(json.dumps(dict(zip(written, row, strict=True))) + "\n")
        return {"data": str(folder), "label_columns": labels, "target": answers.kind, "weights": of_weights}

    def _task_settings(self) -> dict[str, Any]:
        given = super()._task_settings()
        named = {name: given[name] for name in _OF_COLUMNS if isinstance(given.get(name), list | tuple)}
        others = {column for columns in named.values() for column in columns}
        own = tuple(name for name in self._categories if name not in others)
        if own:
            named["categories"] = (*named.get("categories", ()), *own)
        return given | {
            name: tuple(self._written.get(column, column) for column in columns) for name, columns in named.items()
        }

    @final
    def _outputs(self, examples: Rows) -> Tensor:
        task = self.trained_.task
        assert isinstance(task, TableLearning)
        cells = {self._written[name]: column for name, column in examples.cells.items()}
        rows = Rows(cells=cells, places=examples.places)
        return task.outputs(self.trained_.model, rows, self.trained_.device)


@final
class TableClassifier(TableEstimator, Classifier[Rows]):
    """Predicts the class or the labels of a table row, by the task `table`.

    X is a data frame of n rows, of pandas or polars, or an array `(n, F)` of numbers or objects. Its columns may be
    numbers, booleans, dates, periods (their first day), durations and times of day (in seconds), categories, texts, and
    names of files of images or series, relative to the working folder; None and NaN are missing values. The kind of a
    column is inferred from its values, except that booleans and columns of dtype category are categories. Further
    categories are named in `task={"categories": ["zip"]}`, and `texts` and `ignore` likewise; the columns of an array
    are x0, x1 and so on.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """


@final
class TableRegressor(TableEstimator, Regressor[Rows]):
    """Predicts numbers of a row of a table, by the task `table`; for X see `TableClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """


@final
class _Column:
    """A column of X, with whether it is known to be categorical: by its dtype, or since all its values are booleans."""

    def __init__(self, name: str, values: list[Any], is_category: bool) -> None:
        self.name, self.values = name, values
        known = [value for value in values if not is_missing(value)]
        self.is_category = is_category or (bool(known) and all(isinstance(value, bool | np.bool_) for value in known))


def _from_here(cells: Sequence[str]) -> Sequence[str]:
    """Makes names of files in the working folder absolute paths; other cells are unchanged."""
    if kind_of_files([cell for cell in cells if cell.lower() not in MISSING]) is None:
        return cells
    return [cell if cell.lower() in MISSING else str(Path(cell).absolute()) for cell in cells]


def _is_frame(X: Any) -> bool:
    """Whether X has named columns."""
    return hasattr(X, "columns") and hasattr(X, "shape") and hasattr(X, "__getitem__") and len(X.shape) == 2


def _is_another_table(X: Any) -> bool:
    """Whether X is a dictionary, a lazy frame or an Arrow table; sparse matrices are refused by scikit-learn."""
    is_dictionary = isinstance(X, Mapping) and not hasattr(X, "toarray")
    return is_dictionary or hasattr(X, "collect") or hasattr(X, "column_names")


def _answer_cells(answers: Answers) -> Iterator[Sequence[Any]]:
    """Yields the targets of each example, one cell per column."""
    if answers.kind == "class":
        return ([answers.names[code]] for code in answers.values.tolist())
    return iter((answers.values.long() if answers.kind == "labels" else answers.values).tolist())


def _cell(value: Any, place: str, *, is_category: bool = False) -> str:
    """Formats a value as a cell of a file; empty where it is missing. Categories may be of any type, such as intervals.

    Raises:
        ValueError: a number is infinite, or a text has a lone surrogate.
        TypeError: it is no value of a table.
    """
    if isinstance(value, str | Path):
        value = str(value)
        try:
            utf8(value)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        return value.strip()
    if is_missing(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, np.timedelta64):
        value = value.astype("timedelta64[us]").item()  # NumPy's type counts as Integral, in any unit
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real | Decimal):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{place}: it contains infinity; NaN and None are missing values")
        # like the integers of another table, since categories are compared as text
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[us]").item().isoformat()
    if is_category:
        return str(value)
    if isinstance(value, datetime.time | datetime.timedelta):
        return repr(duration(value))
    if isinstance(start := getattr(value, "start_time", None), datetime.date):  # pandas' periods
        return start.isoformat()
    raise TypeError(
        f"{place}: a value is of type {type(value).__name__}; expected a number, a date, a period, a time of day, a "
        "duration, a text, a truth value, or None"
    )
