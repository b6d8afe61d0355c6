"""Estimators that predict classes or numbers of point clouds."""

from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.points import PointSet
from fredholm.tasks.points.point_learning import PointLearning
from fredholm.tasks.points.point_set import Cloud
from fredholm.tasks.targets import Answers

from .classifier import Classifier
from .estimator import as_array, real_numbers
from .regressor import Regressor
from .target_estimator import TargetEstimator


class PointEstimator(TargetEstimator[list[np.ndarray]]):
    """Base class of estimators for the task `points` (`fredholm.tasks.PointLearning`)."""

    _task: ClassVar = PointLearning

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array, tags.input_tags.two_d_array = True, False
        return tags

    @final
    def _checked(self, X: Any, *, is_new: bool) -> list[np.ndarray]:
        X = as_array(X)
        if isinstance(X, np.ndarray) and X.dtype != object and X.ndim < 3:
            raise ValueError(f"X has shape {X.shape}; expected clouds (n, N, 3 + F), such as X[None] for one cloud")
        clouds = [_cloud(each, i) for i, each in enumerate(X)]
        if not clouds:
            raise ValueError("X is empty; expected at least one cloud")
        num_features = clouds[0].shape[1] - 3 if is_new else self.num_features_
        for i, cloud in enumerate(clouds):
            if cloud.shape[1] - 3 != num_features:
                got = cloud.shape[1] - 3
                raise ValueError(f"cloud {i} of X has {got} features beside 3 coordinates; expected {num_features}")
        self.num_features_ = num_features
        return clouds

    @final
    def _write(self, examples: list[np.ndarray], answers: Answers, folder: Path) -> dict[str, Any]:
        path = folder / "points.npz"
        known, names = ("y_train", "classes") if answers.kind == "class" else ("targets_train", "target_names")
        arrays: dict[str, Any] = {known: answers.values.numpy(), names: np.array(answers.names)}
        offsets = np.cumsum([0, *map(len, examples)])
        np.savez_compressed(path, x_train=np.concatenate(examples), offsets_train=offsets, **arrays)
        return {"data": str(path)}

    @final
    def _outputs(self, examples: list[np.ndarray]) -> Tensor:
        """Returns log-probabilities, or outputs for numbers, averaged over the copies of a cloud where these vote."""
        task = self.trained_.task
        assert isinstance(task, PointLearning)
        clouds = [
            Cloud(pos=cloud[:, :3], features=cloud[:, 3:], channels=task.facts.channels, name=f"cloud {i} of X")
            for i, cloud in enumerate(examples)
        ]
        found = task.probabilities(self.trained_.model, PointSet.pack(clouds), self.trained_.device)
        return torch.stack(found) if task.target.kind == "number" else torch.stack(found).log()


@final
class PointClassifier(PointEstimator, Classifier[list[np.ndarray]]):
    """Predicts the class of a point cloud, by the task `points`.

    X is an array `(n, N, 3 + F)` of n clouds of N points, with coordinates first and then F features; or a list of
    clouds `(N, 3 + F)` of different sizes. `predict` takes clouds of other sizes too, with the same features.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """

    _takes_labels: ClassVar = False


@final
class PointRegressor(PointEstimator, Regressor[list[np.ndarray]]):
    """Predicts numbers of a point cloud, by the task `points`; for X see `PointClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """


def _cloud(cloud: Any, number: int) -> np.ndarray:
    """Returns the cloud as float64 `(N, 3 + F)`."""
    values = real_numbers(cloud, f"cloud {number} of X is").astype(np.float64, copy=False)
    if values.ndim != 2 or values.shape[1] < 3 or len(values) == 0:
        raise ValueError(f"cloud {number} of X has shape {values.shape}; expected (N, 3 + F), with at least one point")
    if not np.isfinite(values).all():
        raise ValueError(f"cloud {number} of X contains NaN or infinity; expected finite numbers")
    return values
