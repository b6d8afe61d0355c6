"""An estimator that predicts functions from other functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fredholm.domains import Grid
from fredholm.tasks.fields import functions_of_arrays
from fredholm.tasks.fields.operator_learning import OperatorLearning

from .estimator import Estimator, as_array, real_numbers


@final
@dataclass(kw_only=True, eq=False, repr=False)
class OperatorRegressor(RegressorMixin, Estimator):
    """Predicts a function from another one, by the task `operator` (`fredholm.tasks.OperatorLearning`).

    X and y are n functions each, sampled on a grid of the unit box, `(n, H)`, `(n, H, W)` or `(n, D, H, W)`, whose
    points are the cell centres, with axes in the order of the coordinates; or at given points, `(n, N)`. A further last
    axis may hold channels. NaN marks a missing sample. `predict` also takes grids of other sizes.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Estimator`.
        num_axes: number of axes of the grid, 1 to 3; a further axis is that of channels. None: all axes of X but the
            first, without channels.
        pos: points of X, `(N, s)`, in place of a grid.
        target_pos: points of y, `(M, s)`. None: those of X or, without `pos`, a grid.

    Attributes:
        trained_, valid_metrics_: see `Estimator`.
    """

    _task: ClassVar = OperatorLearning
    _decided: ClassVar = (*Estimator._decided, "coordinates", "targets", "problem", "resolution", "answer")

    num_axes: int | None = None
    pos: Any = None
    target_pos: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.allow_nan = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a new model.

        Args:
            X: n functions; see the class.
            y: the output function of each input function.

        Raises:
            ValueError: X or y are not as expected, settings do not fit, or `run_dir` is not empty.
            TypeError: a setting has the wrong type.
            DivergedError: the loss is not finite.
            KeyboardInterrupt: training was interrupted; with a `run_dir` its last step is saved there.
        """
        self._forget()
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; give each function another"
            )
        if self.pos is not None and self.num_axes is not None:
            raise ValueError(f"num_axes={self.num_axes} has no effect with pos; leave one of them out")
        pos = None if self.pos is None else _points(self.pos, "pos")
        target_pos = pos if self.target_pos is None else _points(self.target_pos, "target_pos")
        given = _Functions.of(X, "X", pos, self.num_axes)
        target = _Functions.of(y, "y", target_pos, len(given.shape) if self.num_axes is None else self.num_axes)
        check_consistent_length(given.values, target.values)
        arrays = given.arrays("") | target.arrays("target_")
        functions_of_arrays(arrays, "X and y")  # raises where they are invalid

        def write(folder: Path) -> dict[str, Any]:
            path = folder / "functions.npz"
            is_of_each = ("values", "target_values")
            named = {f"train_{name}" if name in is_of_each else name: array for name, array in arrays.items()}
            np.savez_compressed(path, **named)  # pyright: ignore[reportArgumentType]
            return {"data": str(path)}

        self._learn(write)
        self._given, self._target = (each._replace(values=each.values[:0]) for each in (given, target))
        return self

    def predict(self, X: Any, at: Any = None) -> np.ndarray:
        """Predicts the output function of each input function, float64, for inputs as in `fit`.

        Args:
            X: n functions, on a grid of any size, or at `pos`.
            at: points `(M, s)` to predict at. None: the points of y in `fit`; but the grid of X, if X and y shared a
                grid in `fit`.

        Returns:
            `(n, *grid)` or `(n, M)`, with a last axis of channels if y had one.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`.
        """
        check_is_fitted(self)
        learnt, target, task = self._given, self._target, self.trained_.task
        assert isinstance(task, OperatorLearning)
        given = _Functions.of(X, "X", learnt.pos, len(learnt.shape) if learnt.pos is None else None)
        if (got := given.num_channels) != learnt.num_channels:
            raise ValueError(f"X has {got} channels; {type(self).__name__} was fitted on {learnt.num_channels}")
        if at is not None:
            target = target._replace(pos=_points(at, "at"), shape=(len(np.asarray(as_array(at))),))
        elif target.pos is None and target.shape == learnt.shape:
            target = target._replace(shape=given.shape)
        points = target.places
        if (got := points.shape[1]) != (known := len(task.facts.coordinates)):
            raise ValueError(f"at has points of {got} coordinates; {type(self).__name__} was fitted on {known}")
        functions = functions_of_arrays(given.arrays(""), "X")
        model, device = self.trained_.model, self.trained_.device
        predicted = [
            task.evaluated(model, functions.select(torch.tensor([i])), points, device).values
            for i in range(len(functions))
        ]
        channels = (predicted[0].shape[1],) if target.has_channels else ()
        return torch.stack(predicted).numpy().reshape(len(predicted), *target.shape, *channels)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns R² over all samples: the share of the variance of y about its mean function that is predicted.

        Args:
            X: functions, as in `predict`.
            y: the true output functions, of the shape of the result of `predict`; NaN: a missing sample, which is left
                out.
            sample_weight: weight of each function, `(n,)`; None: equal weights.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X does not match the data of `fit`, or y has another shape.
        """
        predicted, true = self.predict(X), real_numbers(y, "y is").astype(np.float64, copy=False)
        if true.shape != predicted.shape:
            raise ValueError(f"y has shape {true.shape}; expected {predicted.shape}")
        check_consistent_length(true, sample_weight)
        flat, expected = (each.reshape(len(each), -1) for each in (predicted, true))
        exists = ~np.isnan(expected)
        if not exists.any():
            raise ValueError("all of y is missing; expected some samples to compare with")
        weights = exists * (1.0 if sample_weight is None else np.asarray(sample_weight)[:, None])
        total = weights.sum(0)
        mean = (weights * np.where(exists, expected, 0.0)).sum(0) / np.where(total > 0, total, 1.0)
        # a missing sample, set to the mean function in both, adds to neither the error nor the variance
        flat, expected = (np.where(exists, each, mean) for each in (flat, expected))
        return float(r2_score(expected, flat, sample_weight=sample_weight, multioutput="variance_weighted"))


