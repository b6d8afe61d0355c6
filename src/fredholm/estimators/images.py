"""Estimators that predict classes, labels or numbers of images."""

from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.images.image_learning import ImageLearning
from fredholm.tasks.images.resize import fit
from fredholm.tasks.targets import Answers, Kind

from .classifier import Classifier
from .estimator import as_array
from .regressor import Regressor
from .target_estimator import TargetEstimator

_NAMES: dict[Kind, str] = {"class": "classes", "labels": "labels", "number": "target_names"}
"""Name of the array that holds the class, label or number names."""


class ImageEstimator(TargetEstimator[np.ndarray]):
    """Base class of estimators for the task `images` (`fredholm.tasks.ImageLearning`) on arrays."""

    _task: ClassVar = ImageLearning

    @final
    def _checked(self, X: Any, *, is_new: bool) -> np.ndarray:
        images = _pixels(X)
        if is_new:
            self.image_shape_ = images.shape[1:]
        elif images.shape[1:] != self.image_shape_:
            got, expected = (_described(shape) for shape in (images.shape[1:], self.image_shape_))
            raise ValueError(f"X has images of {got}; {type(self).__name__} was fitted on {expected}")
        return images

    @final
    def _write(self, examples: np.ndarray, answers: Answers, folder: Path) -> dict[str, Any]:
        path = folder / "images.npz"
        named: dict[str, Any] = {_NAMES[answers.kind]: np.array(answers.names)}
        np.savez_compressed(path, x_train=examples, y_train=answers.values.numpy(), **named)
        return {"data": str(path)}

    @final
    def _outputs(self, examples: np.ndarray) -> Tensor:
        task = self.trained_.task
        assert isinstance(task, ImageLearning)
        pixels = fit(torch.from_numpy(examples).movedim(-1, 1), task.facts.image_size)
        return task.outputs(self.trained_.model, pixels, self.trained_.device)


@final
class ImageClassifier(ImageEstimator, Classifier[np.ndarray]):
    """Predicts the class or the labels of an image, by the task `images`.

    X is an array `(n, H, W)` of grey images, or `(n, H, W, C)` with C of 1 or 3; or a list of such images of one size.
    Values are uint8, 0 to 255, or floats from 0 to 1, which are rounded to 256 levels. Images in `predict` must have
    the size of those in `fit`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """


@final
class ImageRegressor(ImageEstimator, Regressor[np.ndarray]):
    """Predicts numbers of an image, by the task `images`; X is as of `ImageClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """


def _described(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{height} x {width} pixels with {channels} channel{'s' if channels > 1 else ''}"


def _pixels(X: Any) -> np.ndarray:
    """Returns the images as uint8 `(n, H, W, C)`."""
    expected = "expected (n, H, W), or (n, H, W, C) with C of 1 or 3"
    try:
        images = np.asarray(as_array(X))
    except ValueError as error:
        raise ValueError(f"X has images of several sizes; {expected}") from error
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise ValueError(
            f"X is {images.dtype}; expected uint8, 0 to 255, or floats from 0 to 1, such as X.astype('uint8')"
        )
    if images.ndim == 2:
        raise ValueError(f"X has shape {images.shape}; {expected}, such as X.reshape(-1, height, width)")
    if images.ndim == 4 and images.shape[-1] not in (1, 3) and images.shape[1] in (1, 3):
        raise ValueError(f"X has shape {images.shape}; {expected}, such as np.moveaxis(X, 1, -1)")
    if images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)) or 0 in images.shape:
        raise ValueError(f"X has shape {images.shape}; {expected}, and at least one image and one pixel")
    if images.dtype != np.uint8:
        low, high = images.min(), images.max()
        if not np.isfinite(low) or not np.isfinite(high):
            raise ValueError("X contains NaN or infinity; expected floats from 0 to 1")
        if low < 0 or high > 1:
            raise ValueError(f"X runs from {low:g} to {high:g}; expected floats from 0 to 1, or uint8, 0 to 255")
        images = np.rint(images * 255).astype(np.uint8)
    return np.ascontiguousarray(images if images.ndim == 4 else images[..., None])
