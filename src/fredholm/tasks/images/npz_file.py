"""Images in .npz files of numpy arrays."""

from pathlib import Path

import numpy as np

from fredholm.tasks.files.array_names import no_array
from fredholm.tasks.files.cache import LARGE
from fredholm.tasks.files.mapped import Rows, arrays_of_each_split
from fredholm.tasks.files.npz_arrays import load_arrays, split_words
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.split_marks import marks_of_arrays
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, Kind, answers_of_array

from .arrays import KERAS, NAMES, OF_IMAGES, ArrayImages, layout_of, refuse_unread_of_images
from .dataset import ImageDataset


def npz_images(
    path: str | Path, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Read `x` and `y`, or those of each split: `x_train`, `y_train`, `x_test` and `y_test`, as Keras names its arrays.

    `x_valid` and `y_valid` (or `_val`) are the validation set; it and the test set may be absent. Splits may also be
    named as in the files of MedMNIST, `train_images`, `train_labels`, `val_images` and so on.

    Images are uint8 `(n, H, W)` or `(n, H, W, C)` with C of 1 or 3. The type of `y` sets its kind
    (`answers_of_array`): integers `(n,)` or `(n, 1)` are classes from 0, truth values `(n, L)` labels, floats
    `(n,)` or `(n, T)` numbers. Their names are `classes`, `labels` and `target_names`, where the file has them. Beside
    `x` and `y`, `split`, `groups` and `example_times` are read (`marks_of_arrays`); beside splits the last two, such as
    `groups_train`.

    Args:
        path: the file.
        image_size: height and width to deliver; default: the size the images have.
        kind: the kind of `y`, where its type does not show it; None: by its type.

    Raises:
        ValueError: it is no such file, arrays are missing, unknown or do not fit together, or a test label is unknown
            in training. The message names file and array.
    """
    path = Path(path)
    arrays = load_arrays(path, map_from=LARGE)
    try:
        if {"x", "y"} & arrays.keys():
            if others := [name for name in arrays if name.startswith(("x_", "y_"))]:
                raise ValueError(f"has {others[0]} beside x and y; keep one of these")
            refuse_unread_of_images(arrays)
            found = _images(path, arrays, ("x", "y"), "", kind, None, image_size)
            return found.marks.divided(found)
        refuse_unread_of_images(arrays)
        named = layout_of(arrays).named
        words = split_words(lambda word: word == "train" or bool({*named(word)} & arrays.keys()))
        parts: dict[Split, ImageDataset] = {}
        known: tuple[str, ...] | None = None
        for split, word in words.items():
            parts[split] = _images(path, arrays, named(word), f"_{word}", kind, known, image_size)
            known = parts["train"].answer_names
        return Splits(parts["train"], parts.get("test"), parts.get("valid"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def npz_shards(
    folder: str | Path, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Read a folder of .npz files with `x` and `y` each, which are one data set.

    A split is a word of a name, as in train-00000.npz, train-00001.npz and test-00000.npz (`find_split_files`). Where
    no name has one, all files are one set, and `split` is read. Otherwise as `npz_images`; names of classes, labels and
    numbers are the same in all files, and classes without names are counted over the files of a split.

    Args:
        folder: the folder of the files.
        image_size, kind: as in `npz_images`.

    Raises:
        ValueError: what `npz_images` refuses, or files do not fit together.
    """
    folder = Path(folder)
    parts: dict[Split, ImageDataset] = {}
    known: tuple[str, ...] | None = None
    for split, large, arrays in arrays_of_each_split(folder, what="image file", rows=("x",), shared=NAMES):
        rows = large["x"]
        try:
            refuse_unread_of_images({"x": rows, **arrays})
            answers = _answers(rows, arrays, "y", kind, known)
            marks = marks_of_arrays(arrays, len(rows), end="")
            found = ArrayImages(rows, "x", answers, image_size, marks)
        except ValueError as error:
            raise ValueError(f"{folder}, {split or 'train'}: {error}") from error
        if split is None:
            return found.marks.divided(found)
        parts[split], known = found, answers.names
    return Splits(parts["train"], parts.get("test"), parts.get("valid"))


def _images(
    path: Path,
    arrays: dict[str, np.ndarray],
    names: tuple[str, str],
    end: str,
    kind: Kind | None,
    known: tuple[str, ...] | None,
    image_size: tuple[int, int] | None,
) -> ImageDataset:
    """Images and answers of the arrays `names`, and marks of the arrays whose names end with `end`."""
    name, answered = names
    if name not in arrays:
        raise _missing(name, arrays)
    answers = _answers(arrays[name], arrays, answered, kind, known)
    marks = marks_of_arrays(arrays, len(answers), end=end)
    return ArrayImages(Rows([arrays[name]], [path.name]), name, answers, image_size, marks)


def _answers(
    images: np.ndarray | Rows,
    arrays: dict[str, np.ndarray],
    name: str,
    kind: Kind | None,
    known: tuple[str, ...] | None,
) -> Answers:
    if name not in arrays:
        raise _missing(name, arrays)
    y, n = arrays[name], images.shape[0] if images.shape else 0
    if y.ndim == 0 or len(y) != n:
        raise ValueError(f"{name} is {y.dtype} {y.shape}; expected ({n}, ...), one an image")
    names = {"classes": arrays.get("classes"), "labels": arrays.get("labels"), "numbers": arrays.get("target_names")}
    return answers_of_array(y, name, kind, **names, known=known)


def _missing(name: str, arrays: dict[str, np.ndarray]) -> ValueError:
    layout = layout_of(arrays)
    return no_array(name, arrays, OF_IMAGES if layout == KERAS else (layout.images, layout.answers), layout.form)
