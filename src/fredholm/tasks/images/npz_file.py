"""Images in an .npz file of numpy arrays."""

from pathlib import Path

import numpy as np

from fredholm.tasks.files.npz_arrays import load_arrays, split_words
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.split_marks import marks_of_arrays
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, Kind, answers_of_array

from .arrays import pixels_of
from .dataset import ImageDataset
from .in_memory import InMemoryImages


def npz_images(
    path: str | Path, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Read `x` and `y`, or those of each split: `x_train`, `y_train`, `x_test` and `y_test`, as Keras names its arrays.

    Of splits, `x_valid` and `y_valid` (or `_val`) are the validation set; it and the test set may be absent.

    Images are uint8 `(n, H, W)` or `(n, H, W, C)` with C of 1 or 3. What `y` is, `answers_of_array` says: integers
    `(n,)` or `(n, 1)` are classes from 0, truth values `(n, L)` labels, floats `(n,)` or `(n, T)` numbers. Their names
    are `classes`, `labels` and `target_names`, where the file has them. `split`, `groups` and `example_times` are read
    of `x` and `y` (`marks_of_arrays`), the last two also of splits, such as `groups_train`.

    Args:
        path: the file.
        image_size: height and width to deliver; default: the size the images have.
        kind: what `y` is, where it is another than said; None: as said.

    Raises:
        ValueError: it is no such file, arrays are missing or do not fit together, or a test label is unknown in
            training. The message names file and array.
    """
    path = Path(path)
    arrays = load_arrays(path)
    try:
        if {"x", "y"} & arrays.keys():
            return _whole(path, arrays, image_size, kind)
        words = split_words(lambda word: word == "train" or bool({f"x_{word}", f"y_{word}"} & arrays.keys()))
        parts: dict[Split, ImageDataset] = {}
        known: tuple[str, ...] | None = None
        for split, word in words.items():
            parts[split] = _images(path, arrays, f"_{word}", _answers(arrays, f"_{word}", kind, known), image_size)
            known = parts["train"].answer_names
        return Splits(parts["train"], parts.get("test"), parts.get("valid"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _whole(
    path: Path, arrays: dict[str, np.ndarray], image_size: tuple[int, int] | None, kind: Kind | None
) -> Splits[ImageDataset]:
    """All images in one array, divided where there is an array `split`."""
    if others := [name for name in arrays if name.startswith(("x_", "y_"))]:
        raise ValueError(f"has {others[0]} beside x and y; keep one of these")
    found = _images(path, arrays, "", _answers(arrays, "", kind, None), image_size)
    return found.marks.divided(found)


def _answers(arrays: dict[str, np.ndarray], end: str, kind: Kind | None, known: tuple[str, ...] | None) -> Answers:
    for name in (f"x{end}", f"y{end}"):
        if name not in arrays:
            raise ValueError(f"has no array {name!r}; the arrays are {', '.join(arrays) or 'none'}")
    n, y = len(arrays[f"x{end}"]) if arrays[f"x{end}"].ndim else 0, arrays[f"y{end}"]
    if y.ndim == 0 or len(y) != n:
        raise ValueError(f"y{end} is {y.dtype} {y.shape}; expected ({n}, ...), one an image")
    names = {"classes": arrays.get("classes"), "labels": arrays.get("labels"), "numbers": arrays.get("target_names")}
    return answers_of_array(y, f"y{end}", kind, **names, known=known)


def _images(
    path: Path, arrays: dict[str, np.ndarray], end: str, answers: Answers, image_size: tuple[int, int] | None
) -> ImageDataset:
    name = f"x{end}"
    marks = marks_of_arrays(arrays, len(answers), end=end)
    pixels = pixels_of(arrays[name], name)
    return InMemoryImages(pixels, answers, lambda index: f"{path.name}:{name}[{index}]", image_size, marks)
