"""Estimators that predict classes, labels or numbers of images."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.images.arrays import with_channels
from fredholm.tasks.images.image_learning import ImageLearning
from fredholm.tasks.images.read import is_grey, read_images, size_of
from fredholm.tasks.images.resize import check_image_size, common_size, fit
from fredholm.tasks.targets import Answers, Kind

from .classifier import Classifier
from .estimator import as_array
from .regressor import Regressor
from .target_estimator import TargetEstimator

MOST_SIDE = 256
"""Most pixels along the longer side of images of several sizes, as they are stored; the task may scale them further."""
_NAMES: dict[Kind, str] = {"class": "classes", "labels": "labels", "number": "target_names"}
"""Name of the array that holds the class, label or number names."""


class ImageEstimator(TargetEstimator[np.ndarray]):
    """Base class of estimators for the task `images` (`fredholm.tasks.ImageLearning`) on arrays."""

    _task: ClassVar = ImageLearning

    @final
    def _checked(self, X: Any, *, is_new: bool) -> np.ndarray:
        pictures = _pictures(X)
        if is_new:
            self._has_any_size = pictures.has_any_size
            self.image_shape_ = (*self._stored_size(pictures), pictures.channels)
        height, width, channels = self.image_shape_
        got, may_differ = (*pictures.sizes[0], pictures.channels), self._has_any_size or pictures.has_any_size
        if got != self.image_shape_ and not may_differ:
            got, expected = (_described(shape) for shape in (got, self.image_shape_))
            raise ValueError(f"X has images of {got}; {type(self).__name__} was fitted on {expected}")
        if self._has_any_size and isinstance(X, np.ndarray | Tensor) and X.ndim == 3 and X.shape[2] in (1, 3):
            raise ValueError(f"X has shape {tuple(X.shape)}, which may be one image in colour; pass X[None]")
        return pictures.read(channels, (height, width)).movedim(1, -1).numpy()

    def _stored_size(self, pictures: "_Pictures") -> tuple[int, int]:
        """The size of the images in the data of the run."""
        if not pictures.has_any_size:
            return pictures.sizes[0]
        if (given := (self.task or {}).get("image_size")) is not None:
            check_image_size(given)
            return given
        size = common_size(pictures.sizes)
        scale = min(1.0, MOST_SIDE / max(size))
        return max(1, round(scale * size[0])), max(1, round(scale * size[1]))

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

    X is an array `(n, H, W)` of grey images, or `(n, H, W, C)` with C of 1 or 3; a list of such images; or a list or a
    column of names of image files. Values of arrays are uint8, 0 to 255, or floats from 0 to 1, which are rounded to
    256 levels. Files and images of several sizes are scaled and cut to a common size, of at most 256 pixels along the
    longer side; `task={"image_size": (64, 96)}` sets another. Other images in `predict` must have the size of those in
    `fit`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose: see `Classifier`.
    """


@final
class ImageRegressor(ImageEstimator, Regressor[np.ndarray]):
    """Predicts numbers of an image, by the task `images`; for X see `ImageClassifier`.

    Args:
        preset, model, task, training, valid_fraction, random_state, run_dir, verbose, quantiles: see `Regressor`.
    """


@final
class _Pictures(NamedTuple):
    """Images, perhaps of several sizes.

    Args:
        sizes: height and width of each.
        channels: 1 where all are grey, else 3.
        has_any_size: whether they are to be brought to a common size.
        read: the images, uint8 `(n, C, H, W)`, with this number of channels and of this size.
    """

    sizes: Sequence[tuple[int, int]]
    channels: int
    has_any_size: bool
    read: Callable[[int, tuple[int, int]], Tensor]


def _pictures(X: Any) -> _Pictures:
    """Parses images of an X."""
    if isinstance(X, list | tuple) or getattr(X, "ndim", 0) == 1:
        listed: list[Any] = list(X)
        if listed and all(isinstance(each, str | Path) for each in listed):
            files = [user_path(file) for file in listed]
            sizes = [size_of(file) for file in files]
            return _Pictures(sizes, 1 if all(map(is_grey, files)) else 3, True, functools.partial(read_images, files))
        shapes = {np.shape(each) for each in listed}
        if len(shapes) > 1 and all(np.ndim(each) in (2, 3) for each in listed):
            return _of_arrays([_pixels(np.asarray(each)[None]) for each in listed], has_any_size=True)
    return _of_arrays([_pixels(X)], has_any_size=False)


def _of_arrays(arrays: list[Tensor], *, has_any_size: bool) -> _Pictures:
    channels = max(each.shape[1] for each in arrays)

    def read(channels: int, image_size: tuple[int, int]) -> Tensor:
        return torch.cat([fit(with_channels(each, channels), image_size) for each in arrays])

    sizes = [(each.shape[2], each.shape[3]) for each in arrays for _ in range(len(each))]
    return _Pictures(sizes, channels, has_any_size, read)


def _described(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{height} x {width} pixels with {channels} channel{'s' if channels > 1 else ''}"


def _conversion(images: np.ndarray) -> str:
    """Returns how such images become pixels, for a message; bytes would drop the upper digits of large numbers."""
    if images.dtype == bool:
        return ", such as X.astype(float)"
    if images.dtype.kind not in "iu" or not images.size:
        return ""
    has_bytes = images.min() >= 0 and images.max() <= 255
    return ", such as X.astype('uint8')" if has_bytes else f", such as X / {np.iinfo(images.dtype).max}"


def _pixels(X: Any) -> Tensor:
    """Returns images of one size, uint8 `(n, C, H, W)`."""
    expected = "expected (n, H, W), or (n, H, W, C) with C of 1 or 3"
    images = np.asarray(as_array(X))
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise ValueError(f"X is {images.dtype}; expected uint8, 0 to 255, or floats from 0 to 1{_conversion(images)}")
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
    found = np.ascontiguousarray(images if images.ndim == 4 else images[..., None])
    return torch.from_numpy(found).movedim(-1, 1)
