"""A folder of PNG and JPEG files, one subfolder a class."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from fredholm._settings import refuse_idle
from fredholm.tasks.splits import Splits
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION, stratified_split

from .dataset import ImageDataset
from .kept import Kept
from .read import IMAGE_SUFFIXES, is_grey, read_images, size_of
from .resize import check_image_size

_TEST_NAMES = ("test", "val")


@final
class ImageFolder(ImageDataset):
    """Image files, decoded when asked for and kept decoded while they fit.

    Args:
        root: the folder that names are given relative to.
        files: the image files.
        labels: one label a file, each in ``0 .. len(classes) - 1``.
        classes: the class names.
        channels: 1 (grey) or 3 (RGB), to which every image is brought (see `read_images`).
        image_size: height and width, to which every image is brought.
        cache_bytes: the first images, as many as fit into this much memory, are decoded only once.
    """

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        labels: Sequence[int],
        classes: tuple[str, ...],
        *,
        channels: int,
        image_size: tuple[int, int],
        cache_bytes: int = 512 << 20,
    ) -> None:
        if len(files) != len(labels):
            raise ValueError(f"{len(files)} files, but {len(labels)} labels: give one label a file")
        check_image_size(image_size)
        self._root, self._files, self._classes = root, list(files), tuple(classes)
        self._targets = torch.tensor(labels, dtype=torch.int64)
        self._channels, self._image_size = channels, image_size
        self._pixels = Kept(len(files), (channels, *image_size), self._decode, cache_bytes=cache_bytes)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def channels(self) -> int:
        return self._channels

    @property
    def image_size(self) -> tuple[int, int]:
        return self._image_size

    def __len__(self) -> int:
        return len(self._files)

    def _images(self, indices: Tensor) -> Tensor:
        return self._pixels[indices]

    def _labels(self, indices: Tensor) -> Tensor:
        return self._targets[indices]

    def _name(self, index: int) -> str:
        return self._files[index].relative_to(self._root).as_posix()

    def _decode(self, indices: Tensor) -> Tensor:
        return read_images([self._files[index] for index in indices.tolist()], self._channels, self._image_size)


def image_folder(
    folder: str | Path,
    image_size: tuple[int, int] | None = None,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    split_seed: int = 0,
) -> Splits[ImageDataset]:
    """Open a folder with one subfolder a class, or with ``train/`` and ``test/`` that hold such subfolders.

    Classes are sorted by name. ``val/`` serves as the test set where there is no ``test/``; without either,
    `stratified_split` divides the images. Images are the ``.png``, ``.jpg`` and ``.jpeg`` files (capitals too) at any
    depth below a class folder; hidden files and folders and all other files are ignored. The images are grey if the
    headers of all files say so, otherwise RGB. Every header is read here; the pixels only when they are asked for.

    Args:
        folder: the folder.
        image_size: height and width to deliver; default: the size all images share.
        test_fraction: share of the test set; refused where the folder has one.
        split_seed: picks one of many such splits.

    Raises:
        ValueError: no class folder, only one, or one without images; a test class unknown in training; an unreadable
            file; or images of different sizes and no ``image_size``.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    train_root, test_root = _split_roots(root)
    classes = tuple(_class_folders(train_root))
    if len(classes) == 1:
        raise ValueError(f"{train_root}: only one class folder, {classes[0]!r}; at least two classes are needed")
    train_files, train_labels = _files_and_labels(train_root, classes)
    if test_root is None:
        names = [path.relative_to(train_root).as_posix() for path in train_files]
        train, test = stratified_split(names, train_labels, test_fraction, split_seed)
        test_files, test_labels = [train_files[i] for i in test], [train_labels[i] for i in test]
        train_files, train_labels = [train_files[i] for i in train], [train_labels[i] for i in train]
    else:
        fixed = f"the test set {test_root}"
        given = {"test_fraction": test_fraction}
        refuse_idle("", image_folder, fixed, "move its images into the class folders", **given)
        test_files, test_labels = _files_and_labels(test_root, classes)

    channels, image_size = _inspect(train_files + test_files, image_size)
    return Splits(
        ImageFolder(root, train_files, train_labels, classes, channels=channels, image_size=image_size),
        ImageFolder(root, test_files, test_labels, classes, channels=channels, image_size=image_size),
        is_given=test_root is not None,
    )


def _split_roots(root: Path) -> tuple[Path, Path | None]:
    """Tell where the class folders lie; a folder called ``train`` among class folders is a class."""
    folders = set(_subfolders(root))
    test_names = [name for name in _TEST_NAMES if name in folders]
    if "train" not in folders or not folders <= {"train", *_TEST_NAMES}:
        return root, None
    if len(test_names) == 2:
        warnings.warn(f"{root / test_names[1]} is not used: {root / test_names[0]} is the test set", stacklevel=3)
    return root / "train", root / test_names[0] if test_names else None


def _class_folders(root: Path) -> list[str]:
    folders = _subfolders(root)
    if not folders:
        raise ValueError(f"{root}: no class folder; put the images into one subfolder a class, such as cat/1.png")
    return folders


def _subfolders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files_and_labels(root: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    files: list[Path] = []
    labels: list[int] = []
    for name in _class_folders(root):
        if name not in classes:
            raise ValueError(f"{root / name}: class {name!r} is not among the training classes ({', '.join(classes)})")
        found = _image_files(root / name)
        if not found:
            suffixes = ", ".join(IMAGE_SUFFIXES)
            raise ValueError(f"{root / name}: no image ({suffixes}) in this class folder; add some or remove it")
        files += found
        labels += [classes.index(name)] * len(found)
    return files, labels


def _image_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for directory, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [
            Path(directory, name)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    return sorted(found)


def _inspect(files: list[Path], image_size: tuple[int, int] | None) -> tuple[int, tuple[int, int]]:
    """Read all headers; return the number of channels, and the size asked for or else shared by all."""
    all_grey = True
    first_size = None
    for path in tqdm(files, desc="reading image headers", unit="file", delay=1.0, leave=False, disable=None):
        all_grey &= is_grey(path)
        if image_size is None:
            size = size_of(path)
            if first_size is not None and size != first_size:
                raise ValueError(
                    f"images differ in size: {files[0]} is {_text(first_size)}, {path} is {_text(size)}; "
                    f"pass image_size, the height and width to bring all to"
                )
            first_size = size
    size = image_size or first_size
    assert size is not None
    return (1 if all_grey else 3), size


def _text(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
