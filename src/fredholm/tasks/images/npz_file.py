"""Images in an .npz file of numpy arrays."""

from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.npz_arrays import load_arrays
from fredholm.tasks.splits import Splits

from .arrays import pixels_of
from .dataset import ImageDataset
from .in_memory import InMemoryImages

_SPLITS = ("train", "test")


def npz_images(path: str | Path, image_size: tuple[int, int] | None = None) -> Splits[ImageDataset]:
    """Read `x_train`, `y_train`, `x_test` and `y_test`, the names that Keras gives its data sets.

    Without the last two there is no test set.

    Images are uint8 `(n, H, W)` or `(n, H, W, C)` with C of 1 or 3; labels integers `(n,)` or `(n, 1)` from 0. The
    classes are named by `classes`, where the file has it, and else are the numbers up to the largest training label.

    Args:
        path: the file.
        image_size: height and width to deliver; default: the size the images have.

    Raises:
        ValueError: it is no such file, arrays are missing or do not fit together, or a test label is unknown in
            training. The message names file and array.
    """
    path = Path(path)
    arrays = load_arrays(path)
    try:
        named = [split for split in _SPLITS if split == "train" or {"x_test", "y_test"} & arrays.keys()]
        if missing := [name for split in named for name in (f"x_{split}", f"y_{split}") if name not in arrays]:
            raise ValueError(f"has no array {missing[0]!r}; the arrays are {', '.join(arrays) or 'none'}")
        labels = {split: _labels(arrays, split) for split in named}
        classes = _classes(arrays, labels["train"])
        if (largest := max(int(own.max(initial=0)) for own in labels.values())) >= len(classes):
            raise ValueError(f"a label is {largest}, but there are {len(classes)} classes")
        return Splits(*(_images(path, arrays, split, labels[split], classes, image_size) for split in labels))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _labels(arrays: dict[str, np.ndarray], split: str) -> np.ndarray:
    name, n = f"y_{split}", len(arrays[f"x_{split}"]) if arrays[f"x_{split}"].ndim else 0
    labels = arrays[name]
    if labels.dtype.kind not in "iu" or labels.shape not in ((n,), (n, 1)):
        raise ValueError(f"{name} is {labels.dtype} {labels.shape}; expected integers ({n},), one an image")
    labels = labels.reshape(n).astype(np.int64)
    if labels.min(initial=0) < 0:
        raise ValueError(f"{name} has the label {labels.min()}; expected 0 and above")
    return labels


def _classes(arrays: dict[str, np.ndarray], labels: np.ndarray) -> tuple[str, ...]:
    if "classes" in arrays:
        return tuple(map(str, arrays["classes"].ravel()))
    return tuple(map(str, range(int(labels.max(initial=0)) + 1)))


def _images(
    path: Path,
    arrays: dict[str, np.ndarray],
    split: str,
    labels: np.ndarray,
    classes: tuple[str, ...],
    image_size: tuple[int, int] | None,
) -> InMemoryImages:
    name = f"x_{split}"
    pixels = pixels_of(arrays[name], name)
    return InMemoryImages(
        pixels, torch.from_numpy(labels), classes, lambda index: f"{path.name}:{name}[{index}]", image_size
    )
