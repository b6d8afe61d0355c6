"""A folder of image files, with one subfolder a class, or with a table labels.csv of labels or targets."""

from dataclasses import replace
from pathlib import Path

import torch

from fredholm.tasks.files.class_folders import class_folders
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers, Kind
from fredholm.tasks.targets.labels_table import TABLE, labelled_files, warn_of_unnamed

from .dataset import ImageDataset
from .encoded_images import image_files, inspect
from .read import IMAGE_SUFFIXES


@reads_data
def image_folder(folder: str | Path, image_size: tuple[int, int] | None = None) -> Splits[ImageDataset]:
    """Open a folder with one subfolder a class, or with folders of splits that hold such subfolders.

    See `class_folders`. Without folders of splits all images are one set. Images are the files of the kinds of
    `read_images`. They are grey if the headers of all files say so, otherwise RGB.
    Every header is read here; pixels are read on demand.

    Args:
        folder: the folder.
        image_size: height and width to deliver; default: the size all images share, or `common_size` of the training
            folder's, with `Splits.sizes`.

    Raises:
        ValueError: no class folder, only one, or one without images; a test class unknown in training; two folders of
            one split; or an unreadable file.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    classes, parts = class_folders(root, IMAGE_SUFFIXES, "images", "cat/1.png")
    files = [file for files, _ in parts.values() for file in files]
    channels, image_size, sizes = inspect(files, image_size, len(parts["train"][0]))
    found = {
        split: image_files(
            root,
            files,
            ClassAnswers(names=classes, values=torch.tensor(labels, dtype=torch.int64)),
            channels=channels,
            image_size=image_size,
        )
        for split, (files, labels) in parts.items()
    }
    return Splits(found["train"], found.get("test"), found.get("valid"), is_given=len(parts) > 1, sizes=sizes)


@reads_data
def labelled_folder(
    folder: str | Path, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Open the images that `labels.csv` names, with its labels or targets; see `labelled_files`. Warns of other images.

    Args:
        folder: the folder with the table.
        image_size: height and width to deliver; default: the size all images share, or `common_size`
            of them, with `Splits.sizes`.
        kind: the kind of the answers; None: it follows from the cells.

    Raises:
        ValueError: what `labelled_files` and `inspect` refuse, or a split without images to train on.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    instead = f"read the images beside the other columns: fredholm train table {root / TABLE}"
    files, answers, marks = labelled_files(root, "image", kind, instead=instead)
    channels, size, sizes = inspect(files, image_size, len(files))
    found = image_files(root, files, answers, channels=channels, image_size=size, marks=marks)
    try:
        splits: Splits[ImageDataset] = marks.divided(found)
    except ValueError as error:
        raise ValueError(f"{root / TABLE}: {error}") from error
    warn_of_unnamed(root, files, IMAGE_SUFFIXES, "image")
    return replace(splits, sizes=sizes)
