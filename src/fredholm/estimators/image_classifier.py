"""Images, told by class."""

from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.image_learning import ImageLearning
from fredholm.tasks.images.resize import fit

from .classifier import Classifier
from .trained_model import TrainedModel


@final
class ImageClassifier(Classifier[np.ndarray]):
    """Tells which class an image belongs to, by the task `images` (`fredholm.tasks.ImageLearning`).

    X is an array `(n, H, W)` of grey images, or `(n, H, W, C)` with C of 1 or 3; or a list of such images of one size.
    Its numbers are uint8, 0 to 255, or floats from 0 to 1, which are rounded to 256 levels. Other images in `predict`
    have the size of those in `fit`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """

    _task: ClassVar = ImageLearning

    def _checked(self, X: Any, *, is_new: bool) -> np.ndarray:
        images = _pixels(X)
        if is_new:
            self.image_shape_ = images.shape[1:]
        elif images.shape[1:] != self.image_shape_:
            came, expected = (_told(shape) for shape in (images.shape[1:], self.image_shape_))
            raise ValueError(f"X has images of {came}; the classifier was fitted on {expected}")
        return images

    def _known(self, trained: TrainedModel) -> tuple[str, ...]:
        task = trained.task
        assert isinstance(task, ImageLearning)
        return task.target.names

    def _write(self, examples: np.ndarray, codes: np.ndarray, classes: tuple[str, ...], folder: Path) -> Path:
        path = folder / "images.npz"
        np.savez_compressed(path, x_train=examples, y_train=codes, classes=np.array(classes))
        return path

    def _probabilities(self, trained: TrainedModel, examples: np.ndarray) -> Tensor:
        task = trained.task
        assert isinstance(task, ImageLearning)
        pixels = torch.from_numpy(examples).movedim(-1, 1)
        return task.target.told(task.outputs(trained.model, fit(pixels, task.facts.image_size), trained.device))


def _told(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{height} x {width} pixels with {channels} channel{'s' if channels > 1 else ''}"


def _pixels(X: Any) -> np.ndarray:
    """uint8 `(n, H, W, C)`."""
    expected = "expected (n, H, W), or (n, H, W, C) with C of 1 or 3"
    try:
        images = np.asarray(X)
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