class _Functions(NamedTuple):
    """n functions sampled at shared points."""

    values: np.ndarray
    """Values `(n, *shape)`, or `(n, *shape, channels)`."""
    shape: tuple[int, ...]
    """Shape of the grid, or the number of points."""
    pos: np.ndarray | None
    """Points `(N, s)`; None: a grid."""
    has_channels: bool
    num_channels: int

    @classmethod
    def of(cls, values: Any, name: str, pos: np.ndarray | None, num_axes: int | None) -> "_Functions":
        """Parses X or y, at points or on a grid of ``num_axes`` axes; None: all axes but the first."""
        found = real_numbers(values, f"{name} is").astype(np.float64, copy=False)
        if pos is not None:
            num_axes, expected = 1, f"(n, {len(pos)}) or (n, {len(pos)}, channels), a value a point"
        else:
            num_axes = found.ndim - 1 if num_axes is None else num_axes
            if num_axes not in (1, 2, 3):
                raise ValueError(f"{name} has shape {found.shape}, a grid of {num_axes} axes; expected 1, 2 or 3")
            axes = ", ".join(("D", "H", "W")[-num_axes:] if num_axes > 1 else ("H",))
            expected = f"(n, {axes}) or (n, {axes}, channels)"
        shape, channels = found.shape[1 : num_axes + 1], found.shape[num_axes + 1 :]
        is_elsewhere = pos is not None and shape != pos.shape[:1]
        if found.ndim not in (num_axes + 1, num_axes + 2) or 0 in found.shape or is_elsewhere:
            raise ValueError(f"{name} has shape {found.shape}; expected {expected}")
        if pos is None and 1 in shape and max(shape) > 1:
            as_channels = f"; pass num_axes={num_axes - 1} if it is of channels" if shape[-1] == 1 else ""
            raise ValueError(
                f"{name} has shape {found.shape}, a grid with an axis of one point; drop the axis{as_channels}"
            )
        if np.isinf(found).any():
            raise ValueError(f"{name} contains infinity; expected finite numbers, or NaN where there is no sample")
        return cls(found, shape, pos, bool(channels), channels[0] if channels else 1)

    @property
    def places(self) -> Tensor:
        """Points of the samples, float64 `(N, s)`."""
        return Grid(*self.shape).pos.double() if self.pos is None else torch.from_numpy(self.pos)

    def arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """Returns the arrays of a file, with names that begin with the prefix."""
        found = {f"{prefix}values": self.values}
        if self.pos is not None:
            found[f"{prefix}pos"] = self.pos
        if self.has_channels:
            found[f"{prefix}channels"] = np.array([f"channel_{c}" for c in range(self.num_channels)])
        return found


def _points(pos: Any, name: str) -> np.ndarray:
    """Returns the points as float64 `(N, s)`."""
    found = real_numbers(pos, f"{name} is").astype(np.float64, copy=False)
    if found.ndim != 2 or 0 in found.shape or not np.isfinite(found).all():
        raise ValueError(f"{name} has shape {found.shape}; expected finite coordinates (N, s), at least one point")
    return found
