"""Examples with their images in an .npz file of numpy arrays."""

from pathlib import Path

import numpy as np
import torch

from fredholm.tasks.files.npz_arrays import load_arrays
from fredholm.tasks.images import InMemoryImages
from fredholm.tasks.splits.split_marks import marks_of_arrays

from .image_text_set import Example, ImageTextSet, numbered


def read_npz(path: Path, *, image_size: tuple[int, int] | None = None, reads_labels: bool = True) -> ImageTextSet:
    """Read `images`, `text` and, where there are some, `label`, `split`, `groups` and `example_times`.

    Images are uint8 `(n, M, H, W, C)`, or `(n, H, W, C)` of one image each, with C of 1 or 3; the others one an
    example, `(n,)`: texts; labels as texts, integers or truth values; splits, groups and times as `marks_of_arrays`
    reads them.

    Args:
        path: the file.
        image_size: height and width to deliver; None: the size that images have.
        reads_labels: whether labels are read, where there are some.

    Raises:
        ValueError: it is no such file, arrays are missing or do not fit together, a text is empty, or a label is no
            class. The message names file and array.
    """
    arrays = load_arrays(path)
    for name in ("images", "text"):
        if name not in arrays:
            raise ValueError(f"{path}: has no array {name!r}; the arrays are {', '.join(arrays) or 'none'}")
    images, texts = arrays["images"], arrays["text"]
    if images.dtype != np.uint8 or images.ndim not in (4, 5) or images.shape[-1] not in (1, 3) or images.size == 0:
        raise ValueError(
            f"{path}: images is {images.dtype} {images.shape}; expected uint8 (n, M, H, W, C) or (n, H, W, C), C 1 or 3"
        )
    images = images if images.ndim == 5 else images[:, None]
    count, num_images = images.shape[:2]
    if texts.dtype.kind != "U" or texts.shape != (count,):
        raise ValueError(f"{path}: text is {texts.dtype} {texts.shape}; expected texts ({count},), one an example")
    words = _labels(path, arrays, count) if reads_labels else None
    examples = tuple(
        Example(
            images=tuple(f"{i}:{m}" for m in range(num_images)),
            text=str(texts[i]),
            label=None if words is None else words[i],
            path=path,
            line=i + 1,
        )
        for i in range(count)
    )
    for example in examples:
        if not example.text.strip():
            raise ValueError(f"{example.place}: the text is empty; write one, or leave the example out")
    try:
        marks = marks_of_arrays(arrays, count)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    labels, classes = numbered(examples, marks.given)
    pixels = torch.from_numpy(images.reshape(-1, *images.shape[2:])).movedim(-1, 1).contiguous()
    return ImageTextSet(
        examples=examples,
        pictures=InMemoryImages(pixels, None, lambda number: f"{path.name}:images[{number}]", image_size),
        index=torch.arange(count * num_images).view(count, num_images),
        labels=labels,
        classes=classes,
        marks=marks,
    )


def _labels(path: Path, arrays: dict[str, np.ndarray], count: int) -> list[str] | None:
    if "label" not in arrays:
        return None
    labels = arrays["label"]
    if labels.dtype.kind not in "Uiub" or labels.shape != (count,):
        raise ValueError(f"{path}: label is {labels.dtype} {labels.shape}; expected classes ({count},), one an example")
    words = [str(label).strip() for label in labels.tolist()]
    if labels.dtype.kind == "b":
        return [word.lower() for word in words]
    if empty := [i for i, word in enumerate(words) if not word]:
        raise ValueError(f"{path}, line {empty[0] + 1}: the label is empty; expected a class")
    return words
